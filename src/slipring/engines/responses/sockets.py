"""WebSockets to an upstream, each of one tenant: when one is opened, shared, closed, or not used, and the
lanes on each.

An upstream keeps a response for the socket that made it, and guarantees only the latest response of each
lane. So a continuation is sent on its parent's socket: on the parent's lane if the parent is the latest
there, else on another lane. A lane is reused once no position refers to its latest response any more.

A socket is opened for one chain and its forks, so that its affinity headers are right. When none of their
responses can be continued any more, another chain of the same tenant may use it. A tenant with many sockets
has further chains share them. Tenants share none. A socket is closed when no response on it can be continued,
when it has been idle for long, when it is old, or when the pool is full and another is needed. Where the
upstream takes no WebSocket, the pool has requests posted instead.

One task reads a socket, decodes each event and queues it in its lane. The reader of the lane is given all
events that have come with one read of the socket together. While a client does not keep up, events stay in
the queue. The task waits while a queue is full, so that the upstream is slowed down to the slowest reader of
the socket.
"""

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import aiohttp
from aiohttp import WSMsgType

from slipring.base.aiohttp_internals import transport_of
from slipring.base.errors import ApiError, ServerError
from slipring.core.generation import Job
from slipring.engines.remote.http_connection import HttpFailure
from slipring.engines.remote.retries_and_breaker import Retryable
from slipring.engines.remote.streamed_answer import AnswerReader, Patience, Silence, raise_fault
from slipring.engines.remote.upstream import Upstream
from slipring.engines.remote.upstream_errors import api_failure, refusal
from slipring.engines.responses import reported_errors
from slipring.engines.responses.events import TERMINAL, Event, decode_event
from slipring.engines.responses.options import ResponsesOptions
from slipring.engines.responses.reported_errors import ContextLost, LanesUnsupported

PATH = "/responses"
_BETA = {"OpenAI-Beta": "responses_websockets=2026-02-06"}
MOST_FRAME_BYTES = 16 * 2**20
"""The longest message that upstreams accept."""
_LONGEST_MESSAGE = 64 * 2**20
_CLOSE_S = 4.0
"""How long closing a socket may take, with the wait for the upstream's part of it."""
_CLOSE_FRAME_S = 2.0
_MOST_UNREAD = 32
_MOST_LANES = 32
_MOST_IN_FLIGHT = 16
_OWN_SOCKETS = 16
"""A tenant with this many sockets has new chains share them, if the upstream supports lanes."""
_SILENCE_S = 20.0
_TICK_S = 1.0
_POSTS_S = 60.0
"""How long requests are posted after an upgrade that was not answered."""
_FAILING = frozenset({401, 408, 425, 429})
"""Statuses of a refused upgrade that do not mean that the upstream has no WebSockets."""


class Lane:
    """An ordered stream of responses on a socket, with a bounded queue of unread events."""

    __slots__ = (
        "_events",
        "_fault",
        "_idle",
        "_is_due",
        "_push",
        "_taken",
        "begun",
        "busy",
        "heard",
        "latest",
        "name",
        "over",
        "read",
    )

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.latest: weakref.ref[object] | None = None
        """The position of the latest response here, as long as a chain holds it."""
        self.busy = False
        """A response is being made, even if its job was cancelled."""
        self.read = False
        """A job reads the events."""
        self.heard = False
        """At least one event has come since the lane was taken."""
        self.begun = False
        """``response.created`` has come."""
        self.over = False
        """A terminal event has come."""
        self._events: deque[Event] = deque()
        self._fault: ApiError | None = None
        self._idle: asyncio.Future[None] | None = None
        """Not done while a reader waits for events."""
        self._is_due = False
        """The reader will be given the queue in the next iteration of the event loop."""
        self._push: Callable[[list[Event]], bool]
        """Gives events to that reader; returns whether it waits for more."""
        self._taken = asyncio.Event()

    @property
    def is_free(self) -> bool:
        """Whether it may be taken for another chain: no response is running, and none can be continued."""
        return not self.busy and (self.latest is None or self.latest() is None)

    def take(self) -> None:
        """Reserve the lane for a job."""
        self.busy = self.read = True
        self.heard = self.begun = self.over = False
        self._fault = None
        self._events.clear()

    async def put(self, event: Event) -> None:
        """Append an event to the queue, and give that to the lane's reader once the events that are already
        there have been read; waits while the queue is full."""
        self.heard = True
        self.begun = self.begun or event.type == "response.created"
        self.over = self.over or event.type in TERMINAL
        self._events.append(event)
        if len(self._events) >= _MOST_UNREAD:
            self._give()
        elif not self._is_due and self._idle is not None:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give)
        while len(self._events) >= _MOST_UNREAD and self.read:
            self._taken.clear()
            await self._taken.wait()

    def _give(self) -> None:
        """Give the queue to a reader that waits for events."""
        self._is_due = False
        if (
            self._events
            and self._idle is not None
            and not self._idle.done()
            and not self._push(self._take_all())
        ):
            self._wake()

    def _take_all(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        self._taken.set()
        return events

    def fail(self, fault: ApiError) -> None:
        """End the queue: ``deliver`` raises ``fault`` after the events that are queued."""
        self._fault = fault
        self._wake()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def deliver(self, reader: AnswerReader[Event], idle_s: Patience) -> None:
        """Give the events of an answer to its reader, as they come, until the answer ends. Events queue up
        while its client does not keep up. Raises the fault of the reader or of the lane."""
        waiting: Awaitable[None] | None = None
        too_long = ServerError("The engine has sent nothing for too long.")
        silence = Silence(partial(self.fail, too_long), idle_s)

        def push(events: list[Event]) -> bool:
            nonlocal waiting
            silence.since = silence.clock()
            try:
                waiting = reader.take(events)
            except Exception as error:
                reader.fault = error
            return waiting is None and reader.fault is None and not reader.has_ended

        self._push = push
        silence.begins()
        try:
            while True:
                if waiting is not None:
                    silence.since = None
                    await waiting
                    waiting = None
                    silence.begins()
                if reader.fault is not None:
                    raise_fault(reader)
                if reader.has_ended:
                    return
                if self._events:
                    push(self._take_all())
                elif self._fault is not None:
                    raise self._fault
                else:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
        finally:
            del self._push
            self._idle = None
            silence.forget()

    def leave(self) -> None:
        """Stop reading: drop the queue, and let the socket's reader go on."""
        self.read = False
        self._events.clear()
        self._taken.set()


class Socket:
    """One connection to the upstream."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, tenant: str, now: float) -> None:
        self._ws = ws
        self._transport = transport_of(ws)
        self.tenant = tenant
        self._lanes: dict[str | None, Lane] = {None: Lane(None)}
        self.opened_at = self.used_at = self.heard_at = self.pinged_at = now
        self.retired = False
        """Takes no more responses: it is too old, or the upstream has reported its limit."""
        self.closing: asyncio.Task[object] | None = None
        self._reader: asyncio.Task[None] | None = asyncio.create_task(self._read())
        self._reader.add_done_callback(self._forget_reader)
        self._pinging: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self.closing is None

    @property
    def in_flight(self) -> int:
        return sum(lane.busy for lane in self._lanes.values())

    @property
    def is_wanted(self) -> bool:
        """Whether a job reads any of its lanes."""
        return any(lane.read for lane in self._lanes.values())

    @property
    def is_free(self) -> bool:
        """Whether no response that was made here can be continued."""
        return all(lane.is_free for lane in self._lanes.values())

    def take_after(self, position: object, lane: Lane | None, *, fork: bool, lanes: bool) -> Lane | None:
        """Take a lane to continue the response at ``position``, which was made on ``lane``; None if there is
        none. Forks need ``lanes``: that the upstream takes a ``stream_id``."""
        if lane is None or fork or lane.busy or lane.latest is None or lane.latest() is not position:
            return self.take_another() if lanes else None
        lane.take()
        return lane

    def take_first(self) -> Lane:
        """Take the default lane, for the first response of a chain. The socket must be free."""
        lane = self._lanes[None]
        lane.take()
        return lane

    def take_another(self) -> Lane | None:
        """Take a lane with a ``stream_id``; None if there is none."""
        lane = self._another()
        if lane is not None:
            lane.take()
        return lane

    def _another(self) -> Lane | None:
        if self.in_flight >= _MOST_IN_FLIGHT:
            return None
        free = next((lane for name, lane in self._lanes.items() if name is not None and lane.is_free), None)
        if free is None and len(self._lanes) <= _MOST_LANES:
            name = f"fork-{len(self._lanes)}"
            free = self._lanes[name] = Lane(name)
        return free

    async def send(self, frame: bytes) -> None:
        """Send a create. Raises ``ContextLost`` if the connection is closed."""
        # In a task of its own: jobs that wait for a slow upstream share what they wait for, so one that is
        # cancelled would cancel the others.
        sending = asyncio.create_task(self._ws.send_frame(frame, WSMsgType.TEXT))
        sending.add_done_callback(_ignore_failure)
        try:
            await asyncio.shield(sending)
        except (aiohttp.ClientError, OSError) as error:
            self.drop()
            raise ContextLost from error

    def give_back(self, lane: Lane, position: object | None) -> None:
        """End a job's use of a lane; ``position`` is what it left.

        A response that has not ended can be stopped only by closing the socket. That is done if no other job
        uses the socket; else the rest of the response is read and dropped.
        """
        self.used_at = asyncio.get_running_loop().time()
        lane.latest = weakref.ref(position) if position is not None else None
        lane.leave()
        if lane.over:
            lane.busy = False
        elif not self.is_wanted:
            self.drop()
        if self.retired and not self.is_wanted:
            self.drop()

    def ping(self, now: float, silence_s: float) -> None:
        """Ping a socket that has been silent for ``silence_s``; drop it if the last ping got no answer."""
        if now - self.heard_at > 2 * silence_s and self.pinged_at > self.heard_at:
            self.drop()
        elif now - max(self.heard_at, self.pinged_at) > silence_s:
            self.pinged_at = now
            self._pinging = asyncio.create_task(self._ping())

    def drop(self) -> None:
        """Close it without waiting for the upstream; running responses fail."""
        if self.closing is None:
            if self._reader is not None:
                self._reader.cancel()
            self._end(ContextLost())
            self.closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._ws.close()
        except TimeoutError:
            pass  # it goes on sending, or reads nothing
        finally:
            # What the upstream has not read would keep the connection open for as long as it likes.
            if self._transport is not None:
                self._transport.abort()

    def _forget_reader(self, reader: asyncio.Task[None]) -> None:
        # A task that was cancelled keeps the frame that it was cancelled in, which refers to this socket:
        # only a garbage collection would free both.
        self._reader = None

    async def _ping(self) -> None:
        try:
            await self._ws.ping()
        except (aiohttp.ClientError, OSError):
            self.drop()

    async def _read(self) -> None:
        fault: ApiError = ContextLost()
        try:
            while True:
                message = await self._ws.receive()
                self.heard_at = asyncio.get_running_loop().time()
                if message.type is WSMsgType.TEXT:
                    await self._route(decode_event(message.data))
                elif message.type is WSMsgType.PING:
                    await self._ws.pong(message.data)
                elif message.type is not WSMsgType.PONG:
                    break
        except (aiohttp.ClientError, OSError):
            pass  # the connection is lost
        except ServerError as error:
            fault = error
        finally:
            self._end(fault)
        if self.closing is None:
            self.closing = asyncio.create_task(self._close())

    async def _route(self, event: Event) -> None:
        """Give an event to its lane."""
        if event.stream_id is None and self._is_without_lanes(event.type):
            return
        lane = self._lanes.get(event.stream_id)
        if event.type == "error" and reported_errors.code_of(event) == "websocket_connection_limit_reached":
            # About the connection: responses that have begun may still complete.
            self.retired = True
            if lane is not None and lane.heard:
                return
        if lane is None or not lane.busy:
            return
        if lane.read:
            await lane.put(event)
        elif event.type in TERMINAL:
            lane.busy = False

    def _is_without_lanes(self, kind: str) -> bool:
        """Whether an event without a ``stream_id`` must belong to a fork. Then the upstream ignores lanes and
        its events cannot be assigned: the running responses fail."""
        default = self._lanes[None]
        misplaced = (kind == "error" and not default.busy) or (
            kind == "response.created" and (not default.busy or default.begun)
        )
        unheard = [lane for lane in self._lanes.values() if lane.name and lane.busy and not lane.heard]
        if not misplaced or not unheard:
            return False
        self.retired = True
        for lane in unheard:
            lane.fail(LanesUnsupported())
        if default.busy and not default.over:
            default.fail(ServerError("The engine's answer cannot be read."))
        return True

    def _end(self, fault: ApiError) -> None:
        for lane in self._lanes.values():
            if lane.busy:
                lane.fail(fault)
                lane.busy = False


def _ignore_failure(task: asyncio.Task[None]) -> None:
    """Of a job that was cancelled nothing waits for the failure."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class Route:
    """A socket and the lane on it that was taken for a job."""

    socket: Socket
    lane: Lane


class Continuable(Protocol):
    """The position of a response that may be continued."""

    @property
    def socket(self) -> Socket | None:
        """The socket that the response was made on, while it exists."""

    @property
    def lane(self) -> Lane | None: ...


class SocketPool:
    """All sockets to one upstream."""

    def __init__(self, upstream: Upstream, options: ResponsesOptions) -> None:
        self._upstream = upstream
        self._url = upstream.url + upstream.path(PATH)
        self._options = options
        self._lanes = options.lanes
        self._posts = options.transport == "sse"
        """Whether every request is a POST: by option, or since the upstream refused a WebSocket."""
        self._posts_until = 0.0
        """Until when requests are POSTs because an upgrade was not answered."""
        self._sockets: dict[Socket, None] = {}
        """Open sockets, least recently used first."""
        self._opening = 0
        self._closings: set[asyncio.Task[object]] = set()
        self._keeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sockets)

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        for socket in self._sockets:
            socket.drop()
        self._forget_closed()
        if self._closings:
            await asyncio.wait(self._closings)  # bounded in time

    def forbid_lanes(self) -> None:
        """Stop using lanes: the upstream does not support them."""
        self._lanes = False

    def resume(self, position: Continuable, *, fork: bool) -> Route | None:
        """Take a lane to continue the response at ``position``; None if its socket is closed or full."""
        socket = position.socket
        if socket is None or not self._is_usable(socket):
            return None
        lane = socket.take_after(position, position.lane, fork=fork, lanes=self._lanes)
        return self._route(socket, lane)

    def reuse(self, tenant: str) -> Route | None:
        """Take a lane for a new chain on a socket that the tenant has and no job uses; None if there is none.

        That is a socket where no response can be continued, or, if the tenant has many, any.
        """
        own = [socket for socket in self._sockets if socket.tenant == tenant]
        idle = [socket for socket in own if not socket.is_wanted and self._is_usable(socket)]
        for socket in idle:
            if socket.is_free:
                return self._route(socket, socket.take_first())
        if self._lanes and len(own) >= _OWN_SOCKETS:
            for socket in idle:
                if (lane := socket.take_another()) is not None:
                    return self._route(socket, lane)
        return None

    def _route(self, socket: Socket, lane: Lane | None) -> Route | None:
        """Note the use of a socket, if a lane on it was taken."""
        if lane is None:
            return None
        del self._sockets[socket]
        self._sockets[socket] = None
        return Route(socket, lane)

    async def open(self, job: Job) -> Route | None:
        """Open a new socket and take its default lane; None if the request is to be posted. Raises an
        ``ApiError``."""
        if self._posts or _now() < self._posts_until:
            return None
        self._make_room()
        self._opening += 1
        try:
            ws = await self._connect(self._upstream.affinity_headers(job))
        finally:
            self._opening -= 1
        if ws is None:
            return None
        socket = Socket(ws, job.tenant, _now())
        self._sockets[socket] = None
        return Route(socket, socket.take_first())

    async def _connect(self, headers: Mapping[str, str]) -> aiohttp.ClientWebSocketResponse | None:
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                return await self._upstream.client.session.ws_connect(
                    self._url,
                    headers={**_BETA, **headers},
                    autoping=False,
                    max_msg_size=_LONGEST_MESSAGE,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_FRAME_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            fault = refusal(error.status, b"", error.headers or {})
            if error.status in _FAILING:
                raise fault from error
            self._post_instead(fault, error, for_good=error.status < 500)
        except HttpFailure as error:  # a redirect that is not followed
            self._post_instead(api_failure(error), error)
        except aiohttp.ClientConnectorError as error:
            raise Retryable("The engine cannot be reached.") from error
        except (aiohttp.ClientError, OSError) as error:
            # Connected, but the upgrade was not answered: a proxy may not know what it is.
            self._post_instead(Retryable("The engine cannot be reached."), error)
        return None

    def _post_instead(self, fault: ApiError, cause: Exception, *, for_good: bool = False) -> None:
        """Post from now on, or for a while, because the upstream takes no WebSocket. ``for_good``: it refuses
        upgrades; otherwise it, or something before it, failed to answer one. Raises ``fault`` if a WebSocket
        is required."""
        if self._options.transport != "auto":
            raise fault from cause
        self._posts = for_good
        self._posts_until = _now() + _POSTS_S

    def _is_usable(self, socket: Socket) -> bool:
        if _now() - socket.opened_at > self._options.socket_max_age_s:
            socket.retired = True
        return socket in self._sockets and socket.is_alive and not socket.retired

    def _make_room(self) -> None:
        """Close idle sockets until the pool has room. There is always one: ``max_jobs`` is at most
        ``max_sockets``."""
        self._forget_closed()
        for socket in list(self._sockets):
            if len(self._sockets) + self._opening < self._options.max_sockets:
                return
            if not socket.is_wanted:
                socket.drop()
                self._forget_closed()

    def _forget_closed(self) -> None:
        for socket in list(self._sockets):
            if socket.closing is not None:
                del self._sockets[socket]
                self._closings.add(socket.closing)
                socket.closing.add_done_callback(self._closings.discard)

    async def _keep(self) -> None:
        """Close or ping the sockets that no job uses, once a second."""
        while True:
            # When a second begins, as the server's tick: a process at rest wakes up once for both.
            await asyncio.sleep(_TICK_S - _now() % _TICK_S)
            self._tend()

    def _tend(self) -> None:
        now = _now()
        for socket in self._sockets:
            if socket.is_wanted:
                continue
            is_stale = socket.is_free or now - socket.used_at > self._options.socket_idle_s
            if is_stale or not self._is_usable(socket):
                socket.drop()
            else:
                socket.ping(now, _SILENCE_S)
        self._forget_closed()


def _now() -> float:
    return asyncio.get_running_loop().time()
