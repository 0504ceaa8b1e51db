"""A relay between a real client and a real server.

Real clients neither validate what they receive nor record what they send. The relay forwards every message
unchanged, pings and close codes included, checks everything that the server sends with ``tests.wire``, and
records everything that the client sends.

The client is not affected by a fault of the server; the relay raises it at the end of its block. A client
that does not finish is disconnected after ``patience_s``, so that no test can hang.

A relay can also disturb connections, as networks and older servers do: see ``Disturbance``.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from slipring.engines.base import Engine
from tests import chat_wire, messages_wire, wire
from tests.api import check_answer, check_rest
from tests.harness import FAST, read_sse, serve

Json = dict[str, Any]
_Side = web.WebSocketResponse | aiohttp.ClientWebSocketResponse

_RELAY_SETTINGS = frozenset({"abandoned", "patience_s", "foreign_tool_types", "disturbance"})
_KEEPALIVE = ": keepalive\n\n"
_HOP_BY_HOP = ("connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade")


class Disturbance:
    """How a relay disturbs WebSockets. This base class does nothing; subclasses override methods."""

    def refusal(self) -> int | None:
        """Return the status with which to refuse the next upgrade, or None to accept it."""
        return None

    def frame(self, frame: Json) -> Json:
        """Return the frame to forward to the server in place of a frame of the client."""
        return frame

    def cuts_after(self, event: Json) -> bool:
        """Return whether to break the connection, without a close frame, after this event."""
        return False


class _Cut(Exception):
    """Raised to break the connection."""


@dataclass
class RelayedSocket:
    """A record of one WebSocket connection."""

    headers: Mapping[str, str]
    sent: list[Json] = field(default_factory=list)
    """Frames of the client, before any disturbance."""
    received: list[Json] = field(default_factory=list)
    """Events of the server."""
    pings: int = 0
    """Pings of the client."""
    pongs: int = 0
    """Pongs of the server."""
    deflate: bool = False
    order: wire.Order = field(default_factory=wire.Order)

    @property
    def responses(self) -> list[Json]:
        """Return the finished response objects."""
        return self.order.responses


@dataclass
class Exchange:
    """A record of one HTTP request and its answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int = 0
    answer: Any = None
    """The JSON body, or the list of events of an SSE stream. A client may receive the end of a stream a
    moment before it is recorded: read this after the relay's block."""
    query: Mapping[str, str] = field(default_factory=dict)
    keepalives: int = 0
    """Comments within an SSE stream."""


class Relay:
    """Listens on its own port for clients of one server."""

    def __init__(
        self,
        server_url: str,
        http: aiohttp.ClientSession,
        abandoned: bool,
        patience_s: float,
        foreign_tool_types: frozenset[str],
        disturbance: Disturbance,
    ) -> None:
        self.server_url = server_url
        self._http = http
        self.port = 0
        self.sockets: list[RelayedSocket] = []
        self.exchanges: list[Exchange] = []
        self.faults: list[AssertionError] = []
        self.refusals = 0
        """How many upgrades the relay has refused."""
        self._abandoned = abandoned
        self._patience_s = patience_s
        self._foreign = foreign_tool_types
        self._disturbance = disturbance

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def socket(self) -> RelayedSocket:
        """The only WebSocket connection; fails if there were others."""
        (socket,) = self.sockets
        return socket

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._patience_s):
                if request.headers.get("Upgrade", "").lower() == "websocket":
                    return await self._relay_socket(request)
                return await self._relay_request(request)
        except TimeoutError:
            self.faults.append(AssertionError(f"the client was not done after {self._patience_s} s"))
            raise

    def check(self) -> None:
        """Raise the faults of the server."""
        for socket in self.sockets:
            with self._noting_faults():
                socket.order.finish(abandoned=self._abandoned)
        if self.faults:
            raise self.faults[0]

    def explain(self, failure: BaseException) -> None:
        """Add the faults of the server as notes to a test's failure."""
        for fault in self.faults:
            failure.add_note(f"noticed by the relay: {fault}")

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as fault:
            self.faults.append(fault)

    def _target(self, request: web.Request) -> str:
        return self.server_url.removesuffix("/v1") + request.path_qs

    # WebSocket.

    async def _relay_socket(self, request: web.Request) -> web.StreamResponse:
        if status := self._disturbance.refusal():
            self.refusals += 1
            return web.Response(status=status)
        offers_deflate = "permessage-deflate" in request.headers.get("Sec-WebSocket-Extensions", "")
        connecting = self._http.ws_connect(
            self._target(request),
            headers=_passed_on(request.headers),
            autoping=False,
            compress=15 if offers_deflate else 0,
            max_msg_size=0,
        )
        try:
            upstream = await connecting
        except aiohttp.WSServerHandshakeError as refusal:
            return web.Response(status=refusal.status, reason=refusal.message)
        async with upstream:
            deflate = bool(upstream.compress)
            downstream = web.WebSocketResponse(autoping=False, compress=deflate, max_msg_size=0)
            await downstream.prepare(request)
            socket = RelayedSocket(dict(request.headers), deflate=deflate)
            self.sockets.append(socket)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump_client(socket, downstream, upstream))
                    pumps.create_task(self._pump_server(socket, upstream, downstream))
            except* _Cut:
                assert request.transport is not None
                request.transport.abort()
            return downstream

    async def _pump_client(self, socket: RelayedSocket, client: _Side, server: _Side) -> None:
        async for message in _messages(client, server):
            socket.pings += message.type is WSMsgType.PING
            if message.type is WSMsgType.TEXT:
                frame = json.loads(message.data)
                socket.sent.append(frame)
                given = self._disturbance.frame(frame)
                if given is not frame:
                    message = message._replace(data=json.dumps(given))
            await _pass_on(message, server)

    async def _pump_server(self, socket: RelayedSocket, server: _Side, client: _Side) -> None:
        async for message in _messages(server, client):
            socket.pongs += message.type is WSMsgType.PONG
            event: Json = {}
            with self._noting_faults():
                if message.type is WSMsgType.TEXT:
                    event = wire.check_frame(message.data, self._foreign)
                    socket.received.append(event)
                    socket.order.see(event)
                elif message.type is WSMsgType.BINARY:
                    raise AssertionError("the server sent a binary frame")
            await _pass_on(message, client)
            if event and self._disturbance.cuts_after(event):
                raise _Cut

    # HTTP.

    async def _relay_request(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        exchange = Exchange(
            request.method,
            request.path,
            dict(request.headers),
            json.loads(body) if body else None,
            query=dict(request.query),
        )
        self.exchanges.append(exchange)
        asking = self._http.request(
            request.method, self._target(request), headers=_passed_on(request.headers), data=body
        )
        async with asking as answer:
            exchange.status = answer.status
            downstream = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await downstream.prepare(request)
            content = b""
            async for chunk in answer.content.iter_any():
                content += chunk
                await _write(downstream, chunk)
            with self._noting_faults():
                exchange.answer = self._check_answer(exchange, answer.content_type, content)
        return downstream

    def _check_answer(self, exchange: Exchange, content_type: str, content: bytes) -> Any:
        if exchange.method == "HEAD":
            return None
        if exchange.path.startswith("/v1/messages") or "anthropic-version" in exchange.headers:
            return messages_wire.check_answer(exchange.path, exchange.status, content_type, content.decode())
        if exchange.status >= 400:
            return wire.check_http_error(content)
        if exchange.path.endswith("/chat/completions"):
            is_stream = content_type == "text/event-stream"
            return (
                chat_wire.read_stream(content.decode()) if is_stream else chat_wire.check_completion(content)
            )
        if content_type == "text/event-stream":
            text = content.decode()
            exchange.keepalives = text.count(_KEEPALIVE)
            text = text.replace(_KEEPALIVE, "")
            resumed = "starting_after" in exchange.query
            return check_rest(text) if resumed else read_sse(text, self._foreign)
        if exchange.path.endswith("/responses"):
            return wire.check_response(content, self._foreign)
        answer = json.loads(content)
        check_answer(answer, exchange.path)
        return answer


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without those that apply to a single connection."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP and not name.lower().startswith("sec-websocket-")
    }


async def _messages(source: _Side, target: _Side) -> AsyncIterator[aiohttp.WSMessage]:
    """Yield the messages of one side until it closes; then close the other side with the same code."""
    while True:
        message = await source.receive()
        if message.type is WSMsgType.CLOSE:
            await target.close(code=message.data or 1000, message=(message.extra or "").encode())
            return
        if message.type in (WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            await target.close(code=1001)
            return
        yield message


async def _pass_on(message: aiohttp.WSMessage, target: _Side) -> None:
    data = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
    try:
        await target.send_frame(data, message.type)
    except ConnectionResetError:
        return  # it has disconnected; its own pump notices


async def _write(downstream: web.StreamResponse, chunk: bytes) -> None:
    try:
        await downstream.write(chunk)
    except ConnectionResetError:
        return  # the client has disconnected; the rest is still checked


Served = Callable[..., AbstractContextManager[Relay]]
"""Type of the fixture ``served``, which runs ``relayed`` in another thread."""


@asynccontextmanager
async def relay_to(
    server_url: str,
    *,
    abandoned: bool = False,
    patience_s: float = 30,
    foreign_tool_types: frozenset[str] = frozenset(),
    disturbance: Disturbance | None = None,
) -> AsyncIterator[Relay]:
    """Run a relay to a server. With ``abandoned``, responses may be unfinished at the end."""
    disturbance = disturbance or Disturbance()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        relay = Relay(server_url, http, abandoned, patience_s, foreign_tool_types, disturbance)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", relay.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            relay.port = runner.addresses[0][1]
            yield relay
        except BaseException as failure:
            relay.explain(failure)
            raise
        finally:
            await runner.cleanup()
        relay.check()


@asynccontextmanager
async def relayed(engine: str | Engine = FAST, **settings: Any) -> AsyncIterator[Relay]:
    """Run a server with a relay in front of it. Takes the settings of ``relay_to`` and of ``serve``."""
    own = {name: settings.pop(name) for name in _RELAY_SETTINGS & settings.keys()}
    async with serve(engine, **settings) as server, relay_to(server.url, **own) as relay:
        yield relay
