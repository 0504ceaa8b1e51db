"""The clocks of a server."""

import time

_EPOCH = time.time() - time.monotonic()


def now() -> float:
    """Unix time that never jumps: deadlines and timestamps come from the same clock."""
    return _EPOCH + time.monotonic()


clock = time.perf_counter
"""What stages are stopped with."""
