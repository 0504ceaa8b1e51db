"""The lifetime of a connection: decides when its age, its idle time or its grace period is over, that an
announced end waits until no turn runs, whether turns are accepted, and the errors of turns that it refuses or
cuts off.
"""

import math
from typing import Literal

from msgspec import Struct

from slipring.base.errors import ApiError, ServerError
from slipring.core.limits import Limits

Limit = Literal["age", "idle", "grace"]


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

    def reached(self, now: float, *, is_at_rest: bool) -> Limit | None:
        """The limit that an open connection has reached: its maximum age; the idle timeout, if it is at rest;
        or, while it winds down, the end of the grace period of the turns that still run."""
        if self.ending is not None:
            return "grace" if now >= self.ending.deadline else None
        if now >= self._oldest_at:
            return "age"
        return "idle" if is_at_rest and now >= self._idle_at else None

    @property
    def deadline(self) -> float:
        """When the first of the two limits is reached if there is no further activity."""
        return min(self._oldest_at, self._idle_at)

    @property
    def _oldest_at(self) -> float:
        return self.opened_at + self._limits.max_age_s

    @property
    def _idle_at(self) -> float:
        timeout_s = self._limits.idle_timeout_s
        return self._active_at + timeout_s if timeout_s else math.inf

    def wind_down(self, error: ApiError, code: int, now: float, grace_s: float) -> None:
        """The end is announced: no turn begins any more, and those that run have a grace period."""
        self.ending = Ending(error, code, now + grace_s)

    def take_end(self, *, is_idle: bool) -> Ending | None:
        """The announced end, as soon as no turn runs or waits: the connection is then closed. The error is
        sent last, because clients take one without a lane as the end of the response that they read."""
        if self.ending is None or self.is_closed or not is_idle:
            return None
        self.is_closed = True
        return self.ending

    def close(self) -> None:
        """The connection is closed, or its client has left."""
        self.is_closed = True

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

    @property
    def cut_off_error(self) -> ServerError:
        """Why a turn fails that still runs when the grace period is over."""
        return ServerError("The connection ended before this response was finished.")
