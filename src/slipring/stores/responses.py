"""Responses and their chains.

A chain is stored as deltas that refer to their parents. A row cannot be removed while another refers to it:
deleting such a response hides its row, and an ancestor with ``store: false`` is hidden from the start. Hidden
rows have ``expires_at`` 0, so that one index finds all rows that may be removed.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from slipring.base.errors import Unavailable
from slipring.core.byte_ledger import ChainLedger
from slipring.core.chain import item_ids
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.item_ids import Place
from slipring.core.chain.state import Positions, ResponseState
from slipring.core.checks.verdicts import NodeVerdicts
from slipring.core.tenant_caches import TenantEntries
from slipring.protocol.items.items import Item, renamed
from slipring.protocol.responses import Response
from slipring.stores import response_codec
from slipring.stores.conversations import Appended, append_statements
from slipring.stores.databases.database import (
    Database,
    ForeignKeyViolated,
    OutcomeUnknown,
    RequiredRowMissing,
    Row,
    Statement,
    until_known,
)
from slipring.stores.pictures import Detached, Pictures, prepare_large, used_by_response
from slipring.stores.pruning import Expiry
from slipring.stores.response_codec import Record
from slipring.stores.runs import Lease, LeaseLost, require_lease

_INSERT_HEAD = """
INSERT INTO slipring_heads (tenant, digest, instructions, tools) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
"""
# hidden: 0 can be found, 1 was deleted, 2 is stored only for its descendants. A response that is saved after
# one of its descendants has a hidden row already, which becomes visible. No row is returned if the response
# was saved before.
_INSERT = """
INSERT INTO slipring_responses (tenant, id, hidden, expires_at, parent_id, status, model, created_at,
    head, response, input, output, carry, position, verdicts)
VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (tenant, id) DO UPDATE SET hidden = 0, expires_at = excluded.expires_at
    WHERE slipring_responses.hidden = 2
RETURNING 1
"""
_INSERT_HIDDEN = """
INSERT INTO slipring_responses (tenant, id, hidden, expires_at, parent_id, status, model, created_at,
    head, response, input, output, carry, position, verdicts)
VALUES ($1, $2, 2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT DO NOTHING
"""
_VERDICTS = """
SELECT verdicts FROM slipring_responses WHERE tenant = $1 AND id = $2 AND hidden = 0 AND expires_at > $3
"""
_EXISTS = "SELECT 1 FROM slipring_responses WHERE tenant = $1 AND id = $2 AND hidden = 0 AND expires_at > $3"
# The text of a head is returned with the newest response that has it, not with each. Each step compares the
# tenant with that of the step before, not with $1: a planner whose statistics are older than the tenant would
# expect one row for $1 and read all of the tenant's rows at each step.
_CHAIN = """
WITH RECURSIVE
chain (depth, is_news, tenant, parent_id, id, head, response, input, output, carry, position, verdicts) AS (
    SELECT 0, 1, tenant, parent_id, id, head, response, input, output, carry, position, verdicts
    FROM slipring_responses WHERE tenant = $1 AND id = $2 AND hidden = 0 AND expires_at > $3
    UNION ALL
    SELECT chain.depth + 1, CASE WHEN older.head = chain.head THEN 0 ELSE 1 END, older.tenant,
        older.parent_id, older.id, older.head, older.response, older.input, older.output, older.carry,
        older.position, older.verdicts
    FROM chain JOIN slipring_responses AS older ON older.tenant = chain.tenant AND older.id = chain.parent_id
)
SELECT chain.id, chain.head, chain.response, chain.input, chain.output, chain.carry, chain.position,
    chain.verdicts, heads.instructions, heads.tools
FROM chain LEFT JOIN slipring_heads AS heads
    ON chain.is_news = 1 AND heads.tenant = chain.tenant AND heads.digest = chain.head
ORDER BY chain.depth DESC
"""
_RETRIEVE = """
SELECT responses.response, responses.output, heads.instructions, heads.tools
FROM slipring_responses AS responses
JOIN slipring_heads AS heads ON heads.tenant = responses.tenant AND heads.digest = responses.head
WHERE responses.tenant = $1 AND responses.id = $2 AND responses.hidden = 0 AND responses.expires_at > $3
"""
_ITEMS = """
SELECT input, output FROM slipring_responses
WHERE tenant = $1 AND id = $2 AND hidden = 0 AND expires_at > $3
"""
# All $3 names of a response in one statement: $4 has the digests, of an id and of its item in turn.
_INSERT_NAMES = """
INSERT INTO slipring_item_names (tenant, response_id, name, item)
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < $3)
SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), substr(CAST($4 AS BYTEA), 32 * n + 1, 16),
    substr(CAST($4 AS BYTEA), 32 * n + 17, 16)
FROM numbers WHERE true
ON CONFLICT DO NOTHING
"""
# Two rows: different items have the id.
_FIND_NAMED = """
SELECT names.item, MIN(names.response_id) FROM slipring_item_names AS names
JOIN slipring_responses AS responses ON responses.tenant = names.tenant AND responses.id = names.response_id
WHERE names.name = $1 AND names.tenant = $2 AND responses.hidden = 0 AND responses.expires_at > $3
GROUP BY names.item LIMIT 2
"""
_JUDGE = "UPDATE slipring_responses SET verdicts = $3 WHERE tenant = $1 AND id = $2"
_HIDE = """
UPDATE slipring_responses SET hidden = 1, expires_at = 0
WHERE tenant = $1 AND id = $2 AND hidden = 0 AND expires_at > $3
RETURNING id
"""
_REMOVE = """
DELETE FROM slipring_responses WHERE tenant = $1 AND id = $2 AND hidden = 1 AND NOT EXISTS (
    SELECT 1 FROM slipring_responses AS child WHERE child.tenant = $1 AND child.parent_id = $2
)
"""
_MAX_ATTEMPTS = 3
"""Attempts at a save whose ancestors another transaction keeps removing."""
_YIELD_EVERY = 100
"""States that are decoded before the event loop runs other tasks."""


class RecentStates(TenantEntries[str, ResponseState]):
    """The most recently used states of each tenant, by response id. Data that several states share is counted
    once.

    Continuing a cached chain needs no read of the whole chain, and keeps what the database cannot hold: an
    engine's live position. The caller must check that a cached response still exists: another process may
    have deleted it.
    """

    __slots__ = ("_retention",)

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._retention: ChainLedger[ResponseState] = ChainLedger()

    def find(self, tenant: str, response_id: str) -> ResponseState | None:
        return self._find(tenant, response_id)

    def remember(self, tenant: str, state: ResponseState) -> None:
        self.forget(tenant, state.id)
        self._keep(tenant, {state.id: state})

    def forget(self, tenant: str, response_id: str) -> None:
        if response_id in self._by_tenant.get(tenant, ()):
            self._drop(tenant, response_id)

    def _hold(self, tenant: str, value: ResponseState) -> int:
        return self._retention.hold(value)

    def _release(self, tenant: str, value: ResponseState) -> int:
        return self._retention.release(value)


class Responses:
    """Stored responses and their chains."""

    def __init__(
        self,
        database: Database,
        recent: RecentStates,
        expiry: Expiry,
        positions: Positions | None,
        pictures: Pictures,
    ) -> None:
        self._database = database
        self._recent = recent
        self._expiry = expiry
        self._positions = positions
        self._pictures = pictures

    async def save(
        self,
        tenant: str,
        state: ResponseState,
        *,
        appended: Appended | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Store a finished response and its chain, and append to its conversation, in one transaction.

        Ancestors with ``store: false`` are stored too, but cannot be found by their ids. Raises
        ``LeaseLost``, and stores nothing, if ``lease`` has ended.
        """
        before = [require_lease(lease)] if lease is not None else []
        try:
            await self._save(tenant, state, before, appended)
        except OutcomeUnknown:
            await self._save_if_missing(tenant, state, before, appended)
        except RequiredRowMissing:
            raise LeaseLost(state.id) from None
        self._recent.remember(tenant, state)

    async def load(self, tenant: str, response_id: str) -> ResponseState | None:
        """Return a response with its whole chain, ready to be continued."""
        state = self._recent.find(tenant, response_id)
        now = self._expiry.now()
        if state is not None:
            found = await self._database.read(_VERDICTS, tenant, response_id, now)
            if not found:
                self._recent.forget(tenant, response_id)
                return None
            # Another process may have audited it since it was loaded here.
            verdicts = response_codec.unpack_verdicts(found[0][0])
            if verdicts is not None and verdicts.refused_by is not None:
                state.verdicts = verdicts
            return state
        rows = await self._database.read(_CHAIN, tenant, response_id, now)
        if not rows:
            return None
        state = await self._assemble(tenant, rows)
        self._recent.remember(tenant, state)
        return state

    async def retrieve(self, tenant: str, response_id: str) -> Response | None:
        """Return only the response object, with its instructions, tools and output."""
        rows = await self._database.read(_RETRIEVE, tenant, response_id, self._expiry.now())
        if not rows:
            return None
        response, output, instructions, tools = rows[0]
        head = response_codec.read_head(instructions, tools)
        (items,) = await self._pictures.unpacked(tenant, [output])
        return response_codec.unpack_response(response, head, items)

    async def load_items(self, tenant: str, wanted_ids: Iterable[str]) -> dict[str, Item]:
        """Return the items of stored responses to which the server gave these ids, by id. Unknown ids are
        left out."""
        wanted: dict[str, dict[str, Place]] = {}
        for item_id in wanted_ids:
            place = item_ids.place_of(item_id)
            if place is not None:
                wanted.setdefault(place.response_id, {})[item_id] = place
        found: dict[str, Item] = {}
        for response_id, places in wanted.items():
            rows = await self._database.read(_ITEMS, tenant, response_id, self._expiry.now())
            for packed in rows:
                found |= _pick(response_id, places, *await self._pictures.unpacked(tenant, packed))
        return found

    async def load_named(self, tenant: str, item_id: str) -> list[Item]:
        """Return the items of stored responses for which clients chose this id: each once, two at most."""
        now = self._expiry.now()
        named = await self._database.read(_FIND_NAMED, response_codec.name_digest(item_id), tenant, now)
        found: list[Item] = []
        for digest, response_id in named:
            for packed in await self._database.read(_ITEMS, tenant, response_id, now):
                items = chain.from_iterable(await self._pictures.unpacked(tenant, packed))
                found.append(response_codec.named_item(items, item_id, digest))
        return found

    async def judge(self, tenant: str, response_id: str, verdicts: NodeVerdicts) -> None:
        """Replace the verdicts of a stored response, if there is one with this id."""
        packed = response_codec.pack_verdicts(verdicts)
        await self._database.write(Statement(_JUDGE, (tenant, response_id, packed)))

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Make a response unreachable; responses that continue it stay usable. False: there was none."""
        hide = Statement(_HIDE, (tenant, response_id, self._expiry.now()))
        remove = Statement(_REMOVE, (tenant, response_id))
        try:
            hidden, _ = await self._database.write(hide, remove)
        except ForeignKeyViolated:
            # A new response has come to refer to it since the statement chose it.
            (hidden,) = await self._database.write(hide)
        self._recent.forget(tenant, response_id)
        return bool(hidden)

    async def _save(
        self,
        tenant: str,
        state: ResponseState,
        before: list[Statement],
        appended: Appended | None,
        *,
        must_be_new: bool = False,
    ) -> None:
        """Write a response between other statements, with those of its ancestors that have no row.

        ``must_be_new``: raise ``RequiredRowMissing``, and write nothing, if it was saved before.
        """
        detached = Detached()
        await prepare_large((*state.input, *state.output, *(appended.items if appended is not None else ())))
        own = self._insert(tenant, state, detached, must_be_new=must_be_new)
        after = append_statements(tenant, state.id, appended, detached) if appended is not None else []
        ancestors, attempts_left = 0, _MAX_ATTEMPTS
        while True:
            nodes = _nearest(state, ancestors)
            await prepare_large(item for node in nodes for item in (*node.input, *node.output))
            lineage = self._insert_ancestors(tenant, nodes, detached)
            pictures = self._pictures.inserts(tenant, detached)
            try:
                await self._database.write(*before, *pictures, *lineage, *own, *after)
                self._pictures.stored(tenant, detached)
                return
            except ForeignKeyViolated:
                self._pictures.forget(tenant, detached)
                # The parent has no row: it had store: false, or was removed. Doubling finds out how many
                # ancestors are missing; if it fails with all of them, another transaction is removing them.
                if ancestors >= state.depth:
                    attempts_left -= 1
                if not attempts_left:
                    raise Unavailable("The store could not keep the response.") from None
                ancestors = max(1, 2 * ancestors)

    async def _save_if_missing(
        self, tenant: str, state: ResponseState, before: list[Statement], appended: Appended | None
    ) -> None:
        """Save a response again whose save may have been committed: exactly one of the two takes effect.

        The insert waits for a transaction that inserts the same row, so it also finds a save that the
        database has not finished yet.
        """

        async def again() -> None:
            try:
                await self._save(tenant, state, before, appended, must_be_new=True)
            except RequiredRowMissing:
                # It was saved, or the run has been taken over.
                if not await self._database.read(_EXISTS, tenant, state.id, self._expiry.now()):
                    raise LeaseLost(state.id) from None

        await until_known(again, "whether the response is stored")

    def _insert(
        self, tenant: str, state: ResponseState, detached: Detached, *, must_be_new: bool
    ) -> list[Statement]:
        """Return statements that insert a response. ``detached`` gets its pictures."""
        expires_at = self._expiry.expires_at(state.response.created_at)
        columns = response_codec.columns(state, self._positions, detached)
        insert = Statement(_INSERT, (tenant, state.id, expires_at, *columns), requires_row=must_be_new)
        statements = [insert]
        names = response_codec.names(state)
        if names:
            statements.append(Statement(_INSERT_NAMES, (tenant, state.id, len(names), b"".join(names))))
        if state.parent is None or state.parent.head is not state.head:
            statements.insert(0, _head(tenant, state.head))
        return statements + used_by_response(tenant, state.id, detached)

    def _insert_ancestors(
        self, tenant: str, nodes: Sequence[ResponseState], detached: Detached
    ) -> list[Statement]:
        """Return statements that insert ancestors, newest first, unless they exist. ``detached`` gets their
        pictures."""
        statements: list[Statement] = []
        head: Head | None = None
        for node in reversed(nodes):
            if node.head is not head:
                head = node.head
                statements.append(_head(tenant, head))
            own = Detached()
            columns = response_codec.columns(node, self._positions, own)
            statements.append(Statement(_INSERT_HIDDEN, (tenant, node.id, *columns)))
            statements += used_by_response(tenant, node.id, own)
            detached.found |= own.found
        return statements

    async def _assemble(self, tenant: str, rows: list[Row]) -> ResponseState:
        """Decode a chain from its rows, oldest first. Decoding starts after the newest cached state."""
        texts = {row[1]: (row[8], row[9]) for row in rows if row[9] is not None}
        heads: dict[bytes, Head] = {}
        state, start = self._newest_cached(tenant, rows)
        packed = [each for row in rows[start:] for each in row[3:5]]
        unpacked = iter(await self._pictures.unpacked(tenant, packed))
        if state is not None:
            heads[rows[start - 1][1]] = state.head
        for number, row in enumerate(rows[start:], 1):
            record = Record(*row[:8])
            head = heads.get(record.head)
            if head is None:
                previous = state.head if state is not None else None
                instructions, tools = texts[record.head]
                head = heads[record.head] = response_codec.read_head(instructions, tools, previous)
            items = next(unpacked), next(unpacked)
            state = response_codec.rebuild(record, state, head, self._positions, items)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        assert state is not None
        return state

    def _newest_cached(self, tenant: str, rows: list[Row]) -> tuple[ResponseState | None, int]:
        """Return the newest cached state of these rows, and the index of the row after it."""
        for end in range(len(rows), 0, -1):
            state = self._recent.find(tenant, rows[end - 1][0])
            if state is not None:
                return state, end
        return None, 0


def _nearest(state: ResponseState, count: int) -> list[ResponseState]:
    """The nearest ``count`` ancestors."""
    return list(islice(state.chain(), 1, count + 1))


def _head(tenant: str, head: Head) -> Statement:
    return Statement(_INSERT_HEAD, (tenant, head.digest, *response_codec.head_columns(head)))


def _pick(
    response_id: str, places: dict[str, Place], input: tuple[Item, ...], output: tuple[Item, ...]
) -> dict[str, Item]:
    """Return the items at these places, by id. A place whose item has another id is left out."""
    found: dict[str, Item] = {}
    items = {True: input, False: output}
    for item_id, place in places.items():
        candidates = items[place.of_input]
        if not 0 <= place.index < len(candidates):
            continue
        item = candidates[place.index]
        by_place = item_ids.place_id(item, response_id, place.index) if place.of_input else None
        if item_id in (item.id, by_place):
            found[item_id] = item if item.id == item_id else renamed(item, item_id)
    return found
