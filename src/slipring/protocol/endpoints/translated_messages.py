"""Pieces of a history that a client of another API sends again with every turn, and the items that they
have become.

A piece is one message. It is known by its exact bytes, so that a message that is sent again is neither
decoded nor translated a second time.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from slipring.protocol import wire
from slipring.protocol.items import MOST_ITEMS, Item, read_items

_OBJECT_BYTES = 400
"""A piece without its bytes and its items."""


class Piece(Struct, eq=False):
    """One message, and the items that it has become."""

    sent: bytes
    """The message as the client has sent it, after the name of its API. Items are known by their own bytes,
    which begin otherwise."""
    json: tuple[bytes, ...]
    """The items as JSON."""
    note: Any
    """What the translator of its API has to know of the message beside its items."""
    items: tuple[Item, ...] | None = None
    """None until they are read."""

    @property
    def size_bytes(self) -> int:
        """Memory in use. The JSON is that of the items."""
        return len(self.sent) + sum(item.size_bytes for item in self.items or ()) + _OBJECT_BYTES


Known = Mapping[bytes, Item | Piece]
"""What a tenant has sent before, by its bytes."""
NOTHING_KNOWN: Known = {}


def read_pieces(pieces: Iterable[Piece]) -> tuple[Item, ...]:
    """The items of all pieces; those that were read before are not read again. Raises ``ApiError`` that names
    an item by its place among all."""
    found: list[Item] = []
    for piece in pieces:
        items = piece.items
        if items is None:
            items = piece.items = read_items(piece.json, first=len(found))
        found += items
    if len(found) > MOST_ITEMS:
        raise wire.too_many(MOST_ITEMS, "input", "items")
    return tuple(found)
