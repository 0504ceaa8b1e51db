"""How long a server may be silent within an answer."""

import asyncio
from collections.abc import Callable

_LOOK_S = 1.0
"""How often to look whether silence is limited by now."""
Patience = Callable[[], float | None]
"""Returns after how many seconds of silence an answer fails; None: it does not."""


class Silence:
    """Fails an answer that is silent for too long. One timer for each answer checks now and then: a timeout
    around every read costs more than the read."""

    __slots__ = ("_fail", "_idle_s", "_timer", "clock", "since")

    def __init__(self, fail: Callable[[], None], idle_s: Patience) -> None:
        self._fail = fail
        self._idle_s = idle_s
        self.clock = asyncio.get_running_loop().time
        self.since: float | None = None
        """When the server was heard last; None while nothing is expected of it."""
        self._timer: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """From now on the server is expected to go on."""
        self.since = self.clock()
        if self._timer is None:
            self._check()

    def forget(self) -> None:
        """The answer has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Fail the answer, or check again when it could have been silent long enough."""
        idle_s, since = self._idle_s(), self.since
        left_s = _LOOK_S if idle_s is None else idle_s
        if idle_s is not None and since is not None:
            left_s = since + idle_s - self.clock()
            if left_s <= 0:
                self._fail()
                return
        self._timer = asyncio.get_running_loop().call_later(max(left_s, 0.001), self._check)
