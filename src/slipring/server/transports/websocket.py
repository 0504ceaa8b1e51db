"""A WebSocket connection: one reader, one writer, and the session between them.

The reader never waits for generation, so pings are answered while a response is made. Silence is noticed by
``tick``, which the server calls about once a second while something is being done, and otherwise when the
next ping or another deadline is due: a connection at rest costs nothing in between. Slow reading and slow
sending are noticed by ``connections``.
"""

import asyncio
import logging
import math
from collections import deque
from functools import partial

from aiohttp import WSMsgType, web

from slipring.core.session.actions import Action
from slipring.errors import ApiError
from slipring.protocol.events import Event
from slipring.protocol.timing import TurnReport
from slipring.protocol.wire import encode
from slipring.server.access.auth import Caller
from slipring.server.access.beta_header import of_socket, wants_no_retention
from slipring.server.clock import now
from slipring.server.cluster.state_lookup import SocketStates
from slipring.server.connections.http_connection import connection_of
from slipring.server.driver import Driver
from slipring.server.service import Service
from slipring.server.transports.framing import text_frame
from slipring.server.transports.outbox import Outbox
from slipring.server.transports.websocket_io import FrameWriter, answer_close, new_socket

_CLOSE_TIMEOUT_S = 5.0
_RECENT_TURNS = 16
_GOING_AWAY = 1001
_INTERNAL_ERROR = _KEEPALIVE_LOST = 1011
_PING = b"\x89\x00"
"""A whole frame: final, a ping, without a mask or payload. Control frames are never compressed."""

log = logging.getLogger("slipring")


class Connection:
    """One client on one socket. Also the sink that its driver sends to."""

    __slots__ = (
        "_betas",
        "_closing",
        "_heard_at",
        "_http",
        "_keeps_nothing",
        "_outbox",
        "_pinged_at",
        "_request",
        "_said_goodbye",
        "_socket",
        "driver",
        "flush",
        "recent",
    )

    def __init__(
        self, service: Service, request: web.Request, socket: web.WebSocketResponse, caller: Caller
    ) -> None:
        self._request = request
        self._socket = socket
        self._http = connection_of(request)
        limit_bytes, on_full = service.config.limits.send_buffer_bytes, self._http.queue_grew
        if socket.compress:
            send = partial(socket.send_frame, opcode=WSMsgType.TEXT)
            self._outbox = Outbox(send, limit_bytes, on_full=on_full)
        else:
            write = FrameWriter(request, socket).write
            self._outbox = Outbox(write, limit_bytes, frame=text_frame, on_full=on_full)
        self._http.become_socket(self._outbox.queued_bytes, self.close)
        self.flush = self._outbox.flush  # the sink's, without a step between
        self._closing: asyncio.Task[None] | None = None
        self._heard_at = self._pinged_at = asyncio.get_running_loop().time()
        self._betas = of_socket(request.headers)
        session = service.open_session(caller, self._betas)
        states = SocketStates(service.store.responses, service.parking, service.peers)
        self.driver = Driver(service, caller, session, self, states=states)
        self._keeps_nothing = wants_no_retention(request.headers)
        self._said_goodbye = False
        self.recent: deque[TurnReport] | None = None

    # The sink.

    def send(self, events: list[Event]) -> None:
        post = self._outbox.post
        for event in events:
            post(encode(event))

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(code, reason))

    def record(self, report: TurnReport) -> None:
        if self.recent is None:
            self.recent = deque(maxlen=_RECENT_TURNS)
        self.recent.append(report)

    # The reader.

    async def serve(self) -> None:
        """Read until the client is gone or the session has ended."""
        session, socket = self.driver.session, self._socket
        reading = self.driver.service.reading
        clock, wake = asyncio.get_running_loop().time, self.driver.service.wake
        try:
            while True:
                message = await socket.receive()
                self._heard_at = clock()
                if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
                    self._http.message_received()
                    frame = await reading.frame(session.tenant, message.data, self._betas)
                    self._run(session.receive(frame, now()))
                    wake(self)
                    if self._outbox.full:
                        # A client that sends without reading waits for its own answers.
                        await self._outbox.room()
                elif message.type is WSMsgType.PING:
                    self._http.control_frame_received(len(message.data))
                    await socket.pong(message.data)
                elif message.type is WSMsgType.PONG:
                    self._http.control_frame_received(len(message.data))
                elif message.type is WSMsgType.CLOSE:
                    is_valid = await answer_close(socket, message.data)
                    self._said_goodbye = self._closing is None and is_valid
                    return
                else:
                    return
                # Thousands of small messages may have come at once: the others are served in between.
                await asyncio.sleep(0)
        except OSError:
            return  # reset by the client
        except Exception:
            log.exception("a connection failed unexpectedly")
            self.close(_INTERNAL_ERROR, "internal error")
        finally:
            await self._stop()

    async def _stop(self) -> None:
        # First what runs: the client may leave while its last words are on their way, which cancels this.
        self._outbox.discard()
        self.driver.run(self.driver.session.leave(now()))
        self._park()
        await self.driver.stop()
        if self._closing is not None:
            await asyncio.wait([self._closing])  # bounded in time
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size():
            # What it still holds may arrive, but not hold the socket forever.
            asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, transport.abort)

    def _park(self) -> None:
        """Keep what the client may come back for: it was cut off or told to move, and said no goodbye."""
        if self._said_goodbye or self._keeps_nothing:
            return
        session, parking = self.driver.session, self.driver.service.parking
        parking.park(session.tenant, session.bequeath(), now())

    # Time.

    def tick(self) -> float | None:
        """Look after deadlines: the session's own, and silence. Returns in how many seconds the next one is,
        if the connection is at rest."""
        session = self.driver.session
        self._run(session.tick(now()))
        limits = self.driver.service.config.limits
        clock = asyncio.get_running_loop().time()
        silence_s = self._keep_alive(clock, limits.ping_interval_s, limits.pong_timeout_s)
        if session.rests_until is None or self._closing is not None:
            return None
        return min(silence_s, session.rests_until - now())

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self._run(self.driver.session.end(error, code=_GOING_AWAY, grace_s=grace_s, now=now()))

    def abort(self) -> None:
        """Drop the connection without waiting for the client."""
        self._http.abort()

    def _run(self, actions: list[Action]) -> None:
        """Carry out actions from where one must not wait: what they send is written in the background."""
        self.driver.run(actions)
        self._outbox.kick()

    def _keep_alive(self, clock: float, interval_s: float, timeout_s: float) -> float:
        """Ping a client when it is time, or give it up; returns in how many seconds it is time again."""
        if not interval_s:
            return math.inf
        if clock - self._heard_at >= interval_s + timeout_s:
            self.close(_KEEPALIVE_LOST, "keepalive ping timeout")
            return math.inf
        if clock - self._pinged_at >= interval_s:
            self._pinged_at = clock
            transport = self._request.transport
            if transport is not None and not transport.is_closing() and not self._socket.closed:
                transport.write(_PING)
        return min(self._pinged_at + interval_s, self._heard_at + interval_s + timeout_s) - clock

    async def _close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._outbox.settle()
                await self._socket.close(code=code, message=reason.encode())
        except (OSError, asyncio.CancelledError):
            # Out of time (an OSError too), or a writer was cancelled while the client did not read, which
            # cancels all who wait to write: whoever does not read gets no farewell.
            self.abort()


async def serve_websocket(service: Service, request: web.Request, caller: Caller) -> web.WebSocketResponse:
    """Hold a connection until it ends."""
    socket = new_socket(service.config, _CLOSE_TIMEOUT_S)
    service.sockets += 1
    try:
        await socket.prepare(request)
        connection = Connection(service, request, socket, caller)
        with service.serving(connection):
            await connection.serve()
    finally:
        service.sockets -= 1
    return socket
