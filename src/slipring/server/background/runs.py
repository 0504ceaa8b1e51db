"""Responses that are made in the background: nobody waits for them, everybody may look.

A run is made by one node, its owner, by the same driver and session as any other response. Its events are
written to the store in batches, so that any node can tell them. A lease says that the owner is alive; every
write checks that the run is still its own. Whoever ends a run in its place, by a cancel or because the lease
is over, takes it away for good: nothing is made twice.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from slipring.core.turn.stages import Stages
from slipring.errors import ApiError, RateLimited
from slipring.protocol.events import TERMINAL, Error, Event, ResponseEvent
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.timing import TurnReport
from slipring.protocol.wire import encode
from slipring.server.access.auth import Caller
from slipring.server.background import endings
from slipring.server.background.recent_events import Tail
from slipring.server.clock import now, shared_now
from slipring.server.cluster.state_lookup import StoredStates
from slipring.server.driver import Driver
from slipring.server.service import Service, shutting_down
from slipring.stores.base import LeaseLost, RunEvent, Tenure

log = logging.getLogger("slipring")

_BATCH_S = 0.1
"""How long events wait for others before they are written together."""
_GOING_AWAY = 1001
_MANY = 100


class Signal:
    """Wakes all who wait, each time something has changed."""

    def __init__(self) -> None:
        self._change: asyncio.Future[None] | None = None

    def give(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    async def wait(self) -> None:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)  # a waiter that gives up must not take the others with it


class Refused(Exception):
    """The request did not become a response."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.error.message)
        self.error = error


class LiveRun:
    """A run of this node, in the making. The sink that its driver sends to, and a client of the server."""

    def __init__(self, service: Service, caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        self._service = service
        self._store = service.store
        self._opened: asyncio.Future[Response] = loop.create_future()
        self._tenure: asyncio.Future[Tenure] = loop.create_future()
        self._unwritten: list[RunEvent] = []
        self._unwritten_bytes = 0
        self._response: Response | None = None
        self._said = Signal()
        self._said_all = False
        self.tail = Tail(service.config.limits.run_tail_bytes)
        """Of what has been written. Whoever follows is told no more: another node must be able to go on."""
        self.written = Signal()
        self.is_over = False
        self.driver = Driver(
            service,
            caller,
            service.open_exchange(caller),
            self,
            states=StoredStates(service.store.responses),
            tenure=self._tenure,
        )

    # The sink.

    def send(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Error):
                if not self._opened.done():
                    self._opened.set_exception(Refused(event))
                continue
            if isinstance(event, ResponseEvent):
                self._response = event.response
            encoded = encode(event)
            self._unwritten.append(RunEvent(event.sequence_number, encoded))
            self._unwritten_bytes += len(encoded)
            self._said_all = self._said_all or isinstance(event, TERMINAL)
        if self._response is not None and not self._opened.done():
            self._opened.set_result(self._response)
        self._said.give()

    def flush(self) -> Awaitable[None] | None:
        """Wait while the store does not keep up: meanwhile the engine is not pulled."""
        return self._room() if self._is_full else None

    def close(self, code: int, reason: str) -> None:
        return

    def record(self, report: TurnReport) -> None:
        return

    # A client of the server.

    def tick(self) -> None:
        if self._service.draining:
            self.driver.run(self.driver.session.tick(now()))

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.driver.run(self.driver.session.end(error, code=_GOING_AWAY, grace_s=grace_s, now=now()))

    # Its life.

    @property
    def promised(self) -> Response:
        """The response as it was when it was accepted."""
        return self._opened.result()

    @property
    def tenure(self) -> Tenure | None:
        return self._tenure.result() if self._tenure.done() and not self._tenure.cancelled() else None

    async def open(self, request: CreateRequest, stages: Stages, size_bytes: int) -> Response:
        """Begin, and have it known to the store; raises ``Refused`` where it is no response."""
        session = self.driver.session
        self.driver.run(session.create(request, stages, size_bytes=size_bytes, now=now(), detached=True))
        try:
            response = await self._opened
            first = self._take_unwritten()
            tenure = await self._store.runs.open(
                session.tenant, response, first, owner=self._service.node_id, lease_until=self._lease()
            )
        except BaseException:
            self._tenure.set_exception(LeaseLost())
            self._tenure.exception()  # whether anybody waits for it or not
            raise
        self._tenure.set_result(tenure)
        self.tail.add(first)
        self.written.give()
        return response

    async def run(self) -> None:
        """Write what is said until nothing more is, or until the run is somebody else's."""
        tenure = self._tenure.result()
        try:
            while self._unwritten or not self._said_all:
                if not self._unwritten:
                    await self._said.wait()
                await self._write(tenure)
                if not self._said_all:
                    await asyncio.sleep(_BATCH_S)  # the first is written at once, what follows in batches
        except LeaseLost:
            log.info("run %s was ended elsewhere", tenure.response_id)
        finally:
            self.stop_following()
            await self.driver.stop()

    def stop_following(self) -> None:
        """Nothing more is written by this node."""
        self.is_over = self._said_all = True
        self._said.give()
        self.written.give()

    async def _write(self, tenure: Tenure) -> None:
        batch = self._take_unwritten()
        if not batch or self._response is None:
            return
        try:
            await self._store.runs.append(tenure, batch, self._response, lease_until=self._lease())
        except ApiError as error:  # the store is away: it may be back before the lease is over
            log.warning("events of run %s could not be written: %s", tenure.response_id, error.message)
            self._unwritten = batch + self._unwritten
            self._unwritten_bytes += sum(len(event.data) for event in batch)
            await asyncio.sleep(_BATCH_S)
            return
        self.tail.add(batch)
        self.written.give()

    @property
    def _is_full(self) -> bool:
        return self._unwritten_bytes > self._service.config.limits.send_buffer_bytes and not self.is_over

    async def _room(self) -> None:
        while self._is_full:
            await self.written.wait()

    def _take_unwritten(self) -> list[RunEvent]:
        taken, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
        return taken

    def _lease(self) -> float:
        return shared_now() + self._service.config.limits.run_lease_s


class Background:
    """The runs of this node, and the end of those whose node is gone."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._runs: dict[tuple[str, str], LiveRun] = {}
        self._made_for: Counter[str] = Counter()
        """How many runs each tenant has, those that are being opened included."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        # Apart from each other: however much there is to clear up, a living node must not look dead.
        self._spawn(self._every(self._renew))
        self._spawn(self._every(self._give_up_abandoned))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def find(self, tenant: str, response_id: str) -> LiveRun | None:
        return self._runs.get((tenant, response_id))

    async def begin(self, caller: Caller, request: CreateRequest, stages: Stages, size_bytes: int) -> LiveRun:
        """Begin a run that goes on by itself; raises ``Refused`` where the request is no response."""
        limits, tenant = self.service.config.limits, caller.tenant
        if self._made_for[tenant] >= limits.tenant_runs:
            raise RateLimited(
                "As many background responses are being made for this tenant as may be"
                f" ({limits.tenant_runs}). Wait for one to finish."
            )
        if self._made_for.total() >= limits.max_runs:
            raise RateLimited("This server makes as many background responses as it may. Try again later.")
        run = LiveRun(self.service, caller)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._made_for[tenant] += 1
        self._spawn(self._run(run, opened, request, stages, size_bytes))
        await asyncio.shield(opened)  # a client that leaves just now has asked for it all the same
        return run

    async def cancel(self, tenant: str, response_id: str) -> Response | None:
        """End a run, whoever makes it; returns the response as it is then. None: there is no such run."""
        run = await self.service.store.runs.read(tenant, response_id)
        if run is None:
            return None
        response = await endings.cancel(self.service.store, run, self._claim())
        await self.stop(tenant, response_id)
        return response

    async def stop(self, tenant: str, response_id: str) -> None:
        """Work no more on a run that has been ended, if it is made here."""
        live = self.find(tenant, response_id)
        if live is not None:
            live.stop_following()
            await live.driver.stop()

    async def _run(
        self,
        run: LiveRun,
        opened: "asyncio.Future[None]",
        request: CreateRequest,
        stages: Stages,
        size_bytes: int,
    ) -> None:
        """A run's whole life; ``opened`` when the store knows it, or with what was in the way."""
        key: tuple[str, str] | None = None
        try:
            with self.service.serving(run):
                response = await run.open(request, stages, size_bytes)
                key = run.driver.session.tenant, response.id
                self._runs[key] = run
                _settle(opened)
                await run.run()
        except (ApiError, Refused) as refusal:
            _settle(opened, refusal)
        except asyncio.CancelledError:
            _settle(opened, shutting_down())
            raise
        except Exception as error:
            log.exception("a background run failed unexpectedly")
            _settle(opened, error)
        finally:
            if key is not None:
                del self._runs[key]
            self._leave(run.driver.session.tenant)
            run.stop_following()
            await run.driver.stop()

    def _leave(self, tenant: str) -> None:
        """A tenant has a run less. Those who have none are not remembered."""
        self._made_for[tenant] -= 1
        if not self._made_for[tenant]:
            del self._made_for[tenant]

    async def _every(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again, often enough for a lease."""
        while True:
            await asyncio.sleep(self.service.config.limits.run_lease_s / 3)
            try:
                await work()
            except ApiError as error:
                log.warning("background runs could not be looked after: %s", error.message)
            except Exception:
                log.exception("looking after background runs failed unexpectedly")

    async def _renew(self) -> None:
        """Stay the owner of what is made here."""
        tenures = [run.tenure for run in self._runs.values() if run.tenure is not None and not run.is_over]
        if not tenures:
            return
        until = shared_now() + self.service.config.limits.run_lease_s
        for tenure in await self.service.store.runs.renew(tenures, lease_until=until):
            live = self.find(tenure.tenant, tenure.response_id)
            if live is not None:
                live.stop_following()  # its own task stops the engine; the others need not wait for that

    async def _give_up_abandoned(self) -> None:
        """End what lost its owner."""
        runs = self.service.store.runs
        for run in await runs.abandoned(shared_now(), _MANY):
            await endings.give_up(self.service.store, run, self._claim())

    def _claim(self) -> endings.Claim:
        return endings.Claim(self.service.node_id, shared_now() + self.service.config.limits.run_lease_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle(opened: "asyncio.Future[None]", error: BaseException | None = None) -> None:
    """Tell whoever waits for a run to begin, if anybody still does."""
    if opened.done():
        return
    if error is None:
        opened.set_result(None)
    else:
        opened.set_exception(error)
        opened.exception()  # seen, even if its client has gone
