"""Caches of results of work on what tenants have sent, of which one tenant may use an eighth."""

from typing import TypeVar

from slipring.core.tenant_entries import TenantEntries

V = TypeVar("V")
_TENANT_FRACTION = 8
"""The results of a tenant may fill one part in this many of a cache."""
_RESULT_BYTES = 500
"""What an entry of a cache uses besides its result."""
CacheKey = tuple[str, bytes]
"""A tenant and the digest of what it has sent."""


class TenantCache(TenantEntries[bytes, tuple[V, int]]):
    """Results of work on what tenants have sent, with their sizes. Not shared: otherwise the response time
    would reveal what another tenant has sent."""

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
