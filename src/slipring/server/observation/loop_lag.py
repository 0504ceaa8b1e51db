"""Measures how late the event loop runs what is due.

A callback every quarter of a second compares the time at which it runs with the time at which it was due. A
lag means that something kept the loop busy: all connections waited that long.
"""

import asyncio
from collections.abc import Callable

_INTERVAL_S = 0.25


class LoopLag:
    """Keeps the longest lag until it is forgotten."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.observers: list[Callable[[float], None]] = []
        """Called with each lag, in seconds."""
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _INTERVAL_S
        self._timer = loop.call_at(self._due, self._measure, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def forget_longest(self) -> None:
        self.longest_s = 0.0

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        at = loop.time()
        lag_s = max(at - self._due, 0.0)
        self.longest_s = max(self.longest_s, lag_s)
        for observe in self.observers:
            observe(lag_s)
        self._due = at + _INTERVAL_S
        self._timer = loop.call_at(self._due, self._measure, loop)
