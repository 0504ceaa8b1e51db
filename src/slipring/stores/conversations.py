"""Conversations and their items.

Every change first updates the row of the conversation. That locks the row, so that changes are serialized,
and assigns the positions of new items, which only grow. The tip is the response whose context holds all items
before ``tip_position``. The position of a deleted item is kept for a while, so that a client that deletes
what it lists finds the next page.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec
from msgspec import Struct

from slipring.core.chain import item_ids
from slipring.core.chain.state import ResponseState
from slipring.core.turn.turn import Joined
from slipring.protocol import wire
from slipring.protocol.items.items import Item, with_id
from slipring.stores.databases.database import (
    Database,
    OutcomeUnknown,
    RequiredRowMissing,
    Row,
    Statement,
    UniqueViolated,
    until_known,
)
from slipring.stores.pictures import (
    Detached,
    Pictures,
    in_thread_if_large,
    prepare,
    prepare_large,
    unpack_one,
    used_by_item,
)
from slipring.stores.pruning import Expiry


class Conversation(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str] = {}


class Thread(Struct, frozen=True):
    """A conversation at the start of a turn: the response to continue from, and the items added after it."""

    conversation: Conversation
    version: int
    """Incremented by every change of the items."""
    tip: str | None
    """The response whose context holds all items except those in ``added``. None: ``added`` has all items."""
    added: tuple[Item, ...]


class Appended(Struct, frozen=True):
    """The items that a finished response adds to its conversation. Every item has an id."""

    conversation_id: str
    version: int
    """The conversation's version when the turn began. If it is unchanged, the response becomes the tip. If
    items were changed meanwhile, the conversation has no tip afterwards."""
    items: tuple[Item, ...]
    spare_ids: dict[int, str] = {}
    """By index: the id that an item gets if the conversation has another one with its own. An item without
    one is not added then."""


class UnknownItem(Exception):
    """The item after which a page begins was never in the list."""


class Page(Struct, frozen=True):
    """The part of a list to return."""

    limit: int = 20
    ascending: bool = False
    after: str | None = None
    """The id of the last item of the previous page."""


_CREATE = """
INSERT INTO slipring_conversations
    (tenant, id, created_at, metadata, version, tip, tip_position, next_position)
VALUES ($1, $2, $3, $4, 0, NULL, 0, $5)
"""
_READ = "SELECT id, created_at, metadata FROM slipring_conversations WHERE tenant = $1 AND id = $2"
_UPDATE = """
UPDATE slipring_conversations SET metadata = $3 WHERE tenant = $1 AND id = $2
RETURNING id, created_at, metadata
"""
_DELETE = "DELETE FROM slipring_conversations WHERE tenant = $1 AND id = $2 RETURNING id"
# Takes the lock that every change takes, and changes nothing.
_LOCK = "UPDATE slipring_conversations SET version = version WHERE tenant = $1 AND id = $2"
_IS_NEW_ITEM = """
SELECT 1 WHERE NOT EXISTS (
    SELECT 1 FROM slipring_conversation_items WHERE tenant = $1 AND conversation_id = $2 AND id = $3
)
"""
_GROW = """
UPDATE slipring_conversations SET version = version + 1, next_position = next_position + $3
WHERE tenant = $1 AND id = $2
RETURNING id
"""
_ADVANCE = """
UPDATE slipring_conversations SET
    version = version + 1,
    tip = CASE WHEN version = $3 THEN CAST($4 AS TEXT) ELSE NULL END,
    tip_position = next_position + $5,
    next_position = next_position + $5
WHERE tenant = $1 AND id = $2
"""
# Positions are counted back from the next free one, which the preceding update has moved. An item whose id
# exists already is skipped: an item that a response repeats must not make the whole write fail.
_INSERT_ITEM = """
INSERT INTO slipring_conversation_items (tenant, conversation_id, position, id, data)
SELECT tenant, id, next_position - $3, CAST($4 AS TEXT), CAST($5 AS BYTEA)
FROM slipring_conversations WHERE tenant = $1 AND id = $2
ON CONFLICT DO NOTHING
"""
# The same for an item that has a spare id.
_INSERT_SPARED_ITEM = """
INSERT INTO slipring_conversation_items (tenant, conversation_id, position, id, data)
SELECT tenant, id, next_position - $3, CASE WHEN EXISTS (
    SELECT 1 FROM slipring_conversation_items AS other
    WHERE other.tenant = $1 AND other.conversation_id = $2 AND other.id = CAST($4 AS TEXT)
) THEN CAST($6 AS TEXT) ELSE CAST($4 AS TEXT) END, CAST($5 AS BYTEA)
FROM slipring_conversations WHERE tenant = $1 AND id = $2
ON CONFLICT DO NOTHING
"""
_FIND_ITEM = "SELECT DISTINCT data FROM slipring_conversation_items WHERE id = $1 AND tenant = $2 LIMIT 2"
_READ_ITEM = """
SELECT data FROM slipring_conversation_items
WHERE tenant = $1 AND conversation_id = $2 AND id = $3
"""
_ALL_ITEMS = """
SELECT id, data FROM slipring_conversation_items WHERE tenant = $1 AND conversation_id = $2 ORDER BY position
"""
# One row without data means that the conversation exists and the page is empty.
_PAGE = """
SELECT items.id, items.data FROM slipring_conversations AS conversation
LEFT JOIN slipring_conversation_items AS items
    ON items.tenant = conversation.tenant AND items.conversation_id = conversation.id
    AND items.position {beyond} $3
WHERE conversation.tenant = $1 AND conversation.id = $2
ORDER BY items.position {order} LIMIT $4
"""
_PAGE_UP, _PAGE_DOWN = _PAGE.format(beyond=">", order="ASC"), _PAGE.format(beyond="<", order="DESC")
_FIRST, _LAST = -1, 2**62
_THREAD = """
SELECT conversation.id, conversation.created_at, conversation.metadata,
    conversation.version, conversation.tip, items.id, items.data
FROM slipring_conversations AS conversation
LEFT JOIN slipring_conversation_items AS items
    ON items.tenant = conversation.tenant AND items.conversation_id = conversation.id
    AND (conversation.tip IS NULL OR items.position >= conversation.tip_position)
WHERE conversation.tenant = $1 AND conversation.id = $2
ORDER BY items.position
"""
_DETACH_ITEM = """
UPDATE slipring_conversations SET
    version = version + 1,
    tip = CASE WHEN tip_position > (
        SELECT position FROM slipring_conversation_items
        WHERE tenant = $1 AND conversation_id = $2 AND id = $3
    ) THEN NULL ELSE tip END
WHERE tenant = $1 AND id = $2 AND EXISTS (
    SELECT 1 FROM slipring_conversation_items WHERE tenant = $1 AND conversation_id = $2 AND id = $3
)
"""
_KEEP_POSITION = """
INSERT INTO slipring_deleted_items (tenant, conversation_id, id, position, expires_at)
SELECT tenant, conversation_id, id, position, CAST($4 AS BIGINT) FROM slipring_conversation_items
WHERE tenant = $1 AND conversation_id = $2 AND id = $3
ON CONFLICT (tenant, conversation_id, id) DO UPDATE SET
    position = excluded.position, expires_at = excluded.expires_at
"""
_POSITION = """
SELECT position FROM slipring_conversation_items WHERE tenant = $1 AND conversation_id = $2 AND id = $3
UNION ALL
SELECT position FROM slipring_deleted_items WHERE tenant = $1 AND conversation_id = $2 AND id = $3
ORDER BY position DESC LIMIT 1
"""
_POSITIONS_KEPT_S = 86_400
"""How long the position of a deleted item is kept: longer than any client pages through a list."""
_DELETE_ITEM = """
DELETE FROM slipring_conversation_items WHERE tenant = $1 AND conversation_id = $2 AND id = $3
RETURNING id
"""

_metadata = msgspec.json.Decoder(dict[str, str])


def append_statements(
    tenant: str, response_id: str, appended: Appended, detached: Detached
) -> list[Statement]:
    """Return the statements that add a response's items to its conversation, for use in a larger write.
    ``detached`` gets their pictures."""
    args = (tenant, appended.conversation_id, appended.version, response_id, len(appended.items))
    inserts = _insert(tenant, appended.conversation_id, appended.items, detached, appended.spare_ids)
    return [Statement(_ADVANCE, args), *inserts]


def _unless_appended(tenant: str, response_id: str, appended: Appended) -> list[Statement]:
    """Return statements that roll back the write they begin if the conversation has a response's own items.

    The first one waits for another transaction that changes the conversation, so the second one sees its
    outcome. Without items of its own, a response adds nothing that could be there twice.
    """
    key = (tenant, appended.conversation_id)
    for item in reversed(appended.items):
        place = item_ids.place_of(item.id or "")
        if place is not None and place.response_id == response_id:
            return [Statement(_LOCK, key), Statement(_IS_NEW_ITEM, (*key, item.id), requires_row=True)]
    return []


def _insert(
    tenant: str,
    conversation_id: str,
    items: Sequence[Item],
    detached: Detached,
    spare_ids: Mapping[int, str] = MappingProxyType({}),
) -> list[Statement]:
    statements, uses = [], []
    for number, item in enumerate(items):
        own = Detached()
        args = (tenant, conversation_id, len(items) - number, item.id, own.pack_one(item))
        spare = spare_ids.get(number)
        uses += used_by_item(tenant, conversation_id, (item.id, spare), own)
        detached.found |= own.found
        statements.append(
            Statement(_INSERT_ITEM, args) if spare is None else Statement(_INSERT_SPARED_ITEM, (*args, spare))
        )
    return statements + uses


def _read(row: Row) -> Conversation:
    return Conversation(id=row[0], created_at=row[1], metadata=_metadata.decode(row[2]))


class Conversations:
    def __init__(self, database: Database, expiry: Expiry, pictures: Pictures) -> None:
        self._database = database
        self._expiry = expiry
        self._pictures = pictures

    async def create(self, tenant: str, conversation: Conversation, items: Sequence[Item]) -> None:
        """Create a conversation with these items, each of which must have an id."""
        metadata = wire.encode(conversation.metadata)
        args = (tenant, conversation.id, conversation.created_at, metadata, len(items))
        detached = Detached()
        statements = [Statement(_CREATE, args), *_insert(tenant, conversation.id, items, detached)]
        try:
            await self._pictures.write(tenant, detached, *statements)
        except OutcomeUnknown:

            async def again() -> None:
                # The id is this request's own. The insert waits for an attempt that is still committing.
                with suppress(UniqueViolated):
                    await self._pictures.write(tenant, detached, *statements)

            await until_known(again, "whether the conversation is stored")

    async def read(self, tenant: str, conversation_id: str) -> Conversation | None:
        rows = await self._database.read(_READ, tenant, conversation_id)
        return _read(rows[0]) if rows else None

    async def update(
        self, tenant: str, conversation_id: str, metadata: dict[str, str]
    ) -> Conversation | None:
        """Replace the metadata; return the conversation as it is now. None: there is no such conversation."""
        args = (tenant, conversation_id, wire.encode(metadata))
        (rows,) = await self._database.write(Statement(_UPDATE, args))
        return _read(rows[0]) if rows else None

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation with all its items. False: there was none."""
        (rows,) = await self._database.write(Statement(_DELETE, (tenant, conversation_id)))
        return bool(rows)

    async def add(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> bool:
        """Add items to the end. False: there is no such conversation."""
        grow, detached = Statement(_GROW, (tenant, conversation_id, len(items))), Detached()
        inserts = _insert(tenant, conversation_id, items, detached)

        async def write() -> bool:
            grown, *_ = await self._pictures.write(tenant, detached, grow, *inserts)
            return bool(grown)

        try:
            return await write()
        except OutcomeUnknown:
            # Items that are there already are skipped. The version grows once more than there are changes, so
            # at worst the conversation loses its tip, and the next turn reads all items.
            return await until_known(write, "whether the conversation has the items")

    async def append(self, tenant: str, response_id: str, appended: Appended) -> None:
        """Add the items of a response that is not stored. Does nothing if the conversation was deleted."""
        await prepare_large(appended.items)
        detached = Detached()
        statements = append_statements(tenant, response_id, appended, detached)
        try:
            await self._pictures.write(tenant, detached, *statements)
        except OutcomeUnknown:
            guards = _unless_appended(tenant, response_id, appended)
            if not guards:
                # What the first attempt has added must not be added by its spare id.
                once = msgspec.structs.replace(appended, spare_ids={})
                statements = append_statements(tenant, response_id, once, detached)

            async def again() -> None:
                with suppress(RequiredRowMissing):
                    await self._pictures.write(tenant, detached, *guards, *statements)

            await until_known(again, "whether the conversation has the response's items")

    async def items(self, tenant: str, conversation_id: str, page: Page) -> tuple[list[Item], bool] | None:
        """Return a page of items, and whether more follow. None: there is no such conversation.

        ``after`` may name an item that has been deleted since. Raises ``UnknownItem`` if the conversation
        never had it.
        """
        cursor = _FIRST if page.ascending else _LAST
        if page.after is not None:
            rows = await self._database.read(_POSITION, tenant, conversation_id, page.after)
            if not rows:
                if await self.read(tenant, conversation_id) is None:
                    return None
                raise UnknownItem(page.after)
            cursor = rows[0][0]
        sql = _PAGE_UP if page.ascending else _PAGE_DOWN
        rows = await self._database.read(sql, tenant, conversation_id, cursor, page.limit + 1)
        if not rows:
            return None
        items = await self._unpacked(tenant, [row for row in rows if row[1] is not None])
        return items[: page.limit], len(items) > page.limit

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> Item | None:
        rows = await self._database.read(_READ_ITEM, tenant, conversation_id, item_id)
        items = await self._unpacked(tenant, [(item_id, data) for (data,) in rows])
        return items[0] if items else None

    async def find_items(self, tenant: str, item_id: str) -> list[Item]:
        """Return the items with this id in any of the tenant's conversations: each once, and two at most."""
        rows = await self._database.read(_FIND_ITEM, item_id, tenant)
        return await self._unpacked(tenant, [(item_id, data) for (data,) in rows])

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        args = (tenant, conversation_id, item_id)
        _, _, deleted = await self._database.write(
            Statement(_DETACH_ITEM, args),
            Statement(_KEEP_POSITION, (*args, self._expiry.now() + _POSITIONS_KEPT_S)),
            Statement(_DELETE_ITEM, args),
        )
        return bool(deleted)

    async def thread(self, tenant: str, conversation_id: str) -> Thread | None:
        """Return what a turn needs to continue the conversation. None: there is no such conversation."""
        rows = await self._database.read(_THREAD, tenant, conversation_id)
        if not rows:
            return None
        version, tip = rows[0][3:5]
        added = await self._unpacked(tenant, [row[-2:] for row in rows if row[-1] is not None])
        return Thread(conversation=_read(rows[0]), version=version, tip=tip, added=tuple(added))

    async def all_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """Return all items, oldest first: needed when the tip cannot be loaded any more."""
        rows = await self._database.read(_ALL_ITEMS, tenant, conversation_id)
        return tuple(await self._unpacked(tenant, rows))

    async def _unpacked(self, tenant: str, rows: Sequence[Row]) -> list[Item]:
        """Decode items by their ids and data. An item has its spare id if another one has its own."""
        pictures = await self._pictures.read(tenant, (data for _, data in rows))
        return await in_thread_if_large(pictures, _unpack_rows, rows, pictures)


def _unpack_rows(rows: Sequence[Row], pictures: Mapping[bytes, bytes]) -> list[Item]:
    items = [with_id(unpack_one(data, pictures), item_id) for item_id, data in rows]
    prepare(items)
    return items


def appended_by(joined: Joined, state: ResponseState) -> Appended:
    """The items that a response adds to its conversation, each with an id: the one that it was sent with, if
    the conversation does not have another item with it."""
    known = len(joined.items)
    added: list[Item] = []
    spare_ids: dict[int, str] = {}
    for index, item in enumerate(state.input[known:], known):
        own_id = item_ids.place_id(item, state.id, index)
        if item.id is not None:
            spare_ids[len(added)] = own_id
        added.append(with_id(item, item.id or own_id))
    return Appended(joined.conversation_id, joined.version, (*added, *state.output), spare_ids)


def since_compaction(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items of a conversation from the last compaction that a response made: it replaces all before."""
    for index in range(len(items) - 1, -1, -1):
        place = item_ids.place_of(items[index].id or "")
        if items[index].type == "compaction" and place is not None and not place.of_input:
            return items[index:]
    return items
