"""Items that clients keep encrypted: opens them where input is added, and refuses those that were changed or
belong to another tenant. Encryption needs keys and randomness, so it is injected as a ``Seal``.
"""

from typing import Protocol

from slipring.base.errors import InvalidEncryptedContent
from slipring.protocol.items.items import Compaction, Item, Reasoning, opened_with

TYPES = frozenset({"compaction", "compaction_summary", "reasoning"})
"""Types of items that may be sealed."""


class BrokenSeal(Exception):
    """The blob was made by another server, for another tenant, or was modified."""


class Seal(Protocol):
    """Encrypts items for a tenant, and decrypts them."""

    def seal(self, tenant: str, items: tuple[Item, ...]) -> str: ...

    def open(self, tenant: str, blob: str) -> tuple[Item, ...]:
        """The items that were sealed for this tenant. Raises ``BrokenSeal``."""

    def tag(self, tenant: str, data: bytes) -> str:
        """A text of letters and digits that only this server can make for this data and tenant."""

    def verify(self, tenant: str, data: bytes, tag: str) -> bool:
        """Whether ``tag`` was made for this data and tenant."""


def opened(items: tuple[Item, ...], seal: Seal, tenant: str, where: str = "input") -> tuple[Item, ...]:
    """Decrypt the sealed items that are not open yet. Raises ``InvalidEncryptedContent``, with a param below
    ``where``."""
    return tuple(_open(item, seal, tenant, f"{where}[{index}]") for index, item in enumerate(items))


def _blob(item: Item) -> str | None:
    if item.opened is not None or item.type not in TYPES:
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
        content = seal.open(tenant, blob)
    except BrokenSeal:
        raise InvalidEncryptedContent(f"{where}.encrypted_content") from None
    if item.type == "reasoning" and [each.type for each in content] != ["reasoning"]:
        raise InvalidEncryptedContent(f"{where}.encrypted_content")
    return opened_with(item, content)
