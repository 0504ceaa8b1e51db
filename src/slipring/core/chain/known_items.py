"""Items that tenants sent here lately, so that those of a history that is sent again are decoded once.

Clients that keep no ids send all items with every turn. An item is found by its bytes, and has what was
computed of it before. Items are kept for as long as known contexts, and within a bounded number of bytes.
Past that bound, the tenant that uses the most bytes loses the item that was used longest ago.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from slipring.core.byte_ledger import Ledger
from slipring.protocol.items import NONE_KNOWN, Item

_ITEM_BYTES = 700
"""What is computed of an item, and its entries here."""


class _TenantItems:
    """The items of one tenant, with when each is forgotten; the one used longest ago first."""

    __slots__ = ("by_raw", "until")

    def __init__(self) -> None:
        self.by_raw: dict[bytes, Item] = {}
        self.until: OrderedDict[bytes, float] = OrderedDict()


class KnownItems:
    """The known items of all tenants of a process."""

    __slots__ = ("_by_tenant", "_bytes", "_duration_s")

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        """With a duration or a limit of 0, no item is ever known."""
        self._duration_s = duration_s
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._by_tenant: dict[str, _TenantItems] = {}

    @property
    def limit_bytes(self) -> int:
        return self._bytes.limit_bytes

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def of(self, tenant: str) -> Mapping[bytes, Item]:
        """The items of a tenant by their bytes. May be read in another thread."""
        items = self._by_tenant.get(tenant)
        return items.by_raw if items is not None else NONE_KNOWN

    def remember(self, tenant: str, items: Sequence[Item], now: float) -> None:
        """Keep items, or keep them for longer."""
        if not items or not self._duration_s or not self._bytes.limit_bytes:
            return
        kept = self._by_tenant.setdefault(tenant, _TenantItems())
        by_raw, until, ends_at, added_bytes = kept.by_raw, kept.until, now + self._duration_s, 0
        for item in items:
            raw = item.sent
            if raw not in by_raw:
                by_raw[raw] = item
                added_bytes += _size(item)
            until[raw] = ends_at
            until.move_to_end(raw)
        self._bytes.add(tenant, added_bytes)
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self._drop_oldest(largest)

    def forget(self, tenant: str) -> None:
        """Drop the items of a tenant."""
        if self._by_tenant.pop(tenant, None) is not None:
            self._bytes.remove(tenant, self._bytes.used_by(tenant))

    def sweep(self, now: float) -> None:
        """Drop the items whose time is over."""
        for tenant in list(self._by_tenant):
            while (items := self._by_tenant.get(tenant)) and next(iter(items.until.values())) <= now:
                self._drop_oldest(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        items = self._by_tenant[tenant]
        raw, _ = items.until.popitem(last=False)
        self._bytes.remove(tenant, _size(items.by_raw.pop(raw)))
        if not items.until:
            del self._by_tenant[tenant]


def _size(item: Item) -> int:
    more = 0 if item.sent is item.raw else len(item.sent)
    return item.size_bytes + more + _ITEM_BYTES
