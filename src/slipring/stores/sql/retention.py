"""The retention period of stored data, and the clock that it is measured with."""

from collections.abc import Callable

NEVER = 2**62
"""The ``expires_at`` of data that does not expire."""


class Expiry:
    """Computes when data expires: ``retention_s`` after its creation; never if that is 0."""

    def __init__(self, retention_s: float, clock: Callable[[], float]) -> None:
        self._retention_s = retention_s
        self._clock = clock

    def expires_at(self, created_at: int) -> int:
        return created_at + int(self._retention_s) if self._retention_s else NEVER

    def now(self) -> int:
        return int(self._clock())
