"""Bytes in use, counted per tenant and over all tenants, with a bound on each.

One ledger is one kind of memory, such as the bytes of requests. Whoever takes bytes removes them when it is
done. A tenant that uses nothing has no entry, so a ledger is as large as the number of tenants at work.
"""


class Ledger:
    """The bytes that every tenant uses of one kind of memory."""

    __slots__ = ("_by_tenant", "limit_bytes", "removed_bytes", "tenant_limit_bytes", "used_bytes")

    def __init__(self, tenant_limit_bytes: int, limit_bytes: int) -> None:
        self.tenant_limit_bytes = tenant_limit_bytes
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.removed_bytes = 0
        """All that was ever removed."""
        self._by_tenant: dict[str, int] = {}

    def used_by(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)

    def fits_tenant(self, tenant: str, size_bytes: int) -> bool:
        """Whether a tenant stays within its own bound if it takes so many bytes more."""
        return self.used_by(tenant) + size_bytes <= self.tenant_limit_bytes

    def fits(self, size_bytes: int) -> bool:
        """Whether all tenants together stay within their bound if so many bytes more are taken."""
        return self.used_bytes + size_bytes <= self.limit_bytes

    def add(self, tenant: str, size_bytes: int) -> None:
        """Count bytes as used, whether they fit or not."""
        self.used_bytes += size_bytes
        self._by_tenant[tenant] = self.used_by(tenant) + size_bytes

    def remove(self, tenant: str, size_bytes: int) -> None:
        """Count bytes as free again. They must have been added before."""
        left = self._by_tenant[tenant] - size_bytes
        assert left >= 0, "more bytes are removed than were added"
        self.used_bytes -= size_bytes
        self.removed_bytes += size_bytes
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]

    def largest(self) -> str | None:
        """The tenant that uses the most bytes; None where nobody uses any."""
        return max(self._by_tenant, key=self.used_by, default=None)
