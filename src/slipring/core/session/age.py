"""How old a connection is and how long it has been idle, compared with the limits."""

import math

from slipring.core.limits import Limits


class Age:
    """When a connection was opened, and when something last happened on it."""

    __slots__ = ("_active_at", "_limits", "_opened_at")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._opened_at = self._active_at = now

    def touch(self, now: float) -> None:
        """Something has happened."""
        self._active_at = now

    def is_reached(self, now: float) -> bool:
        """Whether the connection has come to the age at which it ends."""
        return now - self._opened_at >= self._limits.max_age_s

    def is_idle(self, now: float) -> bool:
        """Whether nothing has happened for so long that the connection ends, if nothing is being done."""
        timeout_s = self._limits.idle_timeout_s
        return bool(timeout_s) and now - self._active_at >= timeout_s

    @property
    def deadline(self) -> float:
        """The first time at which one of these holds, if nothing happens before."""
        timeout_s = self._limits.idle_timeout_s
        idle_at = self._active_at + timeout_s if timeout_s else math.inf
        return min(self._opened_at + self._limits.max_age_s, idle_at)
