"""Emits the tokens of an answer on a schedule, counted from its beginning so that small delays do not add up.

The time that the simulation itself needs is part of the simulated decoding time, as long as it is shorter.
Answers whose next tokens are due within the same millisecond are woken together, as an engine that decodes a
batch yields a token of each.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from typing import Protocol

from slipring.core.generation import Delta, Emit

_MAX_LAG_S = 1.0
"""How far behind schedule an answer may catch up in one burst. A real model decodes on while the server is
busy, but no server buffers any number of tokens for a client that does not read."""
_MOST_AT_ONCE = 32
"""Tokens that an answer behind schedule yields before others run."""
_EARLY_S = 1e-6
"""Due times are sums of many small numbers: a token counts as due this much earlier."""


class Ticks:
    """Wakes answers at full milliseconds of the event loop's clock, with one timer for all of them."""

    __slots__ = ("_ticks", "_timer", "_timer_tick", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._ticks: list[int] = []
        """The keys of ``_waiting``, as a heap."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def call(self, due_s: float, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Call a function, which must not raise, at a time of the loop's clock, rounded up."""
        tick = math.ceil((due_s - _EARLY_S) * 1000)
        waiting = self._waiting.get(tick)
        if waiting is not None:
            waiting.append(callback)
            return
        self._waiting[tick] = [callback]
        heappush(self._ticks, tick)
        if self._timer is None or tick < self._timer_tick:
            self._set_timer(tick, loop)

    def _set_timer(self, tick: int, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_tick = loop.call_at(tick / 1000, self._wake, loop), tick

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        ticks = self._ticks
        # The timer's own tick is over, even if the clock is coarse and says otherwise.
        now = max(math.floor((loop.time() + _EARLY_S) * 1000), self._timer_tick)
        while ticks and ticks[0] <= now:
            for callback in self._waiting.pop(heappop(ticks)):
                callback()
        self._timer = None
        if ticks:
            self._set_timer(ticks[0], loop)


class Pace:
    """The schedule of one answer, which begins now."""

    __slots__ = ("_due_s", "_interval_s", "_loop", "_ticks")

    def __init__(self, tokens_per_s: float, ticks: Ticks) -> None:
        """A rate of 0 is unlimited."""
        self._interval_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._ticks = ticks
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()

    def postpone(self, seconds: float) -> None:
        """Schedule the next token later, by the duration of a prefill for example."""
        self._due_s += seconds

    async def reached(self) -> None:
        """Wait until the scheduled time."""
        delay_s = self._due_s - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def call_next(self, callback: Callable[[], None]) -> None:
        """Call a function, which must not raise, when a token is due, in the next iteration of the event loop
        at the earliest: an answer that is late lets others run too."""
        if self._interval_s:
            next_s = self._due_s + self._interval_s
            if next_s > self._loop.time():
                self._ticks.call(next_s, self._loop, callback)
                return
        self._loop.call_soon(callback)

    def due(self) -> int:
        """How many tokens are due now: several if the answer is behind schedule, at least one. They count as
        emitted."""
        interval_s = self._interval_s
        if not interval_s:
            return 1
        now_s = self._loop.time()
        since_s = max(self._due_s, now_s - _MAX_LAG_S - interval_s)
        tokens = min(max(int((now_s + _EARLY_S - since_s) / interval_s), 1), _MOST_AT_ONCE)
        self._due_s = since_s + tokens * interval_s
        return tokens


class Tokens(Protocol):
    """The tokens of an answer, in order."""

    def has_next(self) -> bool:
        """Whether another token follows. Asked before the token is due."""

    def take(self, count: int) -> list[Delta]:
        """The deltas of the next tokens, ``count`` of them unless the answer ends before; a token may have
        none."""


class TimedTokens:
    """Emits tokens from callbacks of the event loop; only a client that does not keep up is waited for in a
    task."""

    __slots__ = ("_emit", "_pace", "_stopped", "_tokens")

    def __init__(self, tokens: Tokens, pace: Pace, emit: Emit) -> None:
        self._tokens = tokens
        self._pace = pace
        self._emit = emit
        self._stopped: asyncio.Future[Awaitable[None] | None]
        """Done when no timer is set: with what has to be awaited, or None if there are no more tokens.
        Cancelled with the task that waits for it, after which nothing is emitted."""

    async def run(self) -> None:
        """Emit all tokens."""
        loop = asyncio.get_running_loop()
        while self._tokens.has_next():
            self._stopped = loop.create_future()
            self._pace.call_next(self._emit_due)
            if (waiting := await self._stopped) is not None:
                await waiting

    def _emit_due(self) -> None:
        if self._stopped.done():
            return
        try:
            deltas = self._tokens.take(self._pace.due())
            waiting = self._emit(deltas) if deltas else None
            if waiting is None and self._tokens.has_next():
                self._pace.call_next(self._emit_due)
                return
        except Exception as error:
            self._stopped.set_exception(error)
        else:
            self._stopped.set_result(waiting)
