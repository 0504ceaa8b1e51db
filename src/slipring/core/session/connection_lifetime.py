"""The lifetime of a connection: its age, its idle time, and how it ends."""

import math

from msgspec import Struct

from slipring.base.errors import ApiError, ServerError
from slipring.core.limits import Limits


class Ending(Struct, frozen=True):
    """The announced end of a connection."""

    error: ApiError
    code: int
    deadline: float
    """When turns that still run are stopped."""


class ConnectionLifetime:
    """When a connection was opened and last active, compared with its limits, and whether it has ended."""

    __slots__ = ("_active_at", "_limits", "ending", "is_closed", "opened_at")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self.opened_at = self._active_at = now
        self.ending: Ending | None = None
        """Set while the connection winds down."""
        self.is_closed = False

    def touch(self, now: float) -> None:
        """Record activity."""
        self._active_at = now

    def is_over(self, now: float) -> bool:
        """Whether the connection has reached its maximum age."""
        return now - self.opened_at >= self._limits.max_age_s

    def is_idle(self, now: float) -> bool:
        """Whether the idle timeout has passed without activity."""
        timeout_s = self._limits.idle_timeout_s
        return bool(timeout_s) and now - self._active_at >= timeout_s

    @property
    def deadline(self) -> float:
        """When the first of the two limits is reached if there is no further activity."""
        timeout_s = self._limits.idle_timeout_s
        idle_at = self._active_at + timeout_s if timeout_s else math.inf
        return min(self.opened_at + self._limits.max_age_s, idle_at)

    @property
    def accepts_turns(self) -> bool:
        """Whether the connection neither winds down nor is closed."""
        return self.ending is None and not self.is_closed

    @property
    def refusal(self) -> ApiError | None:
        """Why no new response may begin; None if it may."""
        if self.ending is not None:
            return self.ending.error
        return ServerError("The connection has ended.") if self.is_closed else None
