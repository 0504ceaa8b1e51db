"""Counts the bytes of chain nodes while something holds them."""

from typing import Generic, Protocol, Self, TypeVar


class Node(Protocol):
    """A part of a chain that is counted."""

    @property
    def parent(self) -> Self | None: ...

    @property
    def size_bytes(self) -> int:
        """The memory that it does not share with its parent."""


N = TypeVar("N", bound=Node)


class Retention(Generic[N]):
    """Reference counts of chain nodes.

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
