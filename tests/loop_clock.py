"""The clock of an event loop, which a test sets forward: a timeout expires when the test says so, however
busy the machine is."""

import asyncio

import pytest


class LoopClock:
    """Sets the clock of the running loop forward. For loops of asyncio, not of uvloop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        loop = asyncio.get_running_loop()
        time = loop.time
        patch.setattr(loop, "time", lambda: time() + self._ahead_s)

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
