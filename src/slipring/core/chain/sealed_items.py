"""Sealed items: content that clients keep for us and cannot read.

Owns which items are sealed and what they stand for once opened. How a seal is made is somebody else's
business: it takes a key and random numbers, and neither belongs here.
"""

from typing import Protocol

from msgspec import structs

from slipring.errors import InvalidEncryptedContent
from slipring.protocol.items import Compaction, Item, Reasoning


class BrokenSeal(Exception):
    """A blob that was not made here, not for this tenant, or is not as it was."""


class Seal(Protocol):
    """Turns items into text that only we can read, and back."""

    def seal(self, tenant: str, items: tuple[Item, ...]) -> str: ...

    def open(self, tenant: str, blob: str) -> tuple[Item, ...]:
        """The very items that were sealed for this tenant; raises ``BrokenSeal``."""


def opened(items: tuple[Item, ...], seal: Seal, tenant: str, where: str = "input") -> tuple[Item, ...]:
    """Open the items that are sealed and have not been opened yet; errors name a place in ``where``."""
    if all(_blob(item) is None for item in items):
        return items
    return tuple(_open(item, seal, tenant, f"{where}[{index}]") for index, item in enumerate(items))


def _blob(item: Item) -> str | None:
    if item.opened is not None or item.type not in ("compaction", "compaction_summary", "reasoning"):
        return None
    body = item.body()
    if isinstance(body, Compaction):
        return body.encrypted_content
    assert isinstance(body, Reasoning)
    return body.encrypted_content or None


def _open(item: Item, seal: Seal, tenant: str, where: str) -> Item:
    blob = _blob(item)
    if blob is None:
        return item
    try:
        meant = seal.open(tenant, blob)
    except BrokenSeal:
        raise InvalidEncryptedContent(f"{where}.encrypted_content") from None
    if item.type == "reasoning" and [each.type for each in meant] != ["reasoning"]:
        raise InvalidEncryptedContent(f"{where}.encrypted_content")
    return structs.replace(item, opened=meant)
