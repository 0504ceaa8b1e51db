"""The event loop of a process: which one runs, how soon it runs beside threads that compute, and how late it
runs what is due.
"""

import asyncio
import sys
from collections.abc import Callable

_SWITCH_INTERVAL_S = 0.0005
_INTERVAL_S, _REST_INTERVAL_S = 0.25, 1.0
"""How often the lag is measured: while clients are active, and otherwise."""


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop, or None for asyncio's default."""
    try:
        import uvloop
    except ImportError:  # not available on every platform, and not required
        return None
    return uvloop.Loop


def shorten_switch_interval() -> None:
    """Let the event loop run soon while threads compute. It releases the interpreter lock with every system
    call, and would wait up to 5 ms, Python's default switch interval, to get it back."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


class LoopLag:
    """Measures how late the event loop runs what is due, and keeps the longest lag until it is forgotten.

    A callback compares the time at which it runs with the time at which it was due: every quarter of a second
    while clients are active, otherwise every second, together with the server's tick. A lag means that
    something kept the loop busy: all connections waited that long.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """``is_busy``: whether clients are active."""
        self._is_busy = is_busy
        self.longest_s = 0.0
        self.observers: list[Callable[[float], None]] = []
        """Called with each lag, in seconds."""
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._measure_next(loop, loop.time())

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
        self._measure_next(loop, at)

    def _measure_next(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        # At rest when a second begins, as the tick: waking up costs more than what is done then.
        rest_s = _INTERVAL_S if self._is_busy() else _REST_INTERVAL_S - at % _REST_INTERVAL_S
        self._due = at + rest_s
        self._timer = loop.call_at(self._due, self._measure, loop)
