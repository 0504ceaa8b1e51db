"""The schedule of an answer's tokens, counted from its beginning so that small delays do not add up.

The time that the simulation itself needs is part of the simulated decoding time, as long as it is shorter.
"""

import asyncio
import time

_MAX_LAG_S = 1.0
"""How far behind schedule an answer may catch up in one burst. A real model decodes on while the server is
busy, but no server buffers any number of tokens for a client that does not read."""


class Pace:
    """The schedule of one answer, which begins now."""

    __slots__ = ("_due_s", "_interval_s")

    def __init__(self, tokens_per_s: float) -> None:
        """A rate of 0 is unlimited."""
        self._interval_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._due_s = time.monotonic()

    def postpone(self, seconds: float) -> None:
        """Schedule the next token later, by the duration of a prefill for example."""
        self._due_s += seconds

    async def reached(self) -> None:
        """Wait until the scheduled time."""
        delay_s = self._due_s - time.monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def token(self) -> None:
        """Wait until the next token is due."""
        if not self._interval_s:
            await asyncio.sleep(0)  # as fast as possible, but let other tasks run
            return
        now_s = time.monotonic()
        self._due_s = max(self._due_s + self._interval_s, now_s - _MAX_LAG_S)
        if self._due_s > now_s:
            await asyncio.sleep(self._due_s - now_s)
