"""Reads the state of a server for the live stream, sends it to all who read the stream, and shows the server
on the admin listener.
"""

import asyncio
import heapq
import logging
import os
import time
from collections.abc import Callable

from msgspec import UNSET, structs

from slipring import __version__
from slipring.core.chain.state import ResponseState
from slipring.core.turn import turn_reports
from slipring.core.turn.turn import Turn
from slipring.observation import live_messages
from slipring.observation.metric_counts import Snapshot
from slipring.protocol.turn_report import TurnReport
from slipring.server.clock import now, unix_time
from slipring.server.driver import Driver, Exchange
from slipring.server.observation.ended_turns import EndedTurn
from slipring.server.observation.health import health_of
from slipring.server.observation.metrics import Metrics, memory_uses
from slipring.server.process.event_loop import LoopLag
from slipring.server.process.process_metrics import resident_bytes
from slipring.server.service import Service
from slipring.server.transports.websocket import WebSocketConnection

_MOST_TURNS = 2000
"""Ended turns in one update; more are only counted."""
_MOST_PARKED = 50
_MOST_TENANTS = 50
_MOST_NODES = 5000
"""Responses in the description of one connection."""
_Signature = tuple[int, int, int, int, int, int]


class LiveView:
    """Makes the updates of one process."""

    def __init__(self, service: Service, metrics: Metrics, lag: LoopLag, process: int = 0) -> None:
        """``process``: the number of the worker."""
        self._service = service
        self._metrics = metrics
        self._lag = lag
        self._process = process
        self._ended: list[live_messages.Turn] = []
        self._missed = 0
        self._sent: dict[int, _Signature] = {}
        """What was sent of each connection, by number."""

    def begin(self) -> None:
        """Collect from now on what ``changes`` returns."""
        self._service.turn_observers.append(self._observe)

    def end(self) -> None:
        """The last watcher has left: drop what was collected for updates."""
        self._service.turn_observers.remove(self._observe)
        self._ended, self._missed = [], 0
        self._sent.clear()

    def _observe(self, turn: EndedTurn) -> None:
        if len(self._ended) < _MOST_TURNS:
            self._ended.append(_ended(turn))
        else:
            self._missed += 1

    def complete(self) -> live_messages.Update:
        """The whole state of this process."""
        at = now()
        connections = [_connection(connection, with_recent=True) for connection in self._sockets()]
        ended = [_ended(turn) for turn in self._service.recent_http_turns]
        return self._update(at, connections, [], ended, 0, is_complete=True)

    def changes(self) -> live_messages.Update:
        """The state of this process, with what has changed since the last call."""
        at = now()
        changed, closed = self._changed()
        ended, missed = self._ended, self._missed
        self._ended, self._missed = [], 0
        update = self._update(at, changed, closed, ended, missed, is_complete=False)
        self._lag.forget_longest()
        return update

    def _update(
        self,
        at: float,
        connections: list[live_messages.Connection],
        closed: list[int],
        turns: list[live_messages.Turn],
        turns_missed: int,
        *,
        is_complete: bool,
    ) -> live_messages.Update:
        service = self._service
        drivers = [_driver(client) for client in service.clients]
        exchanges = [client.driver for client in service.clients if isinstance(client, Exchange)]
        return live_messages.Update(
            process=self._process,
            pid=os.getpid(),
            now=at,
            is_complete=is_complete,
            memory=memory_uses(service),
            tenants=_tenants(service),
            resident_bytes=resident_bytes() or 0,
            cpu_s=round(time.process_time(), 3),
            loop_lag_ms=round(self._lag.longest_s * 1000, 3),
            sockets=service.sockets,
            in_flight=sum([driver.session.in_flight for driver in drivers if driver is not None]),
            waiting=sum([driver.session.waiting for driver in drivers if driver is not None]),
            is_draining=service.draining,
            needs_key=not service.keyring.is_open,
            engines=[engine.status() for engine in service.catalog.engines],
            parked=service.parking.status(at, _MOST_PARKED),
            parked_sessions=len(service.parking),
            totals=self._metrics.totals(),
            connections=connections,
            closed=closed,
            http=[
                _running(turn, driver) for driver in exchanges for turn in driver.session.running_and_queued()
            ],
            turns=turns,
            turns_missed=turns_missed,
        )

    def detail(self, number: int) -> live_messages.ConnectionDetail | None:
        """The chains in the memory of one connection; None if it is not open."""
        for connection in self._sockets():
            if connection.driver.origin.connection == number:
                nodes, is_complete = _nodes(connection)
                described = _connection(connection, with_recent=True)
                return live_messages.ConnectionDetail(described, nodes, is_complete)
        return None

    def _sockets(self) -> list[WebSocketConnection]:
        return [client for client in self._service.clients if isinstance(client, WebSocketConnection)]

    def _changed(self) -> tuple[list[live_messages.Connection], list[int]]:
        """The connections that have changed, and the numbers of those that are closed."""
        changed: list[live_messages.Connection] = []
        sent, self._sent = self._sent, {}
        for connection in self._sockets():
            number = connection.driver.origin.connection
            signature = _signature(connection)
            # The time in its stage changes as long as a turn runs.
            if sent.pop(number, None) != signature or connection.in_flight:
                changed.append(_connection(connection, with_recent=False))
            self._sent[number] = signature
        return changed, list(sent)


def _driver(client: object) -> Driver | None:
    return client.driver if isinstance(client, WebSocketConnection | Exchange) else None


def _signature(connection: WebSocketConnection) -> _Signature:
    session = connection.driver.session
    cache = session.cache
    return (
        connection.turns_ended,
        session.in_flight,
        session.waiting,
        cache.limited_bytes,
        len(cache),
        connection.unread_bytes,
    )


def _connection(connection: WebSocketConnection, *, with_recent: bool) -> live_messages.Connection:
    driver = connection.driver
    session = driver.session
    cache = session.cache
    return live_messages.Connection(
        number=driver.origin.connection,
        tenant=session.tenant,
        opened_at=session.opened_at,
        cache=live_messages.Memory(cache.limited_bytes, cache.limit_bytes),
        responses=len(cache),
        lanes=session.lanes,
        turns_ended=connection.turns_ended,
        unsent_bytes=connection.unread_bytes,
        running=[_running(turn, driver) for turn in session.running_and_queued()],
        recent=[_ended(turn) for turn in connection.recent or ()] if with_recent else UNSET,
    )


def _running(turn: Turn, driver: Driver) -> live_messages.Turn:
    return live_messages.Turn(
        started_at=unix_time(turn.stages.arrived),
        report=_progress(turn),
        transport=driver.origin.transport,
        tenant=turn.asked.tenant,
        connection=driver.origin.connection,
        lane=turn.asked.lane,
        api=driver.origin.api,
    )


def _progress(turn: Turn) -> TurnReport:
    report = turn_reports.progress(turn)
    # A turn pauses both for hosted calls and for its client: operators see which.
    is_calling = turn.is_paused and turn.is_calling
    return structs.replace(report, status="calling") if is_calling else report


def _ended(turn: EndedTurn) -> live_messages.Turn:
    return live_messages.Turn(
        started_at=turn.started_at,
        report=turn.report,
        transport=turn.origin.transport,
        tenant=turn.caller.tenant,
        connection=turn.origin.connection,
        lane=turn.lane,
        api=turn.origin.api,
    )


def _nodes(connection: WebSocketConnection) -> tuple[list[live_messages.Node], bool]:
    """The cached responses of a connection and their ancestors, parents first, and whether these are all."""
    cache = connection.driver.session.cache
    marks = {turn.report.response_id: turn.report.marks or () for turn in connection.recent or ()}
    found: dict[str, live_messages.Node] = {}
    for state in cache.states():
        missing: list[ResponseState] = []
        for node in state.chain():
            if node.id in found:
                break
            missing.append(node)
        for node in reversed(missing):
            if len(found) >= _MOST_NODES:
                return list(found.values()), False
            is_cached = node.id in cache
            found[node.id] = live_messages.Node(
                id=node.id,
                parent=node.parent.id if node.parent is not None else None,
                lane=cache.lane_of(node.id) if is_cached else None,
                depth=node.depth,
                created_at=int(node.response.created_at),
                size_bytes=node.size_bytes,
                context_bytes=node.context_bytes,
                tokens=node.tokens,
                items=len(node.input) + len(node.output),
                is_latest=is_cached and cache.is_latest(node.id),
                is_cached=is_cached,
                is_stored=bool(node.response.store),
                marks=marks.get(node.id, ()),
            )
    return list(found.values()), True


def _tenants(service: Service) -> list[live_messages.TenantMemory]:
    """The tenants that use the most memory."""
    scopes = service.scopes.tenants.items()
    largest = heapq.nlargest(_MOST_TENANTS, scopes, key=lambda entry: entry[1].used_bytes)
    return [live_messages.TenantMemory(name, scope.used_bytes, scope.limit_bytes) for name, scope in largest]


log = logging.getLogger("slipring")


class LiveFeed:
    """Sends each subscriber a complete update first, then one with what has changed, twice a second."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._subscribers: list[live_messages.Receive] = []
        self._new: list[live_messages.Receive] = []
        """Those that are to be sent a complete update."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, receive: live_messages.Receive) -> Callable[[], None]:
        """Send updates to ``receive`` until the returned function is called. If it gets them already, it gets
        a complete one again, beside the others."""
        self._new.append(receive)
        self._wake.set()
        if self._task is None:
            self._view.begin()
            self._task = asyncio.create_task(self._run())

        def unsubscribe() -> None:
            for receivers in (self._new, self._subscribers):
                if receive in receivers:
                    receivers.remove(receive)
            if not self._subscribers and not self._new:
                self.close()

        return unsubscribe

    def close(self) -> None:
        """Stop to make updates."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._view.end()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                # In this order: the complete update contains the changes.
                _send(self._view.changes(), self._subscribers)
                new, self._new = self._new, []
                self._subscribers += [receive for receive in new if receive not in self._subscribers]
                if new:
                    _send(self._view.complete(), new)
            except Exception:
                log.exception("a live update failed")
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next update is due. A new watcher does not wait."""
        try:
            async with asyncio.timeout(live_messages.INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            return


def _send(update: live_messages.Update, subscribers: list[live_messages.Receive]) -> None:
    line = live_messages.encode(update)
    for receive in list(subscribers):
        receive(line)


class ServerSource:
    """The source of a listener beside a server."""

    def __init__(self, service: Service, view: LiveView, metrics: Metrics, api_url: str) -> None:
        self._service = service
        self._metrics = metrics
        self._view = view
        self._feed = LiveFeed(view)
        self._api_url = api_url
        self._started_at = time.time()

    def greeting(self) -> live_messages.Greeting:
        return live_messages.Greeting(
            version=__version__,
            started_at=self._started_at,
            now=time.time(),
            interval_s=live_messages.INTERVAL_S,
            api_url=self._api_url,
            workers=1,
            departed=live_messages.Totals(),
        )

    def subscribe(self, receive: live_messages.Receive) -> Callable[[], None]:
        return self._feed.subscribe(receive)

    async def detail(self, process: int, number: int) -> live_messages.ConnectionDetail | None:
        return self._view.detail(number) if process == 0 else None

    def metrics(self) -> Snapshot:
        return self._metrics.snapshot()

    def health(self) -> tuple[object, int]:
        return health_of(self._service, self._service.store.trouble)
