"""How long rows are kept. Removes expired and deleted rows that no other row needs, and keeps the memory
store within its bounds.

Safe while other writes run: foreign keys keep a row that a new response has come to refer to.
"""

import asyncio
from collections.abc import Callable, Iterable

from slipring.stores.databases.database import Database, ForeignKeyViolated, Row, Statement
from slipring.stores.nodes import removal_of_unseen

NEVER = 2**62
"""The ``expires_at`` of data that does not expire."""
PRUNE_INTERVAL_S = 60.0
"""How often a server prunes its store."""


class Expiry:
    """Computes when data expires: ``retention_s`` after its creation; never if that is 0."""

    def __init__(self, retention_s: float, clock: Callable[[], float]) -> None:
        self._retention_s = retention_s
        self._clock = clock

    def expires_at(self, created_at: int) -> int:
        return created_at + int(self._retention_s) if self._retention_s else NEVER

    def now(self) -> int:
        return int(self._clock())


# Removes what had expired by $1: at most $2 rows of at most $3 chains. Returns the heads that the rows had.
# Walks from the end of each chain towards its root, up to the first row that another branch needs. The DELETE
# checks the expiry again, because PostgreSQL may have waited for a transaction that extended it.
_CHAINS = """
WITH RECURSIVE dead (depth, tenant, id, parent_id) AS (
    SELECT 0, leaf.tenant, leaf.id, leaf.parent_id FROM (
        SELECT tenant, id, parent_id FROM slipring_responses AS candidate
        WHERE candidate.expires_at <= $1 AND NOT EXISTS (
            SELECT 1 FROM slipring_responses AS child
            WHERE child.tenant = candidate.tenant AND child.parent_id = candidate.id
        )
        {choice} LIMIT $3
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
RETURNING tenant, head
"""
_EXPIRED = _CHAINS.format(choice="")
_OLDEST = _CHAINS.format(choice="AND candidate.tenant = $4 ORDER BY candidate.created_at")
_UNUSED_HEAD = """
DELETE FROM slipring_heads WHERE tenant = $1 AND digest = $2 AND NOT EXISTS (
    SELECT 1 FROM slipring_responses WHERE slipring_responses.tenant = $1 AND slipring_responses.head = $2
)
RETURNING 1
"""
# The first row after the $3 that begin at ($1, $2), in the order of the primary key.
_NEXT_SLICE = """
SELECT digest, tenant FROM {table} WHERE (digest, tenant) >= ($1, $2)
ORDER BY digest, tenant LIMIT 1 OFFSET $3
"""
_UNUSED = """
DELETE FROM {table} WHERE (digest, tenant) >= ($1, $2) AND {before} NOT EXISTS (
    SELECT 1 FROM {users} AS user_of_it
    WHERE user_of_it.tenant = {table}.tenant AND user_of_it.{digest} = {table}.digest
)
RETURNING 1
"""
_UNUSED_PICTURES_OF_TENANT = """
DELETE FROM slipring_pictures WHERE tenant = $1 AND NOT EXISTS (
    SELECT 1 FROM slipring_picture_uses AS uses
    WHERE uses.tenant = slipring_pictures.tenant AND uses.digest = slipring_pictures.digest
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
    WHERE tenant = $1 AND status NOT IN ('queued', 'in_progress')
    ORDER BY expires_at, lease_until LIMIT $2
)
RETURNING 1
"""
_OLDEST_CONVERSATIONS = """
DELETE FROM slipring_conversations WHERE (tenant, id) IN (
    SELECT tenant, id FROM slipring_conversations WHERE tenant = $1 ORDER BY created_at LIMIT $2
)
RETURNING 1
"""
_APPROVALS = """
DELETE FROM slipring_approvals WHERE (tenant, id) IN (
    SELECT tenant, id FROM slipring_approvals WHERE expires_at <= $1 LIMIT $2
)
RETURNING 1
"""
_DELETED_ITEMS = """
DELETE FROM slipring_deleted_items WHERE (tenant, conversation_id, id) IN (
    SELECT tenant, conversation_id, id FROM slipring_deleted_items WHERE expires_at <= $1 LIMIT $2
) AND expires_at <= $1
RETURNING 1
"""
_USAGE = """
DELETE FROM slipring_usage WHERE (key_id, period) IN (
    SELECT key_id, period FROM slipring_usage WHERE expires_at <= $1 LIMIT $2
) AND expires_at <= $1
RETURNING 1
"""
_STEP_ROWS, _PAUSE_S = 1000, 0.1
"""How many rows of each kind one step removes at most, and the pause before the next."""
_MAX_ATTEMPTS = 3
_LOOKED_AT_PER_ROW = 10
"""Heads and pictures that are looked at for each row that may be removed."""
_FIRST: Row = (b"", "")


class _Slices:
    """Rows that others use by their digest. Those that no row uses are found by looking through all, one
    slice after the other."""

    def __init__(self, table: str, users: str, digest: str) -> None:
        """``digest``: the column in which ``users`` name them."""
        self.next_slice = _NEXT_SLICE.format(table=table)
        self.unused, self.unused_of_last = (
            _UNUSED.format(table=table, users=users, digest=digest, before=before)
            for before in ("(digest, tenant) < ($3, $4) AND", "")
        )
        self.start = _FIRST


class Pruning:
    """Prunes one database.

    A head is removed with the last response that has it. Heads that stayed, because a process died in between
    or because a response was deleted by itself, are found by looking through all heads, one slice after the
    other: the work of one round does not grow with their number. Pictures that no row uses any more are all
    found so.
    """

    def __init__(self, database: Database, *, max_bytes: float, tenant_max_bytes: float) -> None:
        """The bounds apply to a database in memory only."""
        self._database = database
        self._max_bytes = max_bytes
        self._tenant_max_bytes = tenant_max_bytes
        self._heads = _Slices("slipring_heads", "slipring_responses", "head")
        self._pictures = _Slices("slipring_pictures", "slipring_picture_uses", "digest")

    async def prune(self, now: Callable[[], float]) -> None:
        """Remove what can be removed, in small steps, with pauses for other writes. ``now`` is asked in each:
        they may go on for as long as others write."""
        while await self.step(now()):  # noqa: ASYNC110 - a pause, not a wait
            await asyncio.sleep(_PAUSE_S)

    async def step(self, now: float, limit: int = _STEP_ROWS) -> int:
        """Remove at most ``limit`` rows of each kind, or a few times as many small ones; return how many were
        removed. 0: nothing was found to remove for now."""
        return (
            await self._remove_chains(Statement(_EXPIRED, (int(now), limit, limit)))
            + await self._remove_unused(self._heads, _LOOKED_AT_PER_ROW * limit)
            + await self._remove_unused(self._pictures, _LOOKED_AT_PER_ROW * limit)
            + await self._count_removed(Statement(_RUNS, (int(now), limit)))
            + await self._count_removed(Statement(_APPROVALS, (int(now), limit)))
            + await self._count_removed(Statement(_DELETED_ITEMS, (int(now), limit)))
            + await self._count_removed(Statement(_USAGE, (float(now), limit)))
            + await self._count_removed(removal_of_unseen(now))
            + await self._make_room(limit)
        )

    async def _make_room(self, limit: int) -> int:
        """Remove the oldest data of the tenant that has the most, while it or all data exceeds its bound.

        Returns how many rows were removed; stops once they are ``limit``.
        """
        removed, count = 0, 1
        last: str | None = None
        emptied: set[str] = set()
        while removed < limit and (tenant := await self._tenant_to_shrink(emptied)) is not None:
            # Doubling removes few when few are enough, and takes few rounds when many have to be removed.
            count = 2 * count if tenant == last else 1
            last = tenant
            freed = await self._remove_oldest(tenant, count, limit - removed)
            if not freed:
                emptied.add(tenant)
            removed += freed
        return removed

    async def _tenant_to_shrink(self, emptied: set[str]) -> str | None:
        """Return the tenant with the most bytes, except those that have nothing to remove; None if no bound
        is exceeded."""
        largest = await self._database.largest_tenants(1 + len(emptied))
        for tenant, used_bytes in largest:
            if tenant not in emptied:
                is_over = used_bytes > self._tenant_max_bytes
                return tenant if is_over or await self._database.used_bytes() > self._max_bytes else None
        return None

    async def _remove_oldest(self, tenant: str, count: int, limit: int) -> int:
        """Remove pictures of a tenant that no row uses; if there are none, ``count`` finished runs, else
        chains, else conversations.

        Runs go before chains, because their responses are stored separately.
        """
        return (
            await self._count_removed(Statement(_UNUSED_PICTURES_OF_TENANT, (tenant,)))
            or await self._count_removed(Statement(_OLDEST_RUNS, (tenant, count)))
            or await self._remove_chains(Statement(_OLDEST, (NEVER, limit, count, tenant)))
            or await self._count_removed(Statement(_OLDEST_CONVERSATIONS, (tenant, count)))
        )

    async def _remove_chains(self, statement: Statement) -> int:
        rows = await self._remove(statement)
        return len(rows) + await self._remove_heads(set(rows))

    async def _remove_heads(self, heads: Iterable[Row]) -> int:
        """Remove those of these heads, given by tenant and digest, that no response has."""
        return sum([await self._count_removed(Statement(_UNUSED_HEAD, head)) for head in heads])

    async def _remove_unused(self, rows: _Slices, count: int) -> int:
        """Look at the next ``count`` rows; remove those that no other row uses."""
        start = rows.start
        following = await self._database.read(rows.next_slice, *start, count)
        if not following:
            rows.start = _FIRST
            return await self._count_removed(Statement(rows.unused_of_last, start))
        digest, tenant = rows.start = following[0]
        return await self._count_removed(Statement(rows.unused, (*start, digest, tenant)))

    async def _count_removed(self, statement: Statement) -> int:
        return len(await self._remove(statement))

    async def _remove(self, statement: Statement) -> list[Row]:
        for _ in range(_MAX_ATTEMPTS):
            try:
                (rows,) = await self._database.write(statement)
            except ForeignKeyViolated:
                continue  # a chosen row has come to be needed; the next attempt does not choose it
            return rows
        return []
