"""Single items that clients sent lately, so that one which comes again is neither decoded nor read again."""

from slipring.core.tenant_entries import TimedEntries
from slipring.protocol.endpoints.translated_messages import NOTHING_KNOWN, Known, Piece
from slipring.protocol.items import Item

_ITEM_BYTES = 200
"""The entries of a known item, about 100 bytes, and what is computed only of items without a parent."""


class KnownItems(TimedEntries[bytes, Item | Piece]):
    """The known items and messages of all tenants of a process, by the bytes that were sent."""

    __slots__ = ()

    def of(self, tenant: str) -> Known:
        """What a tenant has sent, by its bytes. May be read in another thread."""
        return self._by_tenant.get(tenant, NOTHING_KNOWN)

    def remember(self, tenant: str, pieces: Known, now: float) -> None:
        """Keep what a request consists of, or keep it for longer."""
        if pieces and self.is_on:
            self._keep_until(tenant, pieces, now)

    def _hold(self, tenant: str, value: Item | Piece) -> int:
        if isinstance(value, Piece):
            return value.size_bytes + _ITEM_BYTES
        sent = value.sent
        return value.size_bytes + (0 if sent is value.raw else len(sent)) + _ITEM_BYTES

    _release = _hold
