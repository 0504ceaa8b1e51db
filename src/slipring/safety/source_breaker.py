"""Stops calling the source of a check that fails, and decides when one call tries it again."""

from collections.abc import Callable

_FAILURES = 5


_FIRST_PAUSE_S = 5.0


_LONGEST_PAUSE_S = 60.0


class Breaker:
    """Open after some failures in a row. While it is open, one call at a time is let through after a pause,
    which grows. After a success, a new breaker takes its place."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._next_try: float | None = None
        """When the next call is let through; None while the breaker is closed."""

    @property
    def is_open(self) -> bool:
        return self._next_try is not None

    def admits(self) -> bool:
        """Whether a call may be made now. The caller reports how a call that was admitted has ended."""
        if self._next_try is None:
            return True
        if self._clock() < self._next_try:
            return False
        self._next_try = self._clock() + self._pause_s  # others wait until this call has ended, or is lost
        return True

    def failed(self) -> None:
        self._failures += 1
        if self._failures < _FAILURES:
            return
        if self._next_try is not None:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._next_try = self._clock() + self._pause_s
