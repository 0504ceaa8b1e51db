"""The queue of an engine: how many jobs run at once, who waits, and whose job makes room.

At most ``max_jobs`` jobs run at once. The others wait, tenants in turn or in the order of a schedule, up to a
bound; past it they are refused. A tenant that fills the queue does not keep others out of it: its latest jobs
make room for theirs.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slipring.base.errors import OVERLOAD_RETRY_S, RateLimited
from slipring.core.generation import Accepted, Begun, Emit, deliver
from slipring.engines.scheduling.loop_schedule import REVIEW_S, Loop, Need
from slipring.engines.scheduling.loop_schedule import Turn as LoopTurn
from slipring.engines.scheduling.replica_placement import ReplicaSchedules


class JobQueue:
    """Lets ``max_jobs`` jobs run at once; ``max_waiting`` more wait, tenants in turn or by a schedule."""

    def __init__(self, max_jobs: int, max_waiting: int) -> None:
        self._max_jobs = max_jobs
        self._max_waiting = max_waiting
        self._running = 0
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()  # next tenant first
        self._waiters = 0
        self._schedule: ReplicaSchedules | None = None
        self._scheduled: dict[LoopTurn, Ticket] = {}
        """The tickets that wait, by their turn in the schedule."""
        self._review: asyncio.TimerHandle | None = None
        """The schedule decides again when some time has passed, while anyone waits."""
        self._changes: set[asyncio.Future[None]] = set()
        """Completed when a job begins, waits or ends."""
        self._spare: set[asyncio.Future[None]] = set()
        """The work of ``run_spare`` that has not ended."""

    def follow(self, schedule: ReplicaSchedules) -> None:
        """Run jobs in the order of a schedule from now on. Every job then says what it needs."""
        self._schedule = schedule

    @property
    def running(self) -> int:
        """Jobs that run."""
        return self._running

    @property
    def waiting(self) -> int:
        """Jobs that wait for their turn."""
        return self._waiters

    def require_room(self, tenant: str, need: Need | None = None) -> None:
        """Raise now what ``ticket`` will raise: before a context is rendered and tokenized in vain. ``need``:
        what is known of it, if jobs are scheduled."""
        if not self._has_room(tenant, need):
            raise _too_busy()

    def _has_room(self, tenant: str, need: Need | None) -> bool:
        if self._waiters < self._max_waiting or self._displaced_by(tenant) is not None:
            return True
        if self._schedule is None:
            return self._running < self._max_jobs
        return need is not None and self._schedule.is_open_to(need)

    @contextmanager
    def ticket(self, tenant: str, need: Need | None = None) -> Iterator["Ticket"]:
        """Take a place, or one in the tenant's queue. Raises ``RateLimited`` if the queue is full and no
        tenant has more jobs in it than this one."""
        ticket = Ticket(self, tenant, need)
        try:
            if ticket.has_to_wait and self._waiters > self._max_waiting:
                self._make_room(tenant)
            yield ticket
        finally:
            ticket.give_back()

    async def run_spare(self, most_jobs: int, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run work that must not delay jobs. Waits until at most ``most_jobs`` jobs run and none waits;
        cancels the work when that changes. Returns whether the work was completed."""
        await self.until_spare(most_jobs)
        task = asyncio.ensure_future(work())
        self._spare.add(task)
        task.add_done_callback(self._spare.discard)
        try:
            while not task.done() and self._is_spare(most_jobs):
                change = self._change()
                try:
                    await asyncio.wait((task, change), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
        finally:
            is_done = task.done()
            if not is_done:
                task.cancel()
                await asyncio.wait([task])
        if is_done:
            await task
        return is_done

    async def until_spare(self, most_jobs: int) -> None:
        """Wait until at most ``most_jobs`` jobs run and none waits."""
        while not self._is_spare(most_jobs):
            await self._change()

    async def spare_ended(self) -> None:
        """Wait until all spare work has ended. For a job that runs, and with which none may: it is cancelled
        already, but may still hold what the job looks for."""
        while self._spare:
            await asyncio.wait(self._spare)

    def _is_spare(self, most_jobs: int) -> bool:
        return self._running <= most_jobs and not self._waiters

    def _change(self) -> asyncio.Future[None]:
        """A future that is completed with the next change of the jobs that run or wait."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        return change

    def _changed(self) -> None:
        for change in self._changes:
            if not change.done():
                change.set_result(None)

    def _enter(self, ticket: "Ticket", need: Need | None) -> None:
        """Start a job, or append it to the tenant's queue."""
        self._changed()
        if self._schedule is None and self._running < self._max_jobs:
            self._running += 1
            return
        ticket.start = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ticket.tenant, deque()).append(ticket)
        self._waiters += 1
        if self._schedule is not None:
            assert need is not None
            ticket.scheduled = self._schedule.ask(ticket.tenant, need, _now())
            self._scheduled[ticket.scheduled] = ticket
            self._start_scheduled(self._schedule)

    def _start(self, ticket: "Ticket") -> None:
        assert ticket.start is not None
        ticket.start.set_result(None)
        self._unqueue(ticket)
        self._running += 1

    def placed(self, ticket: "Ticket", replica: str, capacity: int | None) -> None:
        """The replica with this name answers a job; ``capacity`` as in ``ReplicaSchedules.placed``."""
        if self._schedule is not None and ticket.scheduled is not None:
            self._schedule.placed(ticket.scheduled, replica, capacity, _now())
            self._start_scheduled(self._schedule)

    def _start_scheduled(self, schedule: ReplicaSchedules) -> None:
        """Start the jobs whose turn it is."""
        while (turn := schedule.next(_now())) is not None:
            self._start(self._scheduled.pop(turn))
        if self._scheduled and self._review is None:
            self._review = asyncio.get_running_loop().call_later(REVIEW_S, self._reviewed, schedule)

    def _reviewed(self, schedule: ReplicaSchedules) -> None:
        self._review = None
        self._start_scheduled(schedule)

    def _displaced_by(self, tenant: str, more: int = 1) -> str | None:
        """The tenant with the most waiting jobs, if it has more than ``tenant`` would have with some more."""
        most = max(self._waiting, key=lambda name: len(self._waiting[name]), default=tenant)
        own = len(self._waiting.get(tenant, ()))
        return most if most != tenant and len(self._waiting[most]) > own + more else None

    def _make_room(self, tenant: str) -> None:
        """Refuse the latest job of the tenant that has to make room for the one that ``tenant`` has added.
        Raises ``RateLimited`` if none has."""
        most = self._displaced_by(tenant, more=0)
        if most is None:
            raise _too_busy()
        latest = self._waiting[most][-1]
        self._give_up(latest)
        assert latest.start is not None
        latest.start.set_exception(_too_busy())

    def _give_up(self, ticket: "Ticket") -> None:
        """A job that waits will not run."""
        self._unqueue(ticket)
        if self._schedule is not None and ticket.scheduled is not None:
            del self._scheduled[ticket.scheduled]
            self._schedule.withdraw(ticket.scheduled, _now())

    def _leave(self, ticket: "Ticket") -> None:
        """End a job: the next one starts in its place."""
        self._changed()
        self._running -= 1
        if self._schedule is not None and ticket.scheduled is not None:
            if ticket.outcome is None:
                self._schedule.withdraw(ticket.scheduled, _now())
            else:
                self._schedule.end(ticket.scheduled, *ticket.outcome, _now())
            self._start_scheduled(self._schedule)
        elif self._waiting:
            tenant, queue = next(iter(self._waiting.items()))
            self._waiting.move_to_end(tenant)
            self._start(queue[0])

    def _unqueue(self, ticket: "Ticket") -> None:
        self._changed()
        queue = self._waiting[ticket.tenant]
        queue.remove(ticket)
        self._waiters -= 1
        if not queue:
            del self._waiting[ticket.tenant]


class Ticket:
    """One job's place in a ``JobQueue``: waiting first, then running."""

    __slots__ = ("_queue", "begun_at", "outcome", "scheduled", "sent_at", "start", "tenant")

    def __init__(self, queue: JobQueue, tenant: str, need: Need | None) -> None:
        self._queue = queue
        self.tenant = tenant
        self.start: asyncio.Future[None] | None = None
        """Done when the job may run; None if it never had to wait."""
        self.scheduled: LoopTurn | None = None
        self.outcome: tuple[int, Sequence[str]] | None = None
        """After the job: the tokens of its context, and the tools for which its loop waits. None if it
        failed."""
        self.sent_at = self.begun_at = 0.0
        """When its request was sent, and when its answer began."""
        queue._enter(self, need)

    @property
    def has_to_wait(self) -> bool:
        """Whether the job may not run yet."""
        return self.start is not None and not self.start.done()

    @property
    def loop(self) -> Loop | None:
        """The loop that the job belongs to, if jobs are scheduled."""
        return None if self.scheduled is None else self.scheduled.loop

    async def begin(self, accepted: Accepted, emit: Emit) -> None:
        """Emit that the job is accepted, wait until it may run, and emit that it runs. Raises ``RateLimited``
        if another tenant gets its place."""
        if self.has_to_wait:
            await deliver(emit, [accepted])
            await self.turn()
            await deliver(emit, [Begun()])
        else:
            await deliver(emit, [accepted, Begun()])

    async def turn(self) -> None:
        """Wait until the job may run. Raises ``RateLimited`` if another tenant gets its place."""
        if self.start is not None:
            # Shielded: a waiter that is cancelled is removed from the queue by ``give_back``.
            await asyncio.shield(self.start)

    def give_back(self) -> None:
        """Leave the queue, or let the next job run."""
        if self.has_to_wait:
            self._queue._give_up(self)
        elif self.start is None or self.start.exception() is None:
            self._queue._leave(self)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _too_busy() -> RateLimited:
    return RateLimited(
        "The engine is busy, and too many requests wait for it.", retry_after_s=OVERLOAD_RETRY_S
    )
