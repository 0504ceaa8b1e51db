"""Counts bytes in use: per tenant and in total, with a bound on each; and of the nodes of chains, each once.

One ledger counts one kind of memory, such as the bytes of requests. Callers add bytes and remove them when
they are done. Tenants without bytes have no entry, so a ledger's size is the number of active tenants.
"""

from collections.abc import ItemsView
from typing import Generic, Protocol, Self, TypeVar


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


class Node(Protocol):
    """A part of a chain that is counted."""

    @property
    def parent(self) -> Self | None: ...

    @property
    def size_bytes(self) -> int:
        """The memory that it does not share with its parent."""


N = TypeVar("N", bound=Node)


class ChainLedger(Generic[N]):
    """The bytes of chain nodes while something holds them, by reference counts.

    Counts references from held nodes and from retained children, so that ``hold`` and ``release`` take time
    proportional to the nodes gained or freed, not to the length of the chain. A node counts with the size
    that it had when it was first held, until ``resize``.
    """

    __slots__ = ("_counts", "_sizes")

    def __init__(self) -> None:
        self._counts: dict[N, int] = {}
        self._sizes: dict[N, int] = {}

    def __contains__(self, node: N) -> bool:
        return node in self._counts

    def weigh(self, state: N) -> int:
        """Return the bytes that ``hold`` would retain in addition."""
        gained = 0
        node: N | None = state
        while node is not None and node not in self._counts:
            gained += node.size_bytes
            node = node.parent
        return gained

    def hold(self, state: N, nodes: list[N] | None = None) -> int:
        """Retain a state and its ancestors; returns the bytes that were not retained before, and adds their
        nodes to ``nodes``."""
        gained = 0
        node: N | None = state
        while node is not None:
            count = self._counts.get(node, 0)
            self._counts[node] = count + 1
            if count:
                break
            self._sizes[node] = node.size_bytes
            gained += node.size_bytes
            if nodes is not None:
                nodes.append(node)
            node = node.parent
        return gained

    def release(self, state: N, nodes: list[N] | None = None) -> int:
        """Drop one reference to a state; returns the bytes that are no longer retained, and adds their nodes
        to ``nodes``."""
        freed_bytes = 0
        node: N | None = state
        while node is not None:
            count = self._counts[node] - 1
            if count:
                self._counts[node] = count
                break
            del self._counts[node]
            freed_bytes += self._sizes.pop(node)
            if nodes is not None:
                nodes.append(node)
            node = node.parent
        return freed_bytes

    def resize(self, node: N) -> int:
        """The size of a retained node has changed; returns by how much."""
        before, self._sizes[node] = self._sizes[node], node.size_bytes
        return node.size_bytes - before
