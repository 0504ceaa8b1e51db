"""What happens when an engine fails: which failures are tried again, and when a model is refused at once.

- After several failures in a row of a model its jobs are refused at once, and the engine is probed until it
  answers.
- An attempt that fails before its answer begins is repeated, after a pause with jitter, or the pause that the
  server asks for. After that nothing is repeated: the client has read the beginning.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import structs

from slipring.base.errors import ServerError, Unavailable, forget_frames
from slipring.engines.addresses_and_options import option
from slipring.engines.scheduling.job_queue import JobQueue, Ticket
from slipring.engines.scheduling.loop_schedule import Need
from slipring.observation import live_messages

log = logging.getLogger("slipring")

Probe = Callable[[], Awaitable[None]]
Attempt = Callable[[Callable[[], None]], Awaitable[None]]
"""Asks for an answer once and emits it. Calls its argument as soon as the answer has begun."""
_LONGEST_PAUSE_S = 60.0
_LONGEST_RETRY_S = 10.0
"""A server that asks for a longer pause is not tried again: the client is given its `Retry-After`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """The options of admission, which all engines in front of servers share."""

    max_jobs: int = option(64, "jobs that run at once", least=1)
    max_waiting: int = option(
        256, "jobs that may wait for their turn, tenants in turn; more are refused with 429"
    )
    connect_timeout_s: float = option(5.0, "seconds within which a connection must be made")
    first_token_timeout_s: float = option(300.0, "seconds within which an answer must begin")
    idle_timeout_s: float = option(120.0, "seconds of silence after which a begun answer fails")
    retries: int = option(2, "further attempts if one fails before its first token")
    failures_to_close: int = option(
        5, "failures in a row after which jobs are refused with 503 at once", least=1
    )
    probe_interval_s: float = option(2.0, "seconds between probes while jobs are refused; doubles up to 60")


class Retryable(Unavailable):
    """The engine could not be reached or is overloaded: another attempt may succeed."""


class RequestFailed(Retryable):
    """The engine answered with a failure of this one request. The breaker does not count it."""


class GatewayFailed(Retryable):
    """A gateway or router has answered that it could not reach the server behind it, or not in time."""


_UNAVAILABLE = frozenset({408, 425, 498, 499, 503, 529})
"""Statuses of a server that is not available at the moment."""
_GATEWAY = frozenset({502, 504})
_CONFLICT = 409


def retryable(status: int) -> Retryable | None:
    """The failure that a status of HTTP means, if another attempt may succeed: of the server, of a gateway
    before it, or of this one request alone."""
    if status in _UNAVAILABLE:
        return Retryable("The engine is not available.")
    if status in _GATEWAY:
        return GatewayFailed("The engine is not available.")
    return RequestFailed("The engine has failed.") if status >= 500 or status == _CONFLICT else None


class Breaker:
    """Counts the failures in a row of one model. After several, its jobs are refused at once, and the engine
    is probed until it answers."""

    def __init__(self, name: str, policy: AdmissionPolicy, probe: Probe) -> None:
        self._name = name
        self._policy = policy
        self._probe = probe
        self._failures = 0
        self._probing: asyncio.Task[None] | None = None
        self._retry_after_s = policy.probe_interval_s

    @property
    def trouble(self) -> str | None:
        """Why jobs are refused at present; None if they are not."""
        return None if self._probing is None else f"{self._name} does not answer"

    def require_closed(self) -> None:
        if self._probing is not None:
            raise Unavailable(
                "The engine does not answer. Try again later.", retry_after_s=self._retry_after_s
            )

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= self._policy.failures_to_close and self._probing is None:
            log.error(
                "%s failed %d times in a row; refusing jobs until it answers", self._name, self._failures
            )
            self._probing = asyncio.create_task(self._probe_until_it_answers())

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probing

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


class Admission(JobQueue):
    """Admission to an engine that can fail: a job queue, retries, and refusal while a model is down."""

    def __init__(self, name: str, policy: AdmissionPolicy, probe: Probe) -> None:
        """``probe`` returns if the engine answers and raises otherwise; ``name`` is for logs and health."""
        super().__init__(policy.max_jobs, policy.max_waiting)
        self._name = name
        self._policy = policy
        self._probe = probe
        self._breakers: dict[str, Breaker] = {}
        """By model: a server that offers many may fail for one alone."""

    @property
    def trouble(self) -> str | None:
        """Why jobs are refused at present; None if those of any model that was used are not."""
        troubles = [each.trouble for each in self._breakers.values()]
        return troubles[0] if troubles and None not in troubles else None

    def described(self, engine: live_messages.Engine) -> live_messages.Engine:
        """The status of an engine, with its queue and its breakers: open if that of any model is."""
        is_open = any(each.trouble is not None for each in self._breakers.values())
        breaker = "open" if is_open else "closed"
        loops = None if self._schedule is None else self._schedule.status(asyncio.get_running_loop().time())
        return structs.replace(
            engine, running=self.running, waiting=self.waiting, breaker=breaker, loops=loops
        )

    async def close(self) -> None:
        for breaker in self._breakers.values():
            await breaker.close()

    def require_admission(self, tenant: str, model: str = "", need: Need | None = None) -> None:
        """Raise now what ``admission`` will raise."""
        self._breaker(model).require_closed()
        self.require_room(tenant, need)

    @contextmanager
    def admission(self, tenant: str, model: str = "", need: Need | None = None) -> Iterator[Ticket]:
        """A ticket for a job, as ``ticket``; refused with ``Unavailable`` while the model is down."""
        self._breaker(model).require_closed()
        with self.ticket(tenant, need) as ticket:
            yield ticket

    async def run(self, attempt: Attempt, model: str = "", ticket: Ticket | None = None) -> None:
        """Run an answer: call ``attempt`` until an answer begins, one fails for good, or no retry is left.
        How long its first token took is noted on the ticket."""
        policy, breaker = self._policy, self._breaker(model)
        retries = policy.retries
        while True:
            start = _Start(breaker, ticket)
            try:
                async with asyncio.timeout(policy.first_token_timeout_s) as start.limit:
                    await attempt(start.begin)
                    start.begin()
                    return
            except TimeoutError:
                if start.has_begun:
                    raise
                breaker.failed()
                raise ServerError("The engine did not begin its answer in time.") from None
            except Retryable as error:
                if start.has_begun:
                    raise
                if not isinstance(error, RequestFailed):
                    breaker.failed()
                pause_s = _jittered(0.1 * 2 ** (policy.retries - retries))
                if error.retry_after_s is not None:
                    pause_s = max(pause_s, error.retry_after_s)
                if not retries or breaker.trouble is not None or pause_s > _LONGEST_RETRY_S:
                    raise
                log.info("%s: %s; trying again", self._name, error.detail or error.message)
                forget_frames(error)
            finally:
                start.limit = None  # it refers to the task, whose exception refers to this frame
            await asyncio.sleep(pause_s)
            retries -= 1

    def _breaker(self, model: str) -> Breaker:
        breaker = self._breakers.get(model)
        if breaker is None:
            name = f"{self._name} ({model})" if model else self._name
            breaker = self._breakers[model] = Breaker(name, self._policy, self._probe)
        return breaker


class _Start:
    """The beginning of an attempt, which is bounded in time."""

    __slots__ = ("_breaker", "_ticket", "has_begun", "limit")

    def __init__(self, breaker: Breaker, ticket: Ticket | None) -> None:
        self._breaker = breaker
        self._ticket = ticket
        if ticket is not None:
            ticket.sent_at = asyncio.get_running_loop().time()
        self.has_begun = False
        self.limit: asyncio.Timeout | None = None

    def begin(self) -> None:
        """The answer has begun, if it had not: the engine works."""
        if not self.has_begun and self.limit is not None and not self.limit.expired():
            self.has_begun = True
            self.limit.reschedule(None)
            self._breaker.succeeded()
            if self._ticket is not None:
                self._ticket.begun_at = asyncio.get_running_loop().time()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)
