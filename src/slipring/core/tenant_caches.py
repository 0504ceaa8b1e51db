"""Caches of what tenants used lately, bounded in bytes: which entry of which tenant is dropped.

Tenants do not share entries: otherwise the response time would reveal what another tenant has sent. Past the
bound, the tenant that uses the most bytes loses the entry that it used longest ago: no tenant loses what it
has used lately because another tenant uses much. ``TimedEntries`` also drops what was not used for long;
``TenantCache`` keeps results of work, of which one tenant may use an eighth.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import ClassVar, Generic, TypeVar

from slipring.core.byte_ledger import Ledger

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_ROOM_FRACTION = 64
"""Past the bound, one part in this many of it is made free. A look at all tenants takes a millisecond for
some thousands of them, which a full cache would need with every request."""
_TENANT_FRACTION = 8
"""The results of a tenant may fill one part in this many of a ``TenantCache``."""
_RESULT_BYTES = 500
"""What an entry of a ``TenantCache`` uses besides its result."""
CacheKey = tuple[str, bytes]
"""A tenant and the digest of what it has sent."""


class TenantEntries(ABC, Generic[K, V]):
    """The entries of all tenants of a process. A subclass says what an entry is, and how many bytes it uses:
    ``_hold`` and ``_release``."""

    __slots__ = ("_by_tenant", "_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._by_tenant: dict[str, OrderedDict[K, V]] = {}
        """Per tenant by key, the one used longest ago first. Tenants without entries are not in it."""

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    @property
    def limit_bytes(self) -> int:
        return self._bytes.limit_bytes

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def _drop_all(self, tenant: str) -> None:
        """Drop all entries of a tenant."""
        for key in list(self._by_tenant.get(tenant, ())):
            self._drop(tenant, key)

    @abstractmethod
    def _hold(self, tenant: str, value: V) -> int:
        """An entry was added. Returns how many bytes more are in use."""

    @abstractmethod
    def _release(self, tenant: str, value: V) -> int:
        """An entry was dropped. Returns how many bytes fewer are in use: once a tenant has no entries left,
        as many as ``_hold`` has returned for it."""

    def _find(self, tenant: str, key: K) -> V | None:
        """The entry of a tenant with this key, used now."""
        entries = self._by_tenant.get(tenant)
        if entries is None or key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key]

    def _keep(self, tenant: str, added: Mapping[K, V]) -> None:
        """Keep entries, at least one. Those that the tenant has already stay as they are, used now."""
        entries = self._by_tenant.get(tenant)
        if entries is None:
            entries = self._by_tenant[tenant] = OrderedDict()
        gained = 0
        for key, value in added.items():
            if key in entries:
                entries.move_to_end(key)
            else:
                entries[key] = value
                gained += self._hold(tenant, value)
        if gained:
            self._bytes.add(tenant, gained)
            if not self._bytes.fits(0):
                self._shrink(self.limit_bytes // _ROOM_FRACTION)

    def _shrink(self, room_bytes: int) -> None:
        """Drop entries until the bound is kept again, with so much room."""
        used = [(-size_bytes, tenant) for tenant, size_bytes in self._bytes.by_tenant()]
        heapify(used)
        while not self._bytes.fits(room_bytes):
            _, largest = used[0]
            self._drop(largest, next(iter(self._by_tenant[largest])))
            if left := self._bytes.used_by(largest):
                heapreplace(used, (-left, largest))
            else:
                heappop(used)

    def _drop(self, tenant: str, key: K) -> None:
        entries = self._by_tenant[tenant]
        value = entries.pop(key)
        if not entries:
            del self._by_tenant[tenant]
        if freed := self._release(tenant, value):
            self._bytes.remove(tenant, freed)


class TimedEntries(TenantEntries[K, V]):
    """Entries that are also dropped when they were not used for long. Past the bound, entries that no tenant
    has used for a while are dropped first, of whichever tenant they are."""

    __slots__ = ("_duration_s", "_now", "_until")

    spared_s: ClassVar[float] = 600.0
    """So long after its last use, an entry is dropped only if its tenant uses the most."""

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        """With a duration or a limit of 0, nothing is ever kept."""
        super().__init__(limit_bytes)
        self._duration_s = duration_s
        self._now = 0.0
        """When an entry was last added."""
        self._until: dict[str, dict[K, float]] = {}
        """Per tenant by key: when an entry is dropped, unless it is used before."""

    @property
    def is_on(self) -> bool:
        """Whether entries are kept at all."""
        return bool(self._duration_s and self._bytes.limit_bytes)

    def sweep(self, now: float) -> None:
        """Drop the entries whose time is over."""
        for tenant, until in list(self._until.items()):
            while until and self._oldest_end(tenant) <= now:
                self._drop(tenant, next(iter(self._by_tenant[tenant])))

    def forget(self, tenant: str) -> None:
        """Drop all entries of a tenant."""
        self._until.pop(tenant, None)
        entries = self._by_tenant.pop(tenant, None)
        if entries is not None:
            self._bytes.remove(tenant, sum(self._release(tenant, value) for value in entries.values()))

    def _renew(self, tenant: str, key: K, now: float) -> None:
        """Keep an entry that the tenant has for longer."""
        self._by_tenant[tenant].move_to_end(key)
        self._until[tenant][key] = now + self._duration_s

    def _keep_until(self, tenant: str, added: Mapping[K, V], now: float) -> None:
        """Keep entries, at least one, or keep them for longer."""
        until = self._until.get(tenant)
        if until is None:
            until = self._until[tenant] = {}
        self._now = now
        until.update(dict.fromkeys(added, now + self._duration_s))
        self._keep(tenant, added)

    def _shrink(self, room_bytes: int) -> None:
        spared = self._now + self._duration_s - self.spared_s
        ends = [(self._oldest_end(tenant), tenant) for tenant in self._until]
        heapify(ends)
        while ends and ends[0][0] <= spared and not self._bytes.fits(room_bytes):
            tenant = ends[0][1]
            self._drop(tenant, next(iter(self._by_tenant[tenant])))
            if tenant in self._until:
                heapreplace(ends, (self._oldest_end(tenant), tenant))
            else:
                heappop(ends)
        super()._shrink(room_bytes)

    def _oldest_end(self, tenant: str) -> float:
        """When the entry ends that a tenant has used longest ago."""
        return self._until[tenant][next(iter(self._by_tenant[tenant]))]

    def _drop(self, tenant: str, key: K) -> None:
        super()._drop(tenant, key)
        until = self._until[tenant]
        del until[key]
        if not until:
            del self._until[tenant]


class TenantCache(TenantEntries[bytes, tuple[V, int]]):
    """Results of work on what tenants have sent, with their sizes."""

    __slots__ = ()

    def find(self, key: CacheKey) -> V | None:
        found = self._find(*key)
        return found[0] if found is not None else None

    def put(self, key: CacheKey, result: V, size_bytes: int) -> None:
        """Store a result of this size, unless it exceeds the share of its tenant."""
        (tenant, digest), share = key, self.limit_bytes // _TENANT_FRACTION
        if size_bytes + _RESULT_BYTES > share:
            return
        if digest in self._by_tenant.get(tenant, ()):
            self._drop(tenant, digest)
        self._keep(tenant, {digest: (result, size_bytes + _RESULT_BYTES)})
        while self._bytes.used_by(tenant) > share:
            self._drop(tenant, next(iter(self._by_tenant[tenant])))

    def forget(self, tenant: str) -> None:
        """Drop all results of a tenant."""
        self._drop_all(tenant)

    def _hold(self, tenant: str, value: tuple[V, int]) -> int:
        return value[1]

    _release = _hold
