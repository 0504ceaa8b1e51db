"""How much a key may use: requests in a minute, tokens in a day.

What is used is counted here and, about once a second, exchanged with the store, where the counts of all
servers on it meet. Between two exchanges nobody waits for the store, so a quota may be overshot by what all
servers let through in that time; and the tokens of a turn are known when it is over, so it may be overshot by
the turns that run. A store that cannot be reached stops nobody: it goes on with what is known here.

Windows are those of the calendar, in UTC: they end for all servers at the same time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Literal

from msgspec import Struct

from slipring.errors import RateLimited, Unavailable
from slipring.stores.base import Key, Keys, Usage

log = logging.getLogger("slipring")

_STALE_S = 2.0
"""A total that is older is looked up before it is relied on. In steady use, none is."""
_IN_USE_S = 60.0
"""How long after its last use a total is still exchanged."""


class _Measure(Struct, frozen=True):
    unit: Literal["requests", "tokens"]
    period: Literal["minute", "day"]
    seconds: int


_REQUESTS = _Measure("requests", "minute", 60)
_TOKENS = _Measure("tokens", "day", 24 * 60 * 60)


class _Window(Struct, frozen=True, order=True):
    """A minute or a day, of those since 1970."""

    seconds: int
    number: int

    @property
    def ends_at(self) -> float:
        return float((self.number + 1) * self.seconds)

    @property
    def expires_at(self) -> float:
        """When its counts may be removed: a little later, since not all clocks agree."""
        return self.ends_at + self.seconds


class _Tally:
    """What one key has used of one measure in one window."""

    __slots__ = ("_measure", "_told", "_untold", "asked_at", "key_id", "used_at", "window")

    def __init__(self, key_id: str, measure: _Measure, window: _Window) -> None:
        self.key_id = key_id
        self.window = window
        self.asked_at = float("-inf")
        """When the store was last asked, whatever it answered."""
        self.used_at = float("-inf")
        self._measure = measure
        self._told = 0
        self._untold = 0

    @property
    def used(self) -> int:
        return self._told + self._untold

    def add(self, amount: int) -> None:
        self._untold += amount

    def news(self) -> Usage:
        window = f"{self._measure.period}:{self.window.number}"
        return Usage(self.key_id, window, **{self._measure.unit: self._untold})

    def settle(self, told: Usage, total: Usage) -> None:
        """The store has added what it was told. What was counted meanwhile is still to be told."""
        self._untold -= getattr(told, self._measure.unit)
        self._told = getattr(total, self._measure.unit)


class Quotas:
    """The counts of all keys that are used on this server."""

    def __init__(self, keys: Keys, now: Callable[[], float]) -> None:
        self.now = now
        self._keys = keys
        self._tallies: dict[tuple[str, _Measure], _Tally] = {}
        self._exchanging = asyncio.Lock()
        self._is_cut_off = False

    async def admit(self, key: Key) -> None:
        """Count one more request of a key, or refuse it with ``RateLimited``."""
        bounds = _bounds(key)
        await self._refresh([self._tally(key, measure) for measure in bounds])
        # The time may have moved on to another window. From here on nobody can come in between.
        for measure, bound in bounds.items():
            tally = self._tally(key, measure)
            if tally.used >= bound:
                raise RateLimited(
                    f"Rate limit reached for this API key: {bound} {measure.unit} per {measure.period}.",
                    retry_after_s=tally.window.ends_at - self.now(),
                )
        if _REQUESTS in bounds:
            self._tally(key, _REQUESTS).add(1)

    def spend(self, key: Key, tokens: int) -> None:
        """Count what a turn has used."""
        if tokens and _TOKENS in _bounds(key):
            self._tally(key, _TOKENS).add(tokens)

    async def exchange(self) -> None:
        """Tell the store what was counted here, and learn what all have counted."""
        async with self._exchanging:
            self._forget()
            now = self.now()
            await self._exchange(
                [tally for tally in self._tallies.values() if now - tally.used_at < _IN_USE_S]
            )

    async def _refresh(self, tallies: list[_Tally]) -> None:
        """Look totals up that this server has not heard of for a while, or ever."""
        if not any(map(self._is_stale, tallies)):
            return
        async with self._exchanging:  # whoever waited here finds them looked up
            await self._exchange([tally for tally in tallies if self._is_stale(tally)])

    def _is_stale(self, tally: _Tally) -> bool:
        return self.now() - tally.asked_at >= _STALE_S

    async def _exchange(self, tallies: Iterable[_Tally]) -> None:
        by_window = groupby(sorted(tallies, key=_window_of), key=_window_of)
        for window, group in by_window:
            await self._exchange_window(window, list(group))

    async def _exchange_window(self, window: _Window, tallies: list[_Tally]) -> None:
        news = [tally.news() for tally in tallies]
        for tally in tallies:
            tally.asked_at = self.now()
        try:
            totals = await self._keys.spend(news, expires_at=window.expires_at)
        except Unavailable as error:
            if not self._is_cut_off:
                log.warning("quotas go on with what is known here: %s", error.message)
            self._is_cut_off = True
            return
        self._is_cut_off = False
        for tally, told, total in zip(tallies, news, totals, strict=True):
            tally.settle(told, total)

    def _tally(self, key: Key, measure: _Measure) -> _Tally:
        """The tally of this moment, which is about to be used."""
        window = _Window(measure.seconds, int(self.now() // measure.seconds))
        tally = self._tallies.get((key.id, measure))
        if tally is None or tally.window != window:
            tally = self._tallies[key.id, measure] = _Tally(key.id, measure, window)
        tally.used_at = self.now()
        return tally

    def _forget(self) -> None:
        """Let go of windows that are over: what was used in them concerns nobody any more."""
        now = self.now()
        over = [place for place, tally in self._tallies.items() if tally.window.ends_at <= now]
        for place in over:
            del self._tallies[place]


def _bounds(key: Key) -> dict[_Measure, int]:
    bounds = {_REQUESTS: key.requests_per_minute, _TOKENS: key.tokens_per_day}
    return {measure: bound for measure, bound in bounds.items() if bound is not None}


def _window_of(tally: _Tally) -> _Window:
    return tally.window
