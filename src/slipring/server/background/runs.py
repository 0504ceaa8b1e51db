"""Background responses: runs that continue without a connection, and that any node can stream or cancel.

One node, the owner, makes a run with the same driver and session as any other response. It writes the events
to the store in batches. A lease in the store shows that the owner is alive, and every write checks that the
run still belongs to it. A node that cancels a run, or ends one that its owner has abandoned, takes it over
for good, so that no run is made twice or ends twice. Until then, an owner whose lease has expired goes on.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable

from slipring.base.errors import OVERLOAD_RETRY_S, ApiError, RateLimited
from slipring.base.periodic_tasks import PeriodicTasks, cancel_and_wait
from slipring.core.betas import NO_BETAS, Betas
from slipring.core.turn.turn import Turn
from slipring.protocol.events import TERMINAL, Error, Event, ResponseEvent
from slipring.protocol.responses import Response
from slipring.protocol.wire import encode
from slipring.server.access.auth import Caller
from slipring.server.background.cancelled_and_orphaned_runs import (
    Claim,
    ExpiredLeases,
    cancel_run,
    fail_abandoned,
    save_unfinished,
)
from slipring.server.clock import now, shared_now
from slipring.server.driver import Driver, Exchange, Sink
from slipring.server.observation.ended_turns import Origin
from slipring.server.process.shutdown import shutting_down
from slipring.server.service import Service
from slipring.server.transports.http import PostedCreate
from slipring.stores.runs import Beginning, Lease, LeaseLost, Run, RunEvent

log = logging.getLogger("slipring")

_BATCH_S = 0.1
"""Events that arrive within this time are written to the store together."""
_EXPIRED_AT_ONCE = 100


class Notifier:
    """Wakes all waiting tasks each time ``notify`` is called."""

    def __init__(self) -> None:
        self._change: asyncio.Future[None] | None = None

    def notify(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    async def wait(self) -> None:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)  # a waiter that is cancelled must not cancel the others


class RunRefused(Exception):
    """The request was rejected before its response was created."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.error.message)
        self.error = error


class RecentEvents:
    """The latest events of a run, by their numbers, bounded in bytes. The newest is never dropped; a follower
    that needs older ones reads the store."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._events: list[RunEvent] = []
        self._dropped = -1
        """The number of the newest event that was dropped."""
        self.used_bytes = 0

    def add(self, events: list[RunEvent]) -> None:
        """Append events, whose numbers must be greater than those before."""
        self._events += events
        self.used_bytes += sum(len(event.data) for event in events)
        count = 0
        while self.used_bytes > self._limit_bytes and count < len(self._events) - 1:
            self.used_bytes -= len(self._events[count].data)
            count += 1
        if count:
            self._dropped = self._events[count - 1].sequence_number
            del self._events[:count]

    def after(self, number: int) -> list[RunEvent] | None:
        """All events after a number; None if some of them were dropped. Costs what it returns."""
        if number < self._dropped:
            return None
        return self._events[bisect_right(self._events, number, key=lambda event: event.sequence_number) :]


class LiveRun(Sink):
    """A run that this node makes: the sink of its driver.

    It writes events to the store. Followers see only written events, so that they can continue on any node.
    """

    def __init__(self, service: Service, caller: Caller, betas: Betas, traceparent: str | None) -> None:
        """``betas``, ``traceparent``: of the HTTP request that asks for the run."""
        loop = asyncio.get_running_loop()
        self._service = service
        self._store = service.store
        self._opened: asyncio.Future[Response] = loop.create_future()
        self._lease: asyncio.Future[Lease] = loop.create_future()
        self._unwritten: list[RunEvent] = []
        self._unwritten_bytes = 0
        self._last_sent = self._last_written = -1
        """Numbers of events."""
        self._retry_s = 0.0
        """Time between the last write, which failed, and the next; 0 if it did not fail."""
        self._is_urgent = asyncio.Event()
        """Whether a hosted call waits until everything is written."""
        self._response: Response | None = None
        self._turn: Turn | None = None
        self._beginning: Beginning | None = None
        """What the response began with, until it is in the store."""
        self._sent = Notifier()
        self._has_sent_last = False
        self.recent_events = RecentEvents(service.config.limits.run_tail_bytes)
        """The latest written events."""
        self.written = Notifier()
        """Notified after each write, and when nothing more will be written."""
        self.is_over = False
        """This node writes no more events of the run."""
        self.driver = Driver(
            service,
            caller,
            service.open_exchange(caller, betas),
            self,
            origin=Origin("background", traceparent=traceparent),
            states=service.stored_states,
            lease=self._lease,
        )

    # The sink.

    def send(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Error):
                if not self._opened.done():
                    self._opened.set_exception(RunRefused(event))
                continue
            encoded = self._encoded(event)
            if isinstance(event, ResponseEvent):
                self._response = event.response
            self._unwritten.append(RunEvent(event.sequence_number, encoded))
            self._unwritten_bytes += len(encoded)
            self._last_sent = event.sequence_number
            self._has_sent_last = self._has_sent_last or isinstance(event, TERMINAL)
        if self._response is not None and not self._opened.done():
            self._opened.set_result(self._response)
        self._sent.notify()

    def _encoded(self, event: Event) -> bytes:
        try:
            return encode(event)
        except Exception as error:
            if isinstance(event, TERMINAL):
                if not self._opened.done():
                    self._opened.set_exception(error)
                self.stop_following()  # its lease expires, and the response fails
            raise

    def room(self) -> Awaitable[None] | None:
        """Wait while the store does not keep up, so that the engine is not pulled meanwhile."""
        return self._wait_for_room() if self._is_full else None

    async def secure(self) -> None:
        number = self._last_sent
        while self._last_written < number:
            if self.is_over:
                raise LeaseLost
            self._is_urgent.set()
            await self.written.wait()

    # Life cycle.

    @property
    def promised(self) -> Response:
        """The response object at the time it was accepted."""
        return self._opened.result()

    @property
    def lease(self) -> Lease | None:
        """None if the run is not in the store yet, or is over."""
        if self.is_over or not self._lease.done() or self._lease.cancelled():
            return None
        return self._lease.result()

    def owns(self, run: Run) -> bool:
        """Whether ``run``, as read from the store, belongs to this node, which is still making it."""
        if self.is_over or run.owner != self._service.node_id:
            return False
        return self.lease is None or self.lease.epoch == run.epoch

    async def begin(self, posted: PostedCreate) -> Response:
        """Start the response. Raises ``RunRefused``."""
        session, size_bytes = self.driver.session, posted.size_bytes
        self.driver.run(
            session.create(posted.request, posted.stages, size_bytes=size_bytes, now=now(), detached=True)
        )
        self._turn = next(iter(session.running_and_queued()), None)
        return await self._opened

    async def open(self) -> None:
        """Record the run in the store."""
        turn, first = self._turn, self._take_unwritten()
        assert turn is not None
        if self._has_sent_last:
            # It has ended already: its end is written with the response that ends it.
            first, self._unwritten = first[:1], first[1:]
        parent_id = turn.bound.parent.id if turn.bound.parent is not None else None
        assert turn.prepared is not None
        is_upstream = turn.prepared.draft.model.runs_hosted_tools
        self._beginning = Beginning(parent_id, turn.head, turn.input, is_upstream)
        beginning = self._take_beginning()
        lease = await self._store.runs.open(
            self.driver.session.tenant,
            self.promised,
            first,
            owner=self._service.node_id,
            lease_until=self._lease_until(),
            beginning=beginning,
        )
        if not self._lease.done():
            self._lease.set_result(lease)
        self._note_written(first)

    async def run(self) -> None:
        """Write events until the last one is written, or until another node takes the run over."""
        try:
            lease = self._lease.result()
            while self._unwritten or not self._has_sent_last:
                if not self._unwritten:
                    await self._sent.wait()
                await self._write(lease)
                if not self._has_sent_last:
                    await self._gather()  # the first event is written at once, later ones in batches
        except LeaseLost:
            log.info("run %s was taken over by another node", self.promised.id)
        finally:
            self.stop_following()
            await self.driver.stop()

    def stop_following(self) -> None:
        """Write no more events; followers continue from the store."""
        if not self._lease.done():
            self._lease.set_exception(LeaseLost())
            self._lease.exception()  # marked as retrieved: the driver may not wait for it
        self.is_over = self._has_sent_last = True
        self._sent.notify()
        self.written.notify()

    async def _write(self, lease: Lease) -> None:
        batch = self._take_unwritten()
        if not batch or self._response is None:
            return
        response, beginning = self._response, self._take_beginning()
        try:
            if response.status == "failed":
                await save_unfinished(self._store, self._service.seal, lease, response)
            await self._store.runs.append(
                lease, batch, response, lease_until=self._lease_until(), beginning=beginning
            )
        except ApiError as error:  # retried: the store may be back before the lease expires
            if not self._retry_s:
                log.warning("cannot write events of run %s yet: %s", lease.response_id, error.message)
            self._beginning = self._beginning or beginning
            self._unwritten = batch + self._unwritten
            self._unwritten_bytes += sum(len(event.data) for event in batch)
            longest_s = self._service.config.limits.run_lease_s / 10
            self._retry_s = max(_BATCH_S, min(2 * self._retry_s, longest_s))
            await asyncio.sleep(self._retry_s)
            return
        self._retry_s = 0.0
        self._note_written(batch)

    def _take_beginning(self) -> Beginning | None:
        """What the response began with, once, as soon as no safety check holds it back."""
        turn = self._turn
        if turn is None or turn.is_blocked or (turn.checks is not None and turn.checks.gate.holds_input):
            return None
        taken, self._beginning = self._beginning, None
        return taken

    def _note_written(self, events: list[RunEvent]) -> None:
        if events:
            self._last_written = events[-1].sequence_number
        self.recent_events.add(events)
        self.written.notify()

    async def _gather(self) -> None:
        """Wait for more events to write together, unless some are urgent."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_urgent.wait(), _BATCH_S)

    @property
    def _is_full(self) -> bool:
        return self._unwritten_bytes > self._service.config.limits.send_buffer_bytes and not self.is_over

    async def _wait_for_room(self) -> None:
        while self._is_full:
            await self.written.wait()

    def _take_unwritten(self) -> list[RunEvent]:
        taken, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
        self._is_urgent.clear()
        return taken

    def _lease_until(self) -> float:
        return shared_now() + self._service.config.limits.run_lease_s


class Background:
    """Makes the runs of this node, and ends runs whose node has died."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._runs: dict[tuple[str, str], LiveRun] = {}
        self._running_of: Counter[str] = Counter()
        """Number of runs by tenant, including those that are being opened."""
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each run."""
        self._periodic = PeriodicTasks()
        # Longer than the interval at which an owner renews.
        self._expired = ExpiredLeases(grace_s=service.config.limits.run_lease_s / 2)

    def start(self) -> None:
        interval_s = self.service.config.limits.run_lease_s / 3
        self._periodic.start("renewing the leases of background runs", self._renew, interval_s)
        self._periodic.start("ending abandoned background runs", self._end_abandoned, interval_s)

    async def close(self) -> None:
        """Stop all runs of this node. Other nodes end them when their leases expire."""
        await self._periodic.stop()
        await cancel_and_wait(self._tasks)

    def find(self, tenant: str, response_id: str) -> LiveRun | None:
        return self._runs.get((tenant, response_id))

    async def begin(self, caller: Caller, posted: PostedCreate, betas: Betas = NO_BETAS) -> LiveRun:
        """Start a run. Raises ``RunRefused`` if the request is rejected, ``RateLimited`` at the limits."""
        limits, tenant = self.service.config.limits, caller.tenant
        if self._running_of[tenant] >= limits.tenant_runs:
            raise RateLimited(
                f"This tenant has reached its limit of running background responses ({limits.tenant_runs})."
                " Wait for one to finish.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        if self._running_of.total() >= limits.max_runs:
            raise RateLimited(
                "This server has reached its limit of background responses. Try again later.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        run = LiveRun(self.service, caller, betas, posted.traceparent)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running_of[tenant] += 1
        task = asyncio.create_task(self._run(run, opened, posted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(opened)  # the run starts even if the client disconnects now
        return run

    async def cancel(self, tenant: str, response_id: str) -> Response | None:
        """End a run, on whichever node it is made. Returns its last response; None if no run has this id."""
        run = await self.service.store.runs.read(tenant, response_id)
        if run is None:
            return None
        response = await cancel_run(self.service.store, run, self._claim())
        await self.stop(tenant, response_id)
        return response

    async def stop(self, tenant: str, response_id: str) -> None:
        """Stop the engine of a run that has been ended or deleted, if it is made here."""
        live = self.find(tenant, response_id)
        if live is not None:
            live.stop_following()
            await live.driver.stop()

    async def _run(self, run: LiveRun, opened: "asyncio.Future[None]", posted: PostedCreate) -> None:
        """Open a run and make it. Resolves ``opened`` when it is in the store, or with the error."""
        key: tuple[str, str] | None = None
        try:
            with self.service.serving(Exchange(run.driver)):
                response = await run.begin(posted)
                key = run.driver.session.tenant, response.id
                self._runs[key] = run  # before it is in the store: from then on this node is its owner
                await run.open()
                _resolve(opened)
                await run.run()
        except (ApiError, RunRefused) as refusal:
            _resolve(opened, refusal)
        except asyncio.CancelledError:
            _resolve(opened, shutting_down())
            raise
        except Exception as error:
            log.exception("a background run failed unexpectedly")
            _resolve(opened, error)
        finally:
            if key is not None:
                del self._runs[key]
            self._running_of[run.driver.session.tenant] -= 1
            self._running_of += Counter()  # without the tenants that have none
            run.stop_following()
            await run.driver.stop()

    async def _renew(self) -> None:
        """Extend the leases of the runs made here."""
        leases = [run.lease for run in self._runs.values() if run.lease is not None]
        if not leases:
            return
        until = shared_now() + self.service.config.limits.run_lease_s
        for lease in await self.service.store.runs.renew(leases, lease_until=until):
            live = self.find(lease.tenant, lease.response_id)
            if live is not None:
                # Its own task stops the engine: the other leases must not wait for that.
                live.stop_following()

    async def _end_abandoned(self) -> None:
        runs, expired = self.service.store.runs, self._expired
        found = await runs.expired(shared_now(), _EXPIRED_AT_ONCE)
        others = [run for run in found if not self._owns(run)]
        for run in expired.abandoned(others, now()):
            await fail_abandoned(self.service.store, run, self._claim())
        for run in others:
            if not expired.is_known(run) and await runs.touch(run):
                expired.note(run, now())
        expired.looked(now())

    def _owns(self, run: Run) -> bool:
        live = self.find(run.tenant, run.response_id)
        return live is not None and live.owns(run)

    def _claim(self) -> Claim:
        lease_until = shared_now() + self.service.config.limits.run_lease_s
        return Claim(self.service.node_id, lease_until, self.service.seal)


def _resolve(opened: "asyncio.Future[None]", error: BaseException | None = None) -> None:
    """Resolve the future once; later outcomes are dropped."""
    if opened.done():
        return
    if error is None:
        opened.set_result(None)
    else:
        opened.set_exception(error)
        opened.exception()  # marked as retrieved: the client may have disconnected
