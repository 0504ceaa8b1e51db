"""What tenants sent here lately, so that a history that is sent again is decoded once.

Clients that keep no ids send all items with every turn, or all messages that become items. An item or a
message is found by its bytes, and has what was computed of it before. They are kept for as long as known
contexts, and within a bounded number of bytes. Past that bound, the tenant that uses the most bytes loses
what was used longest ago.
"""

from slipring.core.tenant_entries import TimedEntries
from slipring.protocol.endpoints.resent_messages import NOTHING_KNOWN, Known, Piece
from slipring.protocol.items import Item

_ENTRY_BYTES = 200
"""The entries of an item here, about 100 bytes, and what is computed only of items without a parent."""


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
            return value.size_bytes + _ENTRY_BYTES
        sent = value.sent
        return value.size_bytes + (0 if sent is value.raw else len(sent)) + _ENTRY_BYTES

    _release = _hold
