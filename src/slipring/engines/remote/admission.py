"""How jobs get to an engine that others run, and what happens when it fails: one policy for all of them.

- At most so many jobs at once. The others wait, tenants in turn, up to a bound; past it they are refused.
- An engine that fails again and again is closed for a while: jobs are refused at once, and it is probed until
  it answers.
- An attempt that fails before its first token is repeated, after a pause with jitter. After the first token
  nothing is ever repeated: the client has read it.
"""

import asyncio
import contextlib
import logging
import random
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from slipring.engines.options import option
from slipring.errors import ApiError, RateLimited, ServerError, Unavailable

log = logging.getLogger("slipring")

T = TypeVar("T")
Probe = Callable[[], Awaitable[None]]
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How much an engine is asked for at once, and how patiently."""

    max_jobs: int = option(64, "jobs that run at once", least=1)
    max_waiting: int = option(
        256, "jobs that may wait for their turn, tenants in turn; more are refused with 429"
    )
    connect_timeout_s: float = option(5.0, "seconds until a connection is given up")
    first_token_timeout_s: float = option(300.0, "seconds until an answer that does not begin is given up")
    idle_timeout_s: float = option(120.0, "seconds of silence after which an answer is given up")
    retries: int = option(2, "further attempts where one fails before its first token")
    failures_to_close: int = option(
        5, "failures in a row after which jobs are refused with 503 at once", least=1
    )
    probe_interval_s: float = option(
        2.0, "seconds between probes of an engine that is closed; doubles up to 60"
    )


class Retryable(Unavailable):
    """The engine could not be reached or is overloaded: another attempt may succeed."""


class Stumbled(Retryable):
    """The engine is there, and has failed on this one request: no reason to refuse those of others."""


class Places:
    """Places for so many jobs at once, and a bounded queue for them in which tenants take turns."""

    def __init__(self, max_jobs: int, max_waiting: int) -> None:
        self._max_jobs = max_jobs
        self._max_waiting = max_waiting
        self._running = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # tenants in turn
        self._waiters = 0

    @contextmanager
    def ticket(self, tenant: str) -> Iterator["Ticket"]:
        """A claim to a place. Refused at once where there will be none."""
        if self._running >= self._max_jobs and self._waiters >= self._max_waiting:
            raise RateLimited("The engine is busy, and too many requests wait for it.", retry_after_s=1.0)
        ticket = Ticket(self, tenant)
        try:
            yield ticket
        finally:
            ticket.give_back()

    def _enter(self, tenant: str) -> asyncio.Future[None] | None:
        """Take a place, or the end of the tenant's queue."""
        if self._running < self._max_jobs:
            self._running += 1
            return None
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._waiters += 1
        return turn

    def _leave(self) -> None:
        """A place is free: the next tenant's first waiter has it."""
        if not self._waiting:
            self._running -= 1
            return
        tenant, queue = next(iter(self._waiting.items()))
        queue[0].set_result(None)
        self._waiting.move_to_end(tenant)
        self._unqueue(tenant, queue[0])

    def _unqueue(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting[tenant]
        queue.remove(turn)
        self._waiters -= 1
        if not queue:
            del self._waiting[tenant]


class Gate(Places):
    """The way to one engine that others run."""

    def __init__(self, name: str, policy: Policy, probe: Probe) -> None:
        """``probe`` returns if the engine answers, and raises if it does not."""
        super().__init__(policy.max_jobs, policy.max_waiting)
        self._name = name
        self._policy = policy
        self._probe = probe
        self._failures = 0
        self._probing: asyncio.Task[None] | None = None
        self._retry_after_s = policy.probe_interval_s

    @property
    def trouble(self) -> str | None:
        """Why jobs are refused just now, if they are."""
        return None if self._probing is None else f"{self._name} does not answer"

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probing

    @contextmanager
    def ticket(self, tenant: str) -> Iterator["Ticket"]:
        if self._probing is not None:
            raise Unavailable(
                "The engine does not answer. Try again later.", retry_after_s=self._retry_after_s
            )
        with super().ticket(tenant) as ticket:
            yield ticket

    async def stream(self, attempt: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """What an attempt yields; it is repeated where it fails before it has yielded anything."""
        policy = self._policy
        for number in range(policy.retries + 1):
            async with aclosing(attempt()) as items:
                try:
                    async with asyncio.timeout(policy.first_token_timeout_s):
                        first = await anext(items)
                except StopAsyncIteration:
                    self._succeeded()
                    return
                except TimeoutError:
                    self._failed()
                    raise ServerError("The engine did not begin its answer in time.") from None
                except ApiError as error:
                    if isinstance(error, Retryable):
                        if not isinstance(error, Stumbled):
                            self._failed()
                        if number < policy.retries and self._probing is None:
                            await asyncio.sleep(_jittered(0.1 * 2**number))
                            continue
                    raise
                self._succeeded()
                yield first
                async for item in items:
                    yield item
                return

    # Health.

    def _succeeded(self) -> None:
        self._failures = 0

    def _failed(self) -> None:
        self._failures += 1
        if self._failures >= self._policy.failures_to_close and self._probing is None:
            log.error(
                "%s failed %d times in a row; refusing jobs until it answers", self._name, self._failures
            )
            self._probing = asyncio.create_task(self._probe_until_it_answers())

    async def _probe_until_it_answers(self) -> None:
        self._retry_after_s = self._policy.probe_interval_s
        while True:
            await asyncio.sleep(_jittered(self._retry_after_s))
            try:
                async with asyncio.timeout(self._policy.connect_timeout_s):
                    await self._probe()
            except Exception as error:
                log.info("%s still does not answer: %s", self._name, type(error).__name__)
                self._retry_after_s = min(2 * self._retry_after_s, _LONGEST_PAUSE_S)
                continue
            log.info("%s answers again", self._name)
            self._failures = 0
            self._probing = None
            return


class Ticket:
    """One job's claim."""

    __slots__ = ("_places", "_tenant", "_turn")

    def __init__(self, places: Places, tenant: str) -> None:
        self._places = places
        self._tenant = tenant
        self._turn = places._enter(tenant)

    async def turn(self) -> None:
        """Wait until the job may run."""
        if self._turn is not None:
            # Whoever stops waiting leaves the queue by itself, below.
            await asyncio.shield(self._turn)

    def give_back(self) -> None:
        if self._turn is None or self._turn.done():
            self._places._leave()
        else:
            self._places._unqueue(self._tenant, self._turn)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)
