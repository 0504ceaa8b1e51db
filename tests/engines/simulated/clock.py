"""The clock of simulated engines, in tests."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from slipring.engines.simulated import pace


class Clock:
    """Time that passes only while an engine waits. It is that of the event loop for the module ``pace``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, oversleeps_s: float = 0.0) -> None:
        """``oversleeps_s``: by how much every timer is late."""
        self.now_s = 100.0
        self.slept_s: list[float] = []
        self._oversleeps_s = oversleeps_s
        loop = asyncio.get_running_loop()
        self._call_soon = loop.call_soon
        mine = SimpleNamespace(
            time=lambda: self.now_s,
            call_at=self._call_at,
            call_soon=loop.call_soon,
            create_future=loop.create_future,
        )
        monkeypatch.setattr(
            pace, "asyncio", SimpleNamespace(sleep=self._sleep, get_running_loop=lambda: mine)
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def _call_at(self, when_s: float, callback: Callable[[object], None], loop: object) -> asyncio.Handle:
        def pass_time() -> None:
            self.now_s = max(self.now_s, when_s) + self._oversleeps_s
            callback(loop)

        return self._call_soon(pass_time)
