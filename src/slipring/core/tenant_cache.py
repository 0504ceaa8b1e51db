"""A cache of results of work on what tenants have sent.

Tenants do not share entries: otherwise the response time would reveal what another tenant has sent.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")
_TENANT_FRACTION = 8
"""A tenant may fill one part in this many."""
_ENTRY_BYTES = 500
"""Overhead of an entry."""

Key = tuple[str, bytes]
"""A tenant and the digest of what it has sent."""


class TenantCache(Generic[T]):
    """LRU cache, bounded in bytes in total and per tenant."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[Key, tuple[T, int]] = OrderedDict()
        self._tenants: dict[str, OrderedDict[Key, int]] = {}
        self._tenant_bytes: dict[str, int] = {}
        self.used_bytes = 0

    def find(self, key: Key) -> T | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        self._tenants[key[0]].move_to_end(key)
        return found[0]

    def put(self, key: Key, result: T, size_bytes: int) -> None:
        """Store a result of this size, unless it exceeds the share of its tenant."""
        size_bytes += _ENTRY_BYTES
        share = self.max_bytes // _TENANT_FRACTION
        if size_bytes > share:
            return
        self._drop(key)
        tenant = key[0]
        self._entries[key] = result, size_bytes
        self._tenants.setdefault(tenant, OrderedDict())[key] = size_bytes
        self._charge(tenant, size_bytes)
        while self._tenant_bytes[tenant] > share:
            self._drop(next(iter(self._tenants[tenant])))
        while self.used_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        found = self._entries.pop(key, None)
        if found is None:
            return
        tenant = key[0]
        del self._tenants[tenant][key]
        self._charge(tenant, -found[1])
        if not self._tenants[tenant]:
            del self._tenants[tenant], self._tenant_bytes[tenant]

    def _charge(self, tenant: str, size_bytes: int) -> None:
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + size_bytes
        self.used_bytes += size_bytes
