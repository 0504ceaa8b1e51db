"""Users: each has a connection and chats over it, with pauses, until it is told to stop."""

import asyncio
import random
from array import array
from collections import Counter
from itertools import pairwise

from slipring.bench.checks import Expectation, complaint
from slipring.bench.exchange import FIRST_TOKENS, Exchange, Fields, Lost, Refused
from slipring.bench.loop import named
from slipring.bench.modes import Mode
from slipring.bench.transports import Access, Transport
from slipring.bench.workloads.plan import Plan

_RETRY_S = 1.0
"""After a failure: whoever tries again at once only adds to the trouble."""


class Tally:
    """What all users have seen since it was last emptied."""

    def __init__(self) -> None:
        self.first_token_ms = array("d")
        self.gap_ms = array("d")
        self.errors: Counter[str] = Counter()
        self.turns = 0

    def take(self, exchange: Exchange) -> None:
        """A turn that came to its end."""
        self.turns += 1
        if (first_ms := exchange.first_ms(*FIRST_TOKENS)) is not None:
            self.first_token_ms.append(first_ms)
        arrivals = zip(exchange.events, exchange.arrivals_ns, strict=True)
        deltas = [at_ns for event, at_ns in arrivals if event.get("type") in FIRST_TOKENS]
        self.gap_ms.extend((after - before) / 1e6 for before, after in pairwise(deltas))


class Crowd:
    """Users that grow in number."""

    def __init__(self, access: Access, mode: Mode, head: Fields, plan: Plan, think_ms: float) -> None:
        self.tally = Tally()
        self._access = access
        self._mode = mode
        self._head = head
        self._plan = plan
        self._think_s = think_ms / 1000
        self._users: list[asyncio.Task[None]] = []

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
                async with self._mode.open(self._access) as transport:
                    while True:
                        await self._chat(transport, f"user {number} {life}", chance)
                        life += 1
            except (Refused, Lost) as error:
                self.tally.errors[str(error)] += 1
            except TimeoutError:
                self.tally.errors["no answer in time"] += 1
            await asyncio.sleep(_RETRY_S)

    async def _chat(self, transport: Transport, name: str, chance: random.Random) -> None:
        context = self._mode.context()
        head = {**self._head, "instructions": named(self._plan.instructions, name)}
        least_tokens = 0
        for step in self._plan.steps:
            await asyncio.sleep(self._think_s * chance.uniform(0.5, 1.5))
            previous = context.previous_response_id
            exchange = await transport.turn(context.request(head, step.messages))
            expected = Expectation(
                needs="text",
                previous_response_id=previous,
                least_input_tokens=least_tokens,
                may_be_cut="max_output_tokens" in head,
            )
            if (wrong := complaint(exchange.events, exchange.answer, expected)) is not None:
                raise Lost(f"wrong answer: {wrong}")
            self.tally.take(exchange)
            usage = (exchange.response or {}).get("usage") or {}
            least_tokens = usage.get("input_tokens") or 0
            context.learn(exchange)
