"""Items that tenants sent here lately, so that those of a history that is sent again are decoded once.

Clients that keep no ids send all items with every turn. An item is found by its bytes, and has what was
computed of it before. Items are kept for as long as known contexts, and within a bounded number of bytes.
Past that bound, the tenant that uses the most bytes loses the item that was used longest ago.
"""

from collections.abc import Mapping, Sequence

from slipring.core.tenant_entries import TimedEntries
from slipring.protocol.items import NONE_KNOWN, Item

_ENTRY_BYTES = 200
"""The entries of an item here, about 100 bytes, and what is computed only of items without a parent."""


class KnownItems(TimedEntries[bytes, Item]):
    """The known items of all tenants of a process, by the bytes that were sent."""

    __slots__ = ()

    def of(self, tenant: str) -> Mapping[bytes, Item]:
        """The items of a tenant by their bytes. May be read in another thread."""
        return self._by_tenant.get(tenant, NONE_KNOWN)

    def remember(self, tenant: str, items: Sequence[Item], now: float) -> None:
        """Keep items, or keep them for longer."""
        if items and self.is_on:
            self._keep_until(tenant, {item.sent: item for item in items}, now)

    def _hold(self, tenant: str, value: Item) -> int:
        sent = value.sent
        return value.size_bytes + (0 if sent is value.raw else len(sent)) + _ENTRY_BYTES

    _release = _hold
