"""The latest events of a background run, kept in memory for its followers.

The store has all events, so the oldest can be dropped here: a follower that needs them reads the store.
"""

from bisect import bisect_right
from operator import attrgetter

from slipring.stores.runs import RunEvent

_number = attrgetter("sequence_number")


class RecentEvents:
    """Events in the order of their numbers, bounded in bytes. The newest event is never dropped."""

    __slots__ = ("_dropped", "_events", "_limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._events: list[RunEvent] = []
        self._dropped = -1
        """The number of the newest event that was dropped."""
        self.used_bytes = 0

    def add(self, events: list[RunEvent]) -> None:
        """Append events, whose numbers must be greater than those before."""
        self._events += events
        self.used_bytes += sum(len(event.data) for event in events)
        count = 0
        while self.used_bytes > self._limit_bytes and count < len(self._events) - 1:
            self.used_bytes -= len(self._events[count].data)
            count += 1
        if count:
            self._dropped = self._events[count - 1].sequence_number
            del self._events[:count]

    def after(self, number: int) -> list[RunEvent] | None:
        """All events after a number; None if some of them were dropped. Costs what it returns."""
        if number < self._dropped:
            return None
        return self._events[bisect_right(self._events, number, key=_number) :]
