"""The users of a load, who chat with pauses, and what they have seen."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

from msgspec import Struct

from slipring.commands.bench.client.exchange import FIRST_TOKENS, Fields, TurnExchange, TurnFailed
from slipring.commands.bench.client.transports import Access, Api, Transport
from slipring.commands.bench.measure.loop import unique_instructions
from slipring.commands.bench.measure.modes import modes_of
from slipring.commands.bench.verification import Digest, Expectation, find_faults, without_digests
from slipring.commands.bench.workloads.catalogue import short

_RETRY_S = 1.0
"""Pause after a failure: retrying at once would add load to a struggling server."""


class Job(Struct, frozen=True, kw_only=True):
    """What the users of a load do, and where."""

    url: str
    key: str
    timeout_s: float
    mode: str
    api: Api = "responses"
    head: Fields
    think_ms: float
    limit_ms: float
    """Limit of the time to the first token."""
    tokens_per_s: float | None = None
    """Simulated decoding speed; None if it is not known."""
    has_digests: bool = False
    is_checked: bool = True
    """Whether answers are checked."""
    first: int = 0
    """Number of the first user."""


class Tally(Struct, kw_only=True):
    """What users have seen since the tally began."""

    first_token_ms: list[float] = []
    turn_ms: list[float] = []
    gap_ms: list[float] = []
    lag_ms: list[float] = []
    due_ms: float = 0.0
    """Time that the answers would have taken at their pace."""
    late_ms: float = 0.0
    """Time that they took beyond that."""
    errors: dict[str, int] = {}
    turns: int = 0
    waiting: int = 0
    waiting_late: int = 0
    stalled: int = 0
    open_connections: int = 0
    idle_connections: int = 0
    last_late_ns: int = 0
    """When the last turn that violated the service level got its first token or failed; 0: none did."""
    cpu_s: float = 0.0
    """CPU time of the generating processes."""

    def add(self, exchange: TurnExchange, job: Job) -> None:
        """Add a finished turn."""
        self.turns += 1
        self.turn_ms.append(exchange.total_ns / 1e6)
        if (first_ms := exchange.first_ms(*FIRST_TOKENS)) is not None:
            self.first_token_ms.append(first_ms)
            if first_ms > job.limit_ms:
                self.last_late_ns = time.perf_counter_ns()
        arrivals = zip(exchange.events, exchange.arrivals_ns, strict=True)
        deltas = [at_ns for event, at_ns in arrivals if event.get("type") in FIRST_TOKENS]
        self.gap_ms.extend((after - before) / 1e6 for before, after in pairwise(deltas))
        if job.tokens_per_s and deltas:
            tokens = _usage(exchange).get("output_tokens") or len(deltas)
            due_ms = (tokens - 1) * 1000 / job.tokens_per_s
            lag_ms = (deltas[-1] - deltas[0]) / 1e6 - due_ms
            self.lag_ms.append(lag_ms)
            self.due_ms += due_ms
            self.late_ms += max(0.0, lag_ms)

    def add_error(self, reason: str) -> None:
        """Add a turn or connection that failed."""
        self.errors[reason] = self.errors.get(reason, 0) + 1
        self.last_late_ns = time.perf_counter_ns()

    def add_unfinished(self, pending: Iterable[TurnExchange], limit_ms: float) -> None:
        """Add turns that have not finished when the level ends. A turn without a first token counts with the
        time that it has waited if that exceeds the limit; below the limit its outcome is unknown."""
        for exchange in pending:
            if exchange.first_ms(*FIRST_TOKENS) is None:
                self.waiting += 1
                if (age_ms := exchange.age_ms) > limit_ms:
                    self.waiting_late += 1
                    self.last_late_ns = time.perf_counter_ns()
                    self.first_token_ms.append(age_ms)
            elif (silence_ms := exchange.silence_ms) > limit_ms:
                self.stalled += 1
                self.gap_ms.append(silence_ms)


class Users:
    """A growing number of concurrent users."""

    def __init__(self, access: Access, job: Job) -> None:
        self.tally = Tally()
        self.pending: set[TurnExchange] = set()
        """Turns that have not finished, and connections being opened."""
        self._access = access
        self._job = job
        self._mode = modes_of(job.api)[job.mode]
        self._plan = short()
        self._transports: set[Transport] = set()
        self._users: list[asyncio.Task[None]] = []

    def finished_tally(self) -> Tally:
        """The tally, with the turns that have not finished."""
        self.tally.add_unfinished(self.pending, self._job.limit_ms)
        self.tally.open_connections = self.open_connections
        return self.tally

    @property
    def open_connections(self) -> int:
        return sum(transport.is_open for transport in self._transports)

    async def grow(self, count: int, within_s: float) -> None:
        """Add users up to this number, evenly over this time."""
        pause_s = within_s / max(1, count - len(self._users))
        while len(self._users) < count:
            number = self._job.first + len(self._users)
            self._users.append(asyncio.create_task(self._chat_forever(number, random.Random(number))))
            await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        """Stop all users. Raises if one of them ended with an unexpected exception."""
        for user in self._users:
            user.cancel()
        if self._users:
            await asyncio.wait(self._users)
        for user in self._users:
            if not user.cancelled() and (error := user.exception()) is not None:
                raise error

    async def _chat_forever(self, number: int, chance: random.Random) -> None:
        """Run one user: one chat after the other, with a new connection after every failure."""
        chat = 0
        while True:
            chat += 1
            try:
                async with self._connected() as transport:
                    while True:
                        await self._chat(transport, f"user {number} {chat}", chance)
                        chat += 1
            except TurnFailed as error:
                self.tally.add_error(self._access.redact(str(error)))
            except TimeoutError:
                self.tally.add_error("no answer in time")
            await asyncio.sleep(_RETRY_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Transport]:
        """A connection, opened before the user's first pause if the transport allows it."""
        async with self._mode.open(self._access) as transport:
            self._transports.add(transport)
            try:
                with self._pending():
                    await transport.open()
                yield transport
            finally:
                self._transports.remove(transport)

    @contextmanager
    def _pending(self) -> Iterator[TurnExchange]:
        """An exchange that is listed in ``pending`` during the block."""
        exchange = TurnExchange()
        self.pending.add(exchange)
        try:
            yield exchange
        finally:
            self.pending.remove(exchange)

    async def _chat(self, transport: Transport, name: str, chance: random.Random) -> None:
        context = self._mode.context()
        head = {**self._job.head, "instructions": unique_instructions(self._plan.instructions, name)}
        digest = Digest(head["instructions"])
        least_tokens = 0
        for step in self._plan.steps:
            await asyncio.sleep(self._job.think_ms / 1000 * chance.uniform(0.5, 1.5))
            previous = context.previous_response_id
            with self._pending() as exchange:
                await transport.turn(context.request(head, step.messages), exchange=exchange)
            digest.add(step.messages)
            expected = Expectation(
                needs="text",
                previous_response_id=previous,
                least_input_tokens=least_tokens,
                digest=str(digest) if self._job.has_digests else None,
                may_be_truncated="max_output_tokens" in head,
            )
            faults = find_faults(exchange.events, exchange.answer, expected) if self._job.is_checked else None
            if faults is not None:
                raise TurnFailed(f"wrong answer: {without_digests(faults)}")
            self.tally.add(exchange, self._job)
            least_tokens = _usage(exchange).get("input_tokens") or 0
            digest.add(self._mode.returned(exchange.answer))
            context.learn(exchange)


def _usage(exchange: TurnExchange) -> dict[str, Any]:
    return (exchange.response or {}).get("usage") or {}
