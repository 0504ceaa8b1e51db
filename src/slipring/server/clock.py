"""The clocks of a server."""

import time

_EPOCH = time.time() - time.monotonic()


def now() -> float:
    """Unix time that never jumps, for deadlines and timestamps that stay within this process."""
    return _EPOCH + time.monotonic()


shared_now = time.time
"""Unix time for values that other nodes read: a process's monotonic clock means nothing to them."""
clock = time.perf_counter
"""Measures the stages of a turn."""
_CLOCK_EPOCH = time.time() - clock()


def unix_time(at: float) -> float:
    """The Unix time of a reading of ``clock``."""
    return _CLOCK_EPOCH + at
