"""When tokens are due: a schedule that counts from its beginning, so that small delays do not add up.

Whatever the simulation itself takes is part of the time that decoding would take, as long as it is less.
"""

import asyncio
import time

_MAX_LAG_S = 1.0
"""How far behind its schedule an answer may catch up in one burst: a model decodes on while others are busy,
but nobody keeps any number of tokens for a client that does not read."""


class Pace:
    """The schedule of one answer, from now on."""

    __slots__ = ("_due_s", "_interval_s")

    def __init__(self, tokens_per_s: float) -> None:
        """A rate of 0 is unlimited."""
        self._interval_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._due_s = time.monotonic()

    def postpone(self, seconds: float) -> None:
        """Put time before what comes next: a prefill, or whatever else a model takes."""
        self._due_s += seconds

    async def reached(self) -> None:
        """Wait for what has been scheduled."""
        delay_s = self._due_s - time.monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def token(self) -> None:
        """Wait until one more token is there."""
        if not self._interval_s:
            await asyncio.sleep(0)  # as fast as possible, yet never alone on the loop
            return
        now_s = time.monotonic()
        self._due_s = max(self._due_s + self._interval_s, now_s - _MAX_LAG_S)
        if self._due_s > now_s:
            await asyncio.sleep(self._due_s - now_s)
