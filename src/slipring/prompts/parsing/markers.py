"""Finds markers such as ``<tool_call>`` in text that arrives in pieces."""

from functools import lru_cache


class MarkerFinder:
    """Finds the first of several markers. Empty markers are ignored."""

    __slots__ = ("_longest", "_markers", "_prefixes", "longest", "starts")

    def __init__(self, *markers: str) -> None:
        self._markers = tuple(marker for marker in markers if marker)
        self._prefixes = frozenset(marker[:end] for marker in self._markers for end in range(1, len(marker)))
        self._longest = max(map(len, self._prefixes), default=0)
        self.starts = frozenset(marker[0] for marker in self._markers)
        """The first characters of the markers."""
        self.longest = self._longest + 1
        """The length of the longest marker."""

    def __bool__(self) -> bool:
        return bool(self._markers)

    def cannot_begin_in(self, text: str) -> bool:
        """Whether ``text`` contains no first character of any marker."""
        return self.starts.isdisjoint(text)

    def cut(self, text: str, *, last: bool) -> tuple[str, str, str]:
        """Return the text before the first marker, the marker, and the rest.

        Without a marker, the rest is the tail that could become one, or empty if this is the ``last`` piece.
        The first marker is the one that ends first, so that the choice never depends on later text.
        """
        found = [(text.find(each) + len(each), -len(each)) for each in self._markers if each in text]
        if found:
            end, size = min(found)
            return text[: end + size], text[end + size : end], text[end:]
        end = len(text) - (0 if last else self._tail(text))
        return text[:end], "", text[end:]

    def _tail(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a marker."""
        if self.starts.isdisjoint(text[-self._longest :]):
            return 0  # the usual case
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._prefixes:
                return size
        return 0


marker_finder = lru_cache(maxsize=64)(MarkerFinder)
"""A cached ``MarkerFinder``: all answers of a model search for the same few markers."""
