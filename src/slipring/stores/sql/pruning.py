"""Removes expired and deleted rows that no other row needs.

Safe while other writes run: foreign keys keep a row that a new response has come to refer to.
"""

from slipring.stores.databases.database import Database, ForeignKeyViolated, Statement
from slipring.stores.sql.retention import NEVER

# Removes what had expired by $1: at most $2 rows of at most $3 chains. Walks from the end of each chain
# towards its root, up to the first row that another branch needs. The DELETE checks the expiry again, because
# PostgreSQL may have waited for a transaction that extended it.
_CHAINS = """
WITH RECURSIVE dead (depth, tenant, id, parent_id) AS (
    SELECT 0, leaf.tenant, leaf.id, leaf.parent_id FROM (
        SELECT tenant, id, parent_id FROM slipring_responses AS candidate
        WHERE candidate.expires_at <= $1 AND NOT EXISTS (
            SELECT 1 FROM slipring_responses AS child
            WHERE child.tenant = candidate.tenant AND child.parent_id = candidate.id
        )
        {order} LIMIT $3
    ) AS leaf
    UNION ALL
    SELECT dead.depth + 1, older.tenant, older.id, older.parent_id
    FROM dead JOIN slipring_responses AS older ON older.tenant = dead.tenant AND older.id = dead.parent_id
    WHERE older.expires_at <= $1 AND NOT EXISTS (
        SELECT 1 FROM slipring_responses AS sibling
        WHERE sibling.tenant = older.tenant AND sibling.parent_id = older.id AND sibling.id <> dead.id
    )
)
DELETE FROM slipring_responses WHERE (tenant, id) IN (
    SELECT tenant, id FROM dead ORDER BY depth LIMIT $2
) AND expires_at <= $1
RETURNING 1
"""
_EXPIRED = _CHAINS.format(order="")
_OLDEST = _CHAINS.format(order="ORDER BY candidate.created_at")
_HEADS = """
DELETE FROM slipring_heads WHERE (tenant, digest) IN (
    SELECT tenant, digest FROM slipring_heads AS head WHERE NOT EXISTS (
        SELECT 1 FROM slipring_responses AS user_of_it
        WHERE user_of_it.tenant = head.tenant AND user_of_it.head = head.digest
    )
    LIMIT $1
)
RETURNING 1
"""
_RUNS = """
DELETE FROM slipring_runs WHERE (tenant, response_id) IN (
    SELECT tenant, response_id FROM slipring_runs
    WHERE expires_at <= $1 AND status NOT IN ('queued', 'in_progress')
    LIMIT $2
)
RETURNING 1
"""
_OLDEST_RUNS = """
DELETE FROM slipring_runs WHERE (tenant, response_id) IN (
    SELECT tenant, response_id FROM slipring_runs
    WHERE status NOT IN ('queued', 'in_progress')
    ORDER BY expires_at, lease_until LIMIT $1
)
RETURNING 1
"""
_APPROVALS = """
DELETE FROM slipring_approvals WHERE (tenant, id) IN (
    SELECT tenant, id FROM slipring_approvals WHERE expires_at <= $1 LIMIT $2
)
RETURNING 1
"""
_USAGE = """
DELETE FROM slipring_usage WHERE (key_id, period) IN (
    SELECT key_id, period FROM slipring_usage WHERE expires_at <= $1 LIMIT $2
) AND expires_at <= $1
RETURNING 1
"""
_NODES = "DELETE FROM slipring_nodes WHERE seen_at <= $1 RETURNING 1"
_NODE_EXPIRY_S = 86_400.0
"""A node that has not announced itself for this long is removed: a restarted one has a new id."""
_MAX_ATTEMPTS = 3


async def prune(database: Database, now: float, limit: int) -> int:
    """Remove at most ``limit`` rows of each kind; return how many were removed."""
    return (
        await _remove(database, Statement(_EXPIRED, (int(now), limit, limit)))
        + await _remove(database, Statement(_HEADS, (limit,)))
        + await _remove(database, Statement(_RUNS, (int(now), limit)))
        + await _remove(database, Statement(_APPROVALS, (int(now), limit)))
        + await _remove(database, Statement(_USAGE, (float(now), limit)))
        + await _remove(database, Statement(_NODES, (float(now) - _NODE_EXPIRY_S,)))
    )


async def make_room(database: Database, max_bytes: int, limit: int) -> int:
    """Remove the oldest finished runs, then the oldest chains, while the data exceeds ``max_bytes``.

    Runs go first, because their responses are stored separately. Returns how many rows were removed; stops
    once they are ``limit``.
    """
    removed, count = 0, 1
    while removed < limit and await database.used_bytes() > max_bytes:
        freed = await _remove(database, Statement(_OLDEST_RUNS, (count,)))
        if not freed:
            freed = await _remove(database, Statement(_OLDEST, (NEVER, limit - removed, count)))
        if not freed:
            break
        removed += freed + await _remove(database, Statement(_HEADS, (limit,)))
        # Doubling removes few when few are enough, and takes few rounds when many have to be removed.
        count *= 2
    return removed


async def _remove(database: Database, statement: Statement) -> int:
    for _ in range(_MAX_ATTEMPTS):
        try:
            (rows,) = await database.write(statement)
        except ForeignKeyViolated:
            continue  # a chosen row has come to be needed; the next attempt does not choose it
        return len(rows)
    return 0
