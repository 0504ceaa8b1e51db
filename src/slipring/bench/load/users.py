"""Users: each has a connection and chats over it, with pauses, until it is told to stop."""

import asyncio
import random
import re
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

from slipring.bench.checks import Expectation, complaint
from slipring.bench.digests import Digest
from slipring.bench.exchange import FIRST_TOKENS, Exchange, Fields, Lost, Refused
from slipring.bench.loop import named
from slipring.bench.modes import Mode
from slipring.bench.transports import Access, Transport
from slipring.bench.workloads.plan import Plan

_RETRY_S = 1.0
"""After a failure: whoever tries again at once only adds to the trouble."""
_DIGEST = re.compile(r"\b[0-9a-f]{16}\b")


class Tally:
    """What all users have seen while a number of connections was held."""

    def __init__(self, tokens_per_s: float | None = None) -> None:
        """``tokens_per_s``: how fast tokens are made, where that is known; 0: at once."""
        self.first_token_ms = array("d")
        self.gap_ms = array("d")
        self.lag_ms = array("d")
        self.errors: Counter[str] = Counter()
        self.turns = 0
        self.waiting = 0
        self.waiting_late = 0
        self.stalled = 0
        self._token_ms = 1000 / tokens_per_s if tokens_per_s else None

    def take(self, exchange: Exchange) -> None:
        """A turn that came to its end."""
        self.turns += 1
        if (first_ms := exchange.first_ms(*FIRST_TOKENS)) is not None:
            self.first_token_ms.append(first_ms)
        arrivals = zip(exchange.events, exchange.arrivals_ns, strict=True)
        deltas = [at_ns for event, at_ns in arrivals if event.get("type") in FIRST_TOKENS]
        self.gap_ms.extend((after - before) / 1e6 for before, after in pairwise(deltas))
        if self._token_ms is not None and deltas:
            tokens = _usage(exchange).get("output_tokens") or len(deltas)
            self.lag_ms.append((deltas[-1] - deltas[0]) / 1e6 - (tokens - 1) * self._token_ms)

    def take_unfinished(self, under_way: Iterable[Exchange], limit_ms: float) -> None:
        """Turns that are still under way when the watch ends. One without a first token counts with the time
        that it has waited if that is beyond the limit; with less, nobody knows yet what it will come to."""
        for exchange in under_way:
            if exchange.first_ms(*FIRST_TOKENS) is None:
                self.waiting += 1
                if (age_ms := exchange.age_ms) > limit_ms:
                    self.waiting_late += 1
                    self.first_token_ms.append(age_ms)
            elif (silence_ms := exchange.silence_ms) > limit_ms:
                self.stalled += 1
                self.gap_ms.append(silence_ms)


class Crowd:
    """Users that grow in number."""

    def __init__(
        self,
        access: Access,
        mode: Mode,
        head: Fields,
        plan: Plan,
        think_ms: float,
        *,
        gives_digests: bool = False,
    ) -> None:
        self.tally = Tally()
        self.under_way: set[Exchange] = set()
        """Turns that have not come to their end, and connections that are being opened."""
        self._access = access
        self._mode = mode
        self._head = head
        self._plan = plan
        self._think_s = think_ms / 1000
        self._gives_digests = gives_digests
        self._transports: set[Transport] = set()
        self._users: list[asyncio.Task[None]] = []

    @property
    def open_connections(self) -> int:
        return sum(transport.is_open for transport in self._transports)

    async def grow(self, count: int, within_s: float) -> None:
        """Add users until there are so many, spread evenly over a time."""
        pause_s = within_s / max(1, count - len(self._users))
        while len(self._users) < count:
            number = len(self._users)
            self._users.append(asyncio.create_task(self._live(number, random.Random(number))))
            await asyncio.sleep(pause_s)

    async def leave(self) -> None:
        for user in self._users:
            user.cancel()
        if self._users:
            await asyncio.wait(self._users)
        for user in self._users:
            if not user.cancelled() and (error := user.exception()) is not None:
                raise error

    async def _live(self, number: int, chance: random.Random) -> None:
        """One user, who starts again after every failure."""
        life = 0
        while True:
            life += 1
            try:
                async with self._connected() as transport:
                    while True:
                        await self._chat(transport, f"user {number} {life}", chance)
                        life += 1
            except (Refused, Lost) as error:
                self.tally.errors[self._access.tell(str(error))] += 1
            except TimeoutError:
                self.tally.errors["no answer in time"] += 1
            await asyncio.sleep(_RETRY_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Transport]:
        """A connection that is open before its user begins to think, where it can be."""
        async with self._mode.open(self._access) as transport:
            self._transports.add(transport)
            try:
                with self._watched():
                    await transport.open()
                yield transport
            finally:
                self._transports.remove(transport)

    @contextmanager
    def _watched(self) -> Iterator[Exchange]:
        """Something that a user waits for."""
        exchange = Exchange()
        self.under_way.add(exchange)
        try:
            yield exchange
        finally:
            self.under_way.remove(exchange)

    async def _chat(self, transport: Transport, name: str, chance: random.Random) -> None:
        context = self._mode.context()
        head = {**self._head, "instructions": named(self._plan.instructions, name)}
        digest = Digest(head["instructions"])
        least_tokens = 0
        for step in self._plan.steps:
            await asyncio.sleep(self._think_s * chance.uniform(0.5, 1.5))
            previous = context.previous_response_id
            with self._watched() as exchange:
                await transport.turn(context.request(head, step.messages), exchange=exchange)
            digest.add(step.messages)
            expected = Expectation(
                needs="text",
                previous_response_id=previous,
                least_input_tokens=least_tokens,
                digest=str(digest) if self._gives_digests else None,
                may_be_cut="max_output_tokens" in head,
            )
            if (wrong := complaint(exchange.events, exchange.answer, expected)) is not None:
                raise Lost(f"wrong answer: {_DIGEST.sub('…', wrong)}")  # or each failure is one of its own
            self.tally.take(exchange)
            least_tokens = _usage(exchange).get("input_tokens") or 0
            digest.add(exchange.answer)
            context.learn(exchange)


def _usage(exchange: Exchange) -> dict[str, Any]:
    return (exchange.response or {}).get("usage") or {}
