"""The schedule of simulated tokens."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from slipring.engines.simulated.pace import Pace, Ticks


class Loop:
    """An event loop's clock and timers, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 50.0
        self.timers: list[tuple[float, Callable[[Any], None]]] = []
        self.call_soon = asyncio.get_running_loop().call_soon
        monkeypatch.setattr("slipring.engines.simulated.pace.asyncio.get_running_loop", lambda: self)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[Any], None], loop: object) -> "Timer":
        assert loop is self
        self.timers.append((when_s, callback))
        return Timer(self.timers, self.timers[-1])

    def pass_time(self, seconds: float) -> None:
        """Move the clock and run the timers that are due."""
        self.now_s += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now_s + 1e-9]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, callback in due:
            callback(self)


class Timer:
    def __init__(self, timers: list[Any], timer: object) -> None:
        self._timers, self._timer = timers, timer

    def cancel(self) -> None:
        self._timers.remove(self._timer)


@pytest.fixture
async def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


class Called:
    """Whether a function was called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def done(self) -> bool:
        return self.count == 1


def reached(ticks: Ticks, due_s: float, loop: Loop) -> Called:
    called = Called()
    ticks.call(due_s, cast("asyncio.AbstractEventLoop", loop), called)
    return called


def next_token(pace: Pace) -> Called:
    called = Called()
    pace.call_next(called)
    return called


async def test_those_that_are_due_in_the_same_millisecond_share_a_timer(loop: Loop) -> None:
    ticks = Ticks()
    futures = [reached(ticks, 50.0191 + number / 10_000, loop) for number in range(9)]
    assert [when_s for when_s, _ in loop.timers] == [50.020]
    loop.pass_time(0.019)
    assert not any(future.done() for future in futures)
    loop.pass_time(0.001)
    assert all(future.done() for future in futures)
    assert not loop.timers


async def test_an_earlier_one_moves_the_timer(loop: Loop) -> None:
    ticks = Ticks()
    later, sooner = reached(ticks, 50.9, loop), reached(ticks, 50.1, loop)
    assert [when_s for when_s, _ in loop.timers] == [50.1]
    loop.pass_time(0.1)
    assert (sooner.done(), later.done()) == (True, False)
    assert [when_s for when_s, _ in loop.timers] == [50.9]
    loop.pass_time(0.8)
    assert later.done()


async def test_a_late_timer_wakes_everything_that_is_due(loop: Loop) -> None:
    ticks = Ticks()
    futures = [reached(ticks, 50.0 + number / 100, loop) for number in range(1, 11)]
    loop.pass_time(0.0551)
    assert [future.done() for future in futures] == [True] * 5 + [False] * 5


async def test_a_timer_that_fires_before_the_clock_says_so_wakes_its_own(loop: Loop) -> None:
    ticks = Ticks()
    future = reached(ticks, 50.1, loop)
    ((_, callback),) = loop.timers
    callback(loop)
    assert future.done()


async def test_tokens_come_at_their_rate(loop: Loop) -> None:
    pace, times = Pace(300, Ticks()), []
    for _ in range(30):
        waiting = next_token(pace)
        while not waiting.done():
            loop.pass_time(0.001)
        assert pace.due() == 1
        times.append(loop.now_s - 50.0)
    assert times == [pytest.approx(math.ceil(number * 10 / 3 - 1e-6) / 1000) for number in range(1, 31)]


async def test_one_that_is_behind_yields_all_tokens_that_are_due(loop: Loop) -> None:
    pace = Pace(100, Ticks())
    loop.now_s += 0.055
    assert pace.due() == 5
    next_token(pace)
    assert loop.timers, "the sixth is due in 5 ms"


async def test_a_burst_is_bounded_and_lets_others_run(loop: Loop) -> None:
    pace = Pace(1000, Ticks())
    loop.now_s += 0.1
    assert [pace.due() for _ in range(3)] == [32, 32, 32]
    await called_at_once(pace)
    assert pace.due() == 4


async def test_one_that_is_far_behind_catches_up_a_second(loop: Loop) -> None:
    pace = Pace(10, Ticks())
    loop.now_s += 100
    assert pace.due() == 11
    next_token(pace)
    assert loop.timers


async def test_an_unlimited_rate_has_one_token_in_each_iteration(loop: Loop) -> None:
    pace = Pace(0, Ticks())
    await called_at_once(pace)
    assert pace.due() == 1
    assert not loop.timers


async def called_at_once(pace: Pace) -> None:
    """Wait for the next token, which must take one iteration of the event loop."""
    called = next_token(pace)
    assert not called.count
    await asyncio.sleep(0)
    assert called.done()
