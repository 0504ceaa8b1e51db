"""Compression of long chains: which responses of a chain that is not stored keep their items in fewer bytes.

The chain of a response that is not stored exists nowhere else. If it is larger than its connection may keep,
the items of its oldest responses are compressed, up to a limit on their size before that.
"""

from collections.abc import Iterable, Iterator

from slipring.core.chain.state import ResponseState

_LEAST_AT_ONCE = 1024**2
_MOST_AT_ONCE = 4 * 1024**2
"""Bytes of items that are compressed at once: not often, and for a fifth of a second at most."""


class ChainCompression:
    """The compressed states of one connection, and those to compress next. ``ends``: the latest responses of
    its lanes."""

    __slots__ = ("_is_running", "compressed_bytes", "item_bytes", "limit_bytes", "states")

    def __init__(self, limit_bytes: int) -> None:
        """``limit_bytes``: the most item bytes that are kept compressed, before compression."""
        self.limit_bytes = limit_bytes
        self.states: set[ResponseState] = set()
        """Retained states that are compressed, except those that another connection has compressed since."""
        self.item_bytes = 0
        """The bytes of their items before that."""
        self.compressed_bytes = 0
        """Memory of the compressed items."""
        self._is_running = False

    def take(self, excess_bytes: int, ends: Iterable[ResponseState]) -> list[ResponseState]:
        """The states to compress next, so that the connection fits its limit: oldest first, enough for a
        while, and not too many at once. Until ``end`` is called there are no others."""
        if self._is_running:
            return []
        wanted = min(max(2 * excess_bytes, _LEAST_AT_ONCE), _MOST_AT_ONCE)
        room = self.limit_bytes - self.item_bytes
        taken: list[ResponseState] = []
        taken_bytes = 0
        for state in _candidates(ends):
            taken_bytes += state.item_bytes
            if taken_bytes > room:
                break
            taken.append(state)
            if taken_bytes >= wanted:
                break
        self._is_running = bool(taken)
        return taken

    def end(self) -> None:
        """The states that were taken are compressed, or as many of them as could be."""
        self._is_running = False

    def may_shrink(self, ends: Iterable[ResponseState]) -> bool:
        """Whether the connection will use less memory once states are compressed."""
        room = self.limit_bytes - self.item_bytes
        if self._is_running or room <= 0:
            return self._is_running
        oldest = next(_candidates(ends), None)
        return oldest is not None and oldest.item_bytes <= room

    def add(self, state: ResponseState) -> None:
        """Count a compressed state."""
        self.states.add(state)
        self.item_bytes += state.item_bytes
        self.compressed_bytes += state.compressed_bytes

    def drop(self, states: Iterable[ResponseState]) -> None:
        """Count these states no longer."""
        for state in self.states.intersection(states) if self.states else ():
            self.states.remove(state)
            self.item_bytes -= state.item_bytes
            self.compressed_bytes -= state.compressed_bytes


def _candidates(ends: Iterable[ResponseState]) -> Iterator[ResponseState]:
    """The states that may be compressed, the oldest of each chain first."""
    seen: set[ResponseState] = set()
    for end in list(ends):
        chain: list[ResponseState] = []
        node = end.parent if end.response.store is False else None
        while node is not None and not node.compressed_bytes and node not in seen:
            seen.add(node)
            chain.append(node)
            node = node.parent
        yield from reversed(chain)
