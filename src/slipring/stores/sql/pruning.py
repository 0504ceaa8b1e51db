"""Removing what has expired or was deleted and that nothing needs any more.

Safe beside everything else that is written: what something has come to build on meanwhile is protected by the
foreign keys and stays.
"""

from slipring.stores.databases.database import Database, ForeignKeyViolated, Statement
from slipring.stores.sql.expiry import NEVER

# $1: what has expired by then, $2: rows at most, $3: chains at most. From the ends of chains towards their
# roots, for as long as nothing else branches off. That a row has expired is asked again when it is its turn:
# PostgreSQL may have waited for somebody who gave it a longer life.
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
_USAGE = """
DELETE FROM slipring_usage WHERE (key_id, period) IN (
    SELECT key_id, period FROM slipring_usage WHERE expires_at <= $1 LIMIT $2
) AND expires_at <= $1
RETURNING 1
"""
_NODES = "DELETE FROM slipring_nodes WHERE seen_at <= $1 RETURNING 1"
_NODE_IS_GONE_S = 86_400.0
"""After this silence a node does not come back under its old name."""
_TRIES = 3


async def prune(database: Database, now: float, limit: int) -> int:
    """Remove at most ``limit`` rows of each kind; returns how many."""
    return (
        await _remove(database, Statement(_EXPIRED, (int(now), limit, limit)))
        + await _remove(database, Statement(_HEADS, (limit,)))
        + await _remove(database, Statement(_RUNS, (int(now), limit)))
        + await _remove(database, Statement(_USAGE, (float(now), limit)))
        + await _remove(database, Statement(_NODES, (float(now) - _NODE_IS_GONE_S,)))
    )


async def make_room(database: Database, most_bytes: int, limit: int) -> int:
    """Remove the chains and the finished runs that are oldest, while there is more than that; returns how
    many rows. What runs have said goes first: their responses are there without it."""
    removed, chains = 0, 1
    while removed < limit and await database.used_bytes() > most_bytes:
        gone = await _remove(database, Statement(_OLDEST_RUNS, (chains,)))
        if not gone:
            gone = await _remove(database, Statement(_OLDEST, (NEVER, limit - removed, chains)))
        if not gone:
            break
        removed += gone + await _remove(database, Statement(_HEADS, (limit,)))
        # Not many at a time, where few may be enough; not one by one, where many have to go.
        chains *= 2
    return removed


async def _remove(database: Database, statement: Statement) -> int:
    for _ in range(_TRIES):
        try:
            (rows,) = await database.write(statement)
        except ForeignKeyViolated:
            continue  # one of them is needed since it was chosen, and will not be chosen again
        return len(rows)
    return 0
