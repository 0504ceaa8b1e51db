"""``GET /v1/responses`` with an upgrade: a WebSocket connection with one reader, one writer and a session;
and ``/slipring/echo``, which has the same framing.

The reader never waits for generation, so it answers pings while a response is generated. ``tick`` detects a
silent client: the server calls it about once a second while turns run, and otherwise when the next ping or
another deadline is due, so an idle connection costs nothing in between. ``open_connections`` and
``slow_clients`` detect clients that send too slowly or do not read.

``/slipring/echo`` sends back every message. Conformance suites such as Autobahn's ``wstest`` need that. It
uses the settings, framing and closing handshake of ``/v1/responses``, so that their results hold for both,
and exists only if the setting ``echo`` is on.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache
from struct import Struct

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from slipring.base.aiohttp_internals import drop_messages, waiting_bytes_of
from slipring.base.errors import ApiError, InvalidRequest
from slipring.config.settings import Config
from slipring.core.session.actions import Action
from slipring.server.access.auth import Caller
from slipring.server.clock import now
from slipring.server.connections.client_connection import connection_of
from slipring.server.driver import Driver
from slipring.server.observation.ended_turns import EndedTurn, Origin
from slipring.server.request_decoding import LARGE_BYTES
from slipring.server.service import Service
from slipring.server.transports.beta_header import of_socket
from slipring.server.transports.outbox import Outbox, run_until_waiting

log = logging.getLogger("slipring")

ECHO_PATH = "/slipring/echo"
UPGRADE_HEADERS = {"Upgrade": "websocket", "Connection": "Upgrade"}
"""Of the answer that asks for the upgrade."""
CLOSE_TIMEOUT_S = 5.0
"""How long the closing handshake may take, everything that is queued included."""
_NORMAL = 1000
_PROTOCOL_ERROR = 1002
_INTERNAL_ERROR = _KEEPALIVE_LOST = 1011
_NEVER_SENT = frozenset({1004, 1005, 1006, 1015})
"""Codes that are reserved and must not appear in a close frame (RFC 6455, 7.4.1)."""
_NO_CODE = 0
"""What aiohttp reports for a close frame without a code."""
_TEXT = 0x81
"""First byte of a text frame that is final, i.e. a whole message."""
_short = Struct("!BB").pack
_medium = Struct("!BBH").pack
_long = Struct("!BBQ").pack
_PING = b"\x89\x00"
"""A ping frame without a payload. Servers send no masks, and control frames are never compressed."""
_RECENT_TURNS = 16
_READ_AT_ONCE = 4
"""Thousands of small messages may have arrived at once: after this many, other connections run."""


class UpgradeRequired(InvalidRequest):
    """A request without an upgrade to a WebSocket. Clients fall back to HTTP when they get this status."""

    status = 426
    code = "upgrade_required"


def asks_for_upgrade(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def require_upgrade(request: web.Request, others: str = "") -> None:
    """Raise ``UpgradeRequired`` for a request that does not ask for it. ``others``: what else may be sent to
    the same path."""
    if not asks_for_upgrade(request):
        raise UpgradeRequired(f"This endpoint takes {others}GET with an upgrade to a WebSocket.")


class ServerSocket(web.WebSocketResponse):
    """A WebSocket that reports when it begins to close, for whatever reason: no message may follow its close
    frame."""

    before_close: Callable[[], None] | None = None

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if self.before_close is not None:
            self.before_close()
            self.before_close = None
        return await super().close(code=code, message=message, drain=drain)


def new_socket(config: Config) -> ServerSocket:
    """A WebSocket with the server's settings, not yet accepted."""
    return ServerSocket(
        autoping=False,  # the reader answers pings, and notes that the client is alive
        autoclose=False,  # would answer every close frame with 1000, even one with a code that is never sent
        compress=config.compression,
        max_msg_size=config.limits.max_frame_bytes + 1,  # aiohttp refuses messages of this size and above
        timeout=CLOSE_TIMEOUT_S,
    )


@lru_cache(maxsize=4096)
def text_head(size: int) -> bytes:
    """The header of a message of this size as one text frame: final, uncompressed, without a mask (RFC 6455,
    5.2)."""
    # Cached: a stream has thousands of frames of few different sizes.
    if size < 126:
        return _short(_TEXT, size)
    if size < 65536:
        return _medium(_TEXT, 126, size)
    return _long(_TEXT, 127, size)


async def answer_close(socket: web.WebSocketResponse, code: int) -> bool:
    """Answer a client's close frame with the same code, or with 1002 if a client must not send that code;
    returns whether it may."""
    is_valid = code == _NO_CODE or (1000 <= code < 5000 and code not in _NEVER_SENT)
    reply = (code or _NORMAL) if is_valid else _PROTOCOL_ERROR
    # Not drained: a client that has sent its close frame may have disconnected, and draining would raise.
    await socket.close(code=reply, drain=False)
    return is_valid


class WebSocketConnection(Outbox):
    """One client on one WebSocket. It is the sink of its driver and a client of the server."""

    __slots__ = (
        "_betas",
        "_client_closed",
        "_closing",
        "_exchanged_at",
        "_http",
        "_request",
        "_socket",
        "driver",
        "recent",
        "turns_ended",
    )

    def __init__(self, service: Service, request: web.Request, socket: ServerSocket, caller: Caller) -> None:
        self._request = request
        self._socket = socket
        self._http = connection_of(request)
        super().__init__(
            self._send_compressed if socket.compress else self._http.write,
            service.config.limits.send_buffer_bytes,
            abort=self._http.abort,
            head=None if socket.compress else text_head,
            on_full=self._http.queue_grew,
            connection=None if socket.compress else self._http,
        )
        socket.before_close = self.discard
        waiting_bytes = waiting_bytes_of(socket) if socket.compress else None
        self._http.become_socket(self.queued_bytes, self._refuse_message, waiting_bytes)
        self._closing: asyncio.Task[None] | None = None
        self._exchanged_at = self._http.heard_at
        """When the last ping was sent, or the client last sent a message or a ping. Each of them causes bytes
        in both directions, which is what proxies between the two wait for."""
        self._betas = of_socket(request.headers)
        session = service.open_session(caller, self._betas)
        service.sockets_opened += 1
        origin = Origin("websocket", service.sockets_opened, request.headers.get("traceparent"))
        self.driver = Driver(service, caller, session, self, origin=origin, states=service.socket_states)
        self._client_closed = False
        self.recent: deque[EndedTurn] | None = None
        """The latest turns; None until there is one."""
        self.turns_ended = 0

    # The sink of the driver.

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(code, reason))

    def _refuse_message(self, code: int, reason: str) -> None:
        """Close because of a message that is being received. It would otherwise be read on, and kept, until
        the client has answered the close frame."""
        drop_messages(self._socket)
        self.close(code, reason)

    def record(self, turn: EndedTurn) -> None:
        if self.recent is None:
            self.recent = deque(maxlen=_RECENT_TURNS)
        self.recent.append(turn)
        self.turns_ended += 1

    # The reader.

    async def serve(self) -> None:
        """Read messages until the client disconnects or the session ends."""
        session, socket = self.driver.session, self._socket
        decoder = self.driver.service.decoder
        clock, wake = asyncio.get_running_loop().time, self.driver.service.wake
        received = 0
        try:
            while True:
                message = await socket.receive()
                if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
                    self._exchanged_at = clock()
                    self._http.message_received()
                    frame = message.data
                    if len(frame) > LARGE_BYTES:
                        frame = await decoder.frame(session.tenant, frame, self._betas)
                    self._run(session.receive(frame, now()))
                    wake(self)
                    if (waiting := self.room()) is not None:
                        await waiting  # a client that sends without reading is not read either
                elif not await self._control_received(message):
                    return
                received += 1
                if received % _READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except OSError:
            return  # reset by the client
        except Exception:
            log.exception("a connection failed unexpectedly")
            self.close(_INTERNAL_ERROR, "internal error")
        finally:
            await self._stop()

    async def _control_received(self, message: WSMessage) -> bool:
        """A ping, a pong or a close has arrived. Returns whether the connection goes on."""
        if message.type is WSMsgType.PING:
            self._exchanged_at = asyncio.get_running_loop().time()
            self._http.control_frame_received(len(message.data))
            await self._socket.pong(message.data)
            return True
        if message.type is WSMsgType.PONG:
            self._http.control_frame_received(len(message.data))
            return True
        if message.type is WSMsgType.CLOSE:
            is_valid = await answer_close(self._socket, message.data)
            self._client_closed = self._closing is None and is_valid
        return False

    async def _stop(self) -> None:
        # Turns first: waiting for the close frame below is cancelled if the client disconnects.
        self.discard()
        self._socket.before_close = None
        self.driver.run(self.driver.session.leave(now()))
        session = self.driver.session
        self.driver.service.parking.park(
            session.tenant,
            session.detach_cache(),
            now(),
            closed_by_client=self._client_closed,
            keeps_nothing=self._betas.keeps_nothing,
        )
        await self.driver.stop()
        if self._closing is not None:
            await asyncio.wait([self._closing])  # bounded in time
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size():
            # Give the rest some time to arrive, but do not keep the socket open forever.
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.abort)

    # A client of the server.

    def tick(self) -> float | None:
        """Enforce the deadlines of the session and of keepalive pings. Returns in how many seconds the next
        one is due, if the connection is idle."""
        session, at = self.driver.session, now()
        rests_until = session.rests_until
        if rests_until is None or rests_until <= at:
            self._run(session.tick(at))
            rests_until = session.rests_until
        limits = self.driver.service.config.limits
        clock = asyncio.get_running_loop().time()
        keepalive_s = self._keep_alive(clock, limits.ping_interval_s, limits.pong_timeout_s)
        if rests_until is None or self._closing is not None:
            return None
        return min(keepalive_s, rests_until - at)

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        self.driver.wind_down(error, grace_s)
        self.flush()

    @property
    def in_flight(self) -> int:
        return self.driver.in_flight

    @property
    def unread_bytes(self) -> int:
        """Bytes that the client has not read yet."""
        return self._http.unread_bytes

    def abort(self) -> None:
        """Drop the connection without waiting for the client."""
        self._http.abort()

    def _run(self, actions: list[Action]) -> None:
        """Carry out actions without waiting for the client to take what they send."""
        self.driver.run(actions)
        self.flush()

    def _keep_alive(self, clock: float, interval_s: float, timeout_s: float) -> float:
        """Send a ping if one is due, and close a connection that has not answered; returns the seconds until
        the next check."""
        if not interval_s:
            return math.inf
        if clock - self._http.heard_at >= interval_s + timeout_s:
            self.close(_KEEPALIVE_LOST, "keepalive ping timeout")
            return math.inf
        if clock - self._exchanged_at >= interval_s:
            self._exchanged_at = clock
            transport = self._request.transport
            if transport is not None and not transport.is_closing() and not self._socket.closed:
                transport.write(_PING)
        return min(self._exchanged_at + interval_s, self._http.heard_at + interval_s + timeout_s) - clock

    async def _close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.settle()
                await self._socket.close(code=code, message=reason.encode())
        except OSError:  # a timeout too
            self.abort()

    def _send_compressed(self, message: bytes) -> Awaitable[None] | None:
        return run_until_waiting(self._socket.send_frame(message, WSMsgType.TEXT))


async def serve_websocket(service: Service, request: web.Request, caller: Caller) -> web.WebSocketResponse:
    """Accept a WebSocket and serve it until the connection ends."""
    require_upgrade(request, others="POST, or ")
    socket = new_socket(service.config)
    service.sockets += 1
    try:
        await socket.prepare(request)
        connection = WebSocketConnection(service, request, socket, caller)
        with service.serving(connection):
            await connection.serve()
    finally:
        service.sockets -= 1
    return socket


async def echo(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send back every message until the client disconnects."""
    require_upgrade(request)
    socket = new_socket(service.config)
    service.sockets += 1
    try:
        await socket.prepare(request)
        connection_of(request).become_socket(lambda: 0, lambda code, reason: connection_of(request).abort())
        await _echo_messages(request, socket)
    except OSError:
        pass  # the client disconnected without reading what it was sent
    finally:
        service.sockets -= 1
    return socket


async def _echo_messages(request: web.Request, socket: web.WebSocketResponse) -> None:
    while True:
        message = await socket.receive()
        connection_of(request).message_received()
        if message.type is WSMsgType.TEXT and not socket.compress:
            data = message.data.encode()
            if (waiting := connection_of(request).write(text_head(len(data)) + data)) is not None:
                await waiting
        elif message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
        elif message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is WSMsgType.CLOSE:
            await answer_close(socket, message.data)
            return
        elif message.type is not WSMsgType.PONG:
            return
