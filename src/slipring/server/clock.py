"""The clocks of a server."""

import time

_EPOCH = time.time() - time.monotonic()


def now() -> float:
    """Unix time that never jumps: for deadlines and timestamps of this process alone."""
    return _EPOCH + time.monotonic()


shared_now = time.time
"""For what other nodes read: they agree on the time of day, and on nothing that began with this process."""
clock = time.perf_counter
"""What stages are stopped with."""
