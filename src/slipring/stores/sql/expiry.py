"""How long things are kept, and what time it is."""

from collections.abc import Callable

NEVER = 2**62
"""When what is kept for ever expires."""


class Expiry:
    def __init__(self, retention_s: float, clock: Callable[[], float]) -> None:
        """Things are kept for ``retention_s`` after they were made; 0: for ever."""
        self._retention_s = retention_s
        self._clock = clock

    def of(self, created_at: int) -> int:
        return created_at + int(self._retention_s) if self._retention_s else NEVER

    def now(self) -> int:
        return int(self._clock())
