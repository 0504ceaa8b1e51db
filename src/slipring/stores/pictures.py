"""Pictures of stored items: kept once for each tenant, whatever number of rows have them.

The base64 of a data URL is taken out of an item before the item is packed into a row, and its digest stands
in its place, between two NUL bytes, which valid JSON has nowhere. It is put back when the row is read: an
item is then what it was, byte for byte. A row that needs pictures has a row in ``slipring_picture_uses`` for
each, which goes with it; a picture that no row uses is pruned.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import structs

from slipring.core.tenant_caches import TenantEntries
from slipring.protocol.items.data_spans import data_spans
from slipring.protocol.items.item_digests import content_digest, item_outline
from slipring.protocol.items.item_pictures import examine
from slipring.protocol.items.items import Item, raw_digest
from slipring.stores.databases.database import Database, ForeignKeyViolated, Row, Statement

T = TypeVar("T")
_SMALL_BYTES = 8 * 1024
LARGE_BYTES = 128 * 1024
"""Items with more data are put together and examined in a thread."""
_PREPARED = {data_spans.__name__, raw_digest.__name__}
_PLACE = re.compile(rb"\x00([0-9a-f]{64})\x00")
_KNOWN_BYTES = 1024 * 1024
_ENTRY_BYTES = 250
_INSERT = """
INSERT INTO slipring_pictures (tenant, digest, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
"""
_USE = """
INSERT INTO slipring_picture_uses (tenant, digest, {holder})
SELECT CAST($1 AS TEXT), CAST($2 AS BYTEA), CAST($3 AS TEXT) WHERE NOT EXISTS (
    SELECT 1 FROM slipring_picture_uses WHERE tenant = $1 AND digest = $2 AND {holder} = $3
)
"""
_USED_BY_RESPONSE = _USE.format(holder="response_id")
_USED_BY_RUN = _USE.format(holder="run_id")
# The item may have been given its spare id, or may have been there before.
_USED_BY_ITEM = """
INSERT INTO slipring_picture_uses (tenant, digest, conversation_id, item_id)
SELECT tenant, CAST($2 AS BYTEA), conversation_id, id FROM slipring_conversation_items
WHERE tenant = $1 AND conversation_id = $3 AND id IN ($4, $5) AND NOT EXISTS (
    SELECT 1 FROM slipring_picture_uses AS uses WHERE uses.tenant = $1 AND uses.digest = $2
        AND uses.conversation_id = $3 AND uses.item_id = slipring_conversation_items.id
)
"""
_READ = "SELECT digest, data FROM slipring_pictures WHERE tenant = $1 AND digest IN ({places})"
_MOST_AT_ONCE = 16

_item = msgspec.msgpack.Decoder(Item)
_items = msgspec.msgpack.Decoder(tuple[Item, ...])
_pack = msgspec.msgpack.Encoder().encode


class Detached:
    """Packs items without their pictures, and has the pictures."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: dict[bytes, memoryview] = {}
        """The base64 of each picture, by its digest."""

    def pack(self, items: Iterable[Item]) -> bytes:
        return _pack(tuple(map(self._without, items)))

    def pack_one(self, item: Item) -> bytes:
        return _pack(self._without(item))

    def _without(self, item: Item) -> Item:
        opened, spans = item.opened, data_spans(item)
        if opened is not None and any(map(data_spans, opened)):
            item = structs.replace(item, opened=tuple(map(self._without, opened)))
        if not spans:
            return item
        pieces, end = [], 0
        for start, stop, digest in spans:
            self.found.setdefault(digest, memoryview(item.raw)[start:stop])
            pieces += [item.raw[end:start], b"\x00", digest.hex().encode(), b"\x00"]
            end = stop
        return structs.replace(item, raw=b"".join((*pieces, item.raw[end:])))


def digests_in(packed: Iterable[bytes]) -> set[bytes]:
    """The digests of the pictures that packed items lack."""
    return {bytes.fromhex(found.decode()) for data in packed for found in _PLACE.findall(data)}


def unpack_one(packed: bytes, pictures: Mapping[bytes, bytes]) -> Item:
    """The item as it was, with these pictures."""
    return _with(_item.decode(packed), pictures)


def unpack(packed: bytes, pictures: Mapping[bytes, bytes]) -> tuple[Item, ...]:
    """The items as they were, with these pictures."""
    items = _items.decode(packed)
    return tuple(_with(item, pictures) for item in items) if b"\x00" in packed else items


def _unpack_all(packed: Sequence[bytes], pictures: Mapping[bytes, bytes]) -> list[tuple[Item, ...]]:
    found = [unpack(each, pictures) for each in packed]
    for items in found:
        prepare(items)
    return found


async def in_thread_if_large(
    pictures: Mapping[bytes, bytes], work: Callable[..., T], *arguments: object
) -> T:
    """Call ``work``, which puts these pictures back where they were: in a thread if they are large."""
    if sum(map(len, pictures.values())) <= LARGE_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def prepare(items: Iterable[Item]) -> None:
    """Examine items as those of large requests are, and what they are opened with. For a thread."""
    for item in items:
        for each in (item, *(item.opened or ())):
            if len(each.raw) > _SMALL_BYTES:
                examine(each)
                content_digest(each)
                item_outline(each)
                raw_digest(each)


async def prepare_large(items: Iterable[Item]) -> None:
    """Examine large items that were not examined yet, in a thread."""
    if unprepared := [item for item in items if _is_unprepared(item)]:
        await asyncio.to_thread(prepare, unprepared)


def _is_unprepared(item: Item) -> bool:
    return any(
        len(each.raw) > LARGE_BYTES and not each.__dict__.keys() >= _PREPARED
        for each in (item, *(item.opened or ()))
    )


def _with(item: Item, pictures: Mapping[bytes, bytes]) -> Item:
    opened = item.opened
    if opened is not None:
        opened = tuple(_with(each, pictures) for each in opened)
    elif b"\x00" not in item.raw:
        return item
    raw = _PLACE.sub(lambda found: pictures[bytes.fromhex(found[1].decode())], item.raw)
    return structs.replace(item, raw=raw, opened=opened)


class _KnownPictures(TenantEntries[bytes, bytes]):
    """The digests of pictures that were stored or read lately."""

    __slots__ = ()

    def has(self, tenant: str, digest: bytes) -> bool:
        return self._find(tenant, digest) is not None

    def add(self, tenant: str, digests: Iterable[bytes]) -> None:
        if added := {digest: digest for digest in digests}:
            self._keep(tenant, added)

    def forget(self, tenant: str, digests: Iterable[bytes]) -> None:
        for digest in digests:
            if self.has(tenant, digest):
                self._drop(tenant, digest)

    def _hold(self, tenant: str, value: bytes) -> int:
        return _ENTRY_BYTES

    _release = _hold


class Pictures:
    """The pictures in one database.

    A picture that is known to be stored is not sent to the database again. If it was pruned meanwhile, the
    row that needs it is refused by a foreign key: the caller then calls ``forget`` and tries again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = _KnownPictures(_KNOWN_BYTES)

    async def read(self, tenant: str, packed: Iterable[bytes]) -> dict[bytes, bytes]:
        """The pictures that packed items lack."""
        wanted = sorted(digests_in(packed))
        found: dict[bytes, bytes] = {}
        for start in range(0, len(wanted), _MOST_AT_ONCE):
            digests = wanted[start : start + _MOST_AT_ONCE]
            # Filled up, so that the database prepares one statement and not one for each number.
            filled = (digests * _MOST_AT_ONCE)[:_MOST_AT_ONCE] if len(digests) > 1 else digests
            places = ", ".join(f"${number}" for number in range(2, len(filled) + 2))
            rows = await self._database.read(_READ.format(places=places), tenant, *filled)
            found |= {bytes(digest): bytes(data) for digest, data in rows}
        self._known.add(tenant, found)
        return found

    async def unpacked(self, tenant: str, packed: Sequence[bytes]) -> list[tuple[Item, ...]]:
        """The items of rows, with their pictures. Large ones are put together in a thread, and examined there
        for what the event loop will look for."""
        pictures = await self.read(tenant, packed)
        return await in_thread_if_large(pictures, _unpack_all, packed, pictures)

    async def write(self, tenant: str, detached: Detached, *statements: Statement) -> list[list[Row]]:
        """Execute statements that use these pictures, and store the pictures before them. Returns the rows of
        the statements, as ``Database.write`` does."""
        for is_last in (not detached.found, True):
            inserts = self.inserts(tenant, detached)
            try:
                rows = await self._database.write(*inserts, *statements)
            except ForeignKeyViolated:
                if is_last:
                    raise
                self.forget(tenant, detached)
                continue
            break
        self.stored(tenant, detached)
        return rows[len(inserts) :]

    def inserts(self, tenant: str, detached: Detached) -> list[Statement]:
        """Statements that store pictures, to be executed before those that use them."""
        return [
            Statement(_INSERT, (tenant, digest, data))
            for digest, data in detached.found.items()
            if not self._known.has(tenant, digest)
        ]

    def stored(self, tenant: str, detached: Detached) -> None:
        """The write that has stored these is committed."""
        self._known.add(tenant, detached.found)

    def forget(self, tenant: str, detached: Detached) -> None:
        """A write was refused: the pictures may not be there any more."""
        self._known.forget(tenant, detached.found)


def used_by_response(tenant: str, response_id: str, detached: Detached) -> list[Statement]:
    return [Statement(_USED_BY_RESPONSE, (tenant, digest, response_id)) for digest in detached.found]


def used_by_run(tenant: str, response_id: str, detached: Detached) -> list[Statement]:
    return [Statement(_USED_BY_RUN, (tenant, digest, response_id)) for digest in detached.found]


def used_by_item(
    tenant: str, conversation_id: str, ids: Sequence[str | None], detached: Detached
) -> list[Statement]:
    """``ids``: that of an item, and its spare one."""
    return [Statement(_USED_BY_ITEM, (tenant, digest, conversation_id, *ids)) for digest in detached.found]
