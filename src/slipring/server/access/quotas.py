"""Quotas of API keys: requests and images per minute, and tokens per day.

Each server counts usage in memory and exchanges it with the store about once a second; the store adds up the
counts of all servers. Requests do not wait for these exchanges, so a quota can be exceeded by what all
servers admit between two of them. That of tokens can also be exceeded by running turns, whose tokens are
counted at their end. While the store cannot be reached, servers continue with the last known counts.

Windows are calendar minutes and days in UTC, so that they end for all servers at the same time.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from slipring.base.errors import RateLimited, Unavailable
from slipring.protocol.endpoints.rate_limits import RateLimit
from slipring.protocol.turn_report import TokenCounts
from slipring.stores.keys import Key, Keys, Usage

log = logging.getLogger("slipring")

EXCHANGE_INTERVAL_S = 1.0
"""How often a server exchanges usage with the store."""
_STALE_S = 2.0
"""An older total is read again before it is used. In steady use, totals are never that old."""
_IN_USE_S = 60.0
"""A total is exchanged for this long after its last use."""


class _Measure(Struct, frozen=True):
    unit: Literal["requests", "tokens", "images"]
    period: Literal["minute", "day"]
    seconds: int


_REQUESTS = _Measure("requests", "minute", 60)
_TOKENS = _Measure("tokens", "day", 24 * 60 * 60)
_IMAGES = _Measure("images", "minute", 60)


class _Tally:
    """The usage of one key, of one measure, in one window: a minute or a day, numbered since 1970."""

    def __init__(self, key_id: str, measure: _Measure, window: int) -> None:
        self.key_id = key_id
        self.window = window
        self.ends_at = float((window + 1) * measure.seconds)
        self.exchanged_at = float("-inf")
        """Time of the last exchange, successful or not."""
        self.used_at = float("-inf")
        self._measure = measure
        self._exchanged = 0
        self._unsent = 0

    @property
    def ends_at_utc(self) -> str:
        """In RFC 3339."""
        return datetime.fromtimestamp(self.ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def used(self) -> int:
        return self._exchanged + self._unsent

    def add(self, amount: int) -> None:
        self._unsent += amount

    def unsent(self) -> Usage:
        """The usage that the store does not have yet."""
        window = f"{self._measure.period}:{self.window}"
        # Kept one window longer than it counts, because clocks differ.
        expires_at = self.ends_at + self._measure.seconds
        return Usage(self.key_id, window, **{self._measure.unit: self._unsent}, expires_at=expires_at)

    def settle(self, sent: Usage, total: Usage) -> None:
        """Record that the store has added ``sent``; usage counted meanwhile stays unsent."""
        self._unsent -= getattr(sent, self._measure.unit)
        self._exchanged = getattr(total, self._measure.unit)


class Quotas:
    """Counts and limits the usage of all keys on this server."""

    def __init__(self, keys: Keys, now: Callable[[], float]) -> None:
        self.now = now
        self._keys = keys
        self._tallies: dict[tuple[str, _Measure], _Tally] = {}
        self._exchanging = asyncio.Lock()
        self._store_is_away = False

    async def admit(self, key: Key) -> None:
        """Count one request of a key. Raises ``RateLimited`` if a quota is used up."""
        await self.require_room(key)
        if _REQUESTS in _limits(key):
            self._tally(key, _REQUESTS).add(1)

    async def require_room(self, key: Key) -> None:
        """Raise ``RateLimited`` if a quota of a key is used up, except for that of images: a turn may have
        none."""
        limits = _limits(key)
        await self._refresh([self._tally(key, measure) for measure in limits])
        # Looked up again: the wait may have crossed into another window. No other task runs from here on.
        for measure, limit in limits.items():
            if measure is not _IMAGES and self._tally(key, measure).used >= limit:
                raise self._reached(key, measure, limit)

    async def admit_images(self, key: Key, count: int, *, refuses: bool) -> None:
        """Count images that a turn shows to its model. Raises ``RateLimited`` if so many are not left, unless
        the turn has begun and ``refuses`` is False."""
        limit = key.images_per_minute
        if limit is None:
            return
        await self._refresh([self._tally(key, _IMAGES)])
        tally = self._tally(key, _IMAGES)
        if refuses and tally.used + count > limit:
            raise self._reached(key, _IMAGES, limit)
        tally.add(count)

    def _reached(self, key: Key, measure: _Measure, limit: int) -> RateLimited:
        return RateLimited(
            f"Rate limit reached for this API key: {limit} {measure.unit} per {measure.period}.",
            retry_after_s=self._tally(key, measure).ends_at - self.now(),
        )

    def spend(self, key: Key, used: TokenCounts, counted_before: int) -> None:
        """Count the tokens of a turn. ``counted_before``: those of its input that another turn has been
        charged for, of which it is a fork."""
        tokens = max(0, used.input - counted_before) + used.output
        if tokens and _TOKENS in _limits(key):
            self._tally(key, _TOKENS).add(tokens)

    def standing(self, key: Key) -> list[RateLimit]:
        """The quotas of a key as this server knows them; without those that it has not counted yet."""
        found, now = [], self.now()
        for measure, limit in _limits(key).items():
            tally = self._tallies.get((key.id, measure))
            if tally is not None and tally.window == int(now // measure.seconds):
                left_s = math.ceil(tally.ends_at - now)
                remaining = max(0, limit - tally.used)
                found.append(RateLimit(measure.unit, limit, remaining, tally.ends_at_utc, left_s))
        return found

    async def exchange(self) -> None:
        """Add the counts of this server to the store, and read the totals of all servers."""
        async with self._exchanging:
            self._drop_ended()
            now = self.now()
            await self._exchange(
                [tally for tally in self._tallies.values() if now - tally.used_at < _IN_USE_S]
            )

    async def _refresh(self, tallies: list[_Tally]) -> None:
        """Read totals that are stale or were never read."""
        if not any(map(self._is_stale, tallies)):
            return
        async with self._exchanging:  # after a wait here, another task has read them
            await self._exchange([tally for tally in tallies if self._is_stale(tally)])

    def _is_stale(self, tally: _Tally) -> bool:
        return self.now() - tally.exchanged_at >= _STALE_S

    async def _exchange(self, tallies: list[_Tally]) -> None:
        if not tallies:
            return
        unsent = [tally.unsent() for tally in tallies]
        for tally in tallies:
            tally.exchanged_at = self.now()
        try:
            totals = await self._keys.spend(unsent)
        except Unavailable as error:
            if not self._store_is_away:
                log.warning("quotas use the last known counts: %s", error.message)
            self._store_is_away = True
            return
        self._store_is_away = False
        for tally, sent, total in zip(tallies, unsent, totals, strict=True):
            tally.settle(sent, total)

    def _tally(self, key: Key, measure: _Measure) -> _Tally:
        """The tally of the current window, marked as used."""
        window = int(self.now() // measure.seconds)
        tally = self._tallies.get((key.id, measure))
        if tally is None or tally.window != window:
            tally = self._tallies[key.id, measure] = _Tally(key.id, measure, window)
        tally.used_at = self.now()
        return tally

    def _drop_ended(self) -> None:
        """Drop the tallies of windows that have ended."""
        now = self.now()
        ended = [key for key, tally in self._tallies.items() if tally.ends_at <= now]
        for key in ended:
            del self._tallies[key]


def _limits(key: Key) -> dict[_Measure, int]:
    limits = {
        _REQUESTS: key.requests_per_minute,
        _TOKENS: key.tokens_per_day,
        _IMAGES: key.images_per_minute,
    }
    return {measure: limit for measure, limit in limits.items() if limit is not None}
