"""Counts bytes in use per tenant and in total, with a bound on each.

One ledger counts one kind of memory, such as the bytes of requests. Callers add bytes and remove them when
they are done. Tenants without bytes have no entry, so a ledger's size is the number of active tenants.
"""

from collections.abc import ItemsView


class Ledger:
    """Bytes in use of one kind of memory, by tenant."""

    __slots__ = ("_by_tenant", "limit_bytes", "removed_bytes", "tenant_limit_bytes", "used_bytes")

    def __init__(self, tenant_limit_bytes: int, limit_bytes: int) -> None:
        self.tenant_limit_bytes = tenant_limit_bytes
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.removed_bytes = 0
        """Total of all bytes ever removed."""
        self._by_tenant: dict[str, int] = {}

    def used_by(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)

    def fits_tenant(self, tenant: str, size_bytes: int) -> bool:
        """Whether the tenant stays within its bound with this many more bytes."""
        return self.used_by(tenant) + size_bytes <= self.tenant_limit_bytes

    def fits(self, size_bytes: int) -> bool:
        """Whether the total stays within its bound with this many more bytes."""
        return self.used_bytes + size_bytes <= self.limit_bytes

    def add(self, tenant: str, size_bytes: int) -> None:
        """Count bytes as used. Does not check the bounds."""
        self.used_bytes += size_bytes
        self._by_tenant[tenant] = self.used_by(tenant) + size_bytes

    def remove(self, tenant: str, size_bytes: int) -> None:
        """Count bytes as free again. The tenant must have added them before."""
        left = self._by_tenant[tenant] - size_bytes
        assert left >= 0, "more bytes are removed than were added"
        self.used_bytes -= size_bytes
        self.removed_bytes += size_bytes
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]

    def by_tenant(self) -> ItemsView[str, int]:
        """The bytes in use of every tenant that uses any."""
        return self._by_tenant.items()

    def largest(self) -> str | None:
        """The tenant that uses the most bytes; None if no bytes are in use."""
        return max(self._by_tenant, key=self.used_by, default=None)
