"""MCP servers for tests, in this process: streamable HTTP of both eras, and HTTP+SSE of 2024-11-05."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.session import MODERN_VERSION
from slipring.mcp.servers import HttpServer
from slipring.mcp.transports.addresses import Reach
from slipring.mcp.url_policy import parse_url

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "annotations": {"readOnlyHint": True},
}
Reply = dict[str, Any] | web.StreamResponse
Behaviour = Callable[["Exchange"], Awaitable[Reply]]


def text(value: str, **more: Any) -> dict[str, Any]:
    """A tool's result with one block of text."""
    return {"content": [{"type": "text", "text": value}], **more}


def result(request_id: Any, value: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def error(request_id: Any, code: int, message: str, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, **more}}


def event(message: Any, **fields: str) -> bytes:
    """A server-sent event with a message, or with any data."""
    data = message if isinstance(message, str) else json.dumps(message)
    lines = [f"{name}: {value}" for name, value in fields.items()]
    return "\n".join([*lines, *(f"data: {line}" for line in data.split("\n")), "", ""]).encode()


class Seen(NamedTuple):
    """A request that a fake received."""

    verb: str
    method: str | None
    headers: dict[str, str]
    message: dict[str, Any]


class Exchange:
    """One POST at a fake, for behaviours."""

    def __init__(self, fake: "FakeServer", request: web.Request, message: dict[str, Any]) -> None:
        self.fake = fake
        self.request = request
        self.message = message
        self.id = message.get("id")
        self.params = message.get("params", {})
        self.arguments = self.params.get("arguments", {})

    async def stream(self) -> web.StreamResponse:
        """Begin to answer with an event stream."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(self.request)
        return response

    def progress(self, value: float, **more: Any) -> dict[str, Any]:
        token = self.params["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": value, **more}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


class FakeServer:
    """A streamable HTTP server. ``on`` has a behaviour for each method, ``calls`` for each tool."""

    def __init__(self, *, modern: bool) -> None:
        self.modern = modern
        self.seen: list[Seen] = []
        self.tools: list[dict[str, Any]] = [ADD]
        self.list_hints: dict[str, Any] = {"ttlMs": 60_000, "cacheScope": "private"} if modern else {}
        self.capabilities: dict[str, Any] = {"tools": {}}
        self.sessions: set[str] = set()
        self.announcements: asyncio.Queue[bytes] = asyncio.Queue()
        self.disconnected = asyncio.Event()
        """Set when a client left a call before its answer."""
        self.calls: dict[str, Behaviour] = {"add": self._add}
        self.on: dict[str, Behaviour] = {"tools/list": self._list, "tools/call": self._call}
        if modern:
            self.on |= {"server/discover": self._discover, "subscriptions/listen": self._listen}
        else:
            self.on |= {"initialize": self._initialize}
        self.url = ""

    def count(self, method: str) -> int:
        return sum(seen.method == method for seen in self.seen)

    def last(self, method: str) -> Seen:
        return next(seen for seen in reversed(self.seen) if seen.method == method)

    async def _discover(self, exchange: Exchange) -> Reply:
        return {"supportedVersions": [MODERN_VERSION], "capabilities": self.capabilities, "ttlMs": 0}

    async def _initialize(self, exchange: Exchange) -> Reply:
        session = f"session-{len(self.seen)}"
        self.sessions.add(session)
        answer = {
            "protocolVersion": exchange.params["protocolVersion"],
            "capabilities": self.capabilities,
            "serverInfo": {"name": "fake", "version": "1"},
        }
        return web.json_response(result(exchange.id, answer), headers={"Mcp-Session-Id": session})

    async def _list(self, exchange: Exchange) -> Reply:
        return {"tools": self.tools, **self.list_hints}

    async def _call(self, exchange: Exchange) -> Reply:
        return await self.calls[exchange.params["name"]](exchange)

    async def _add(self, exchange: Exchange) -> Reply:
        return text(str(exchange.arguments["a"] + exchange.arguments["b"]))

    async def _listen(self, exchange: Exchange) -> Reply:
        response = await exchange.stream()
        await response.write(event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"}))
        return await self._announce(response)

    async def _announce(self, response: web.StreamResponse) -> web.StreamResponse:
        while True:
            await response.write(await self.announcements.get())

    async def handle(self, request: web.Request) -> web.StreamResponse:
        message = await request.json() if request.can_read_body else {}
        method = message.get("method")
        self.seen.append(Seen(request.method, method, dict(request.headers), message))
        refusal = self._refusal(request, method)
        if refusal is not None:
            return refusal
        if request.method == "GET":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            return await self._announce(response)
        if request.method == "DELETE":
            self.sessions.discard(request.headers.get("Mcp-Session-Id", ""))
            return web.Response()
        if "id" not in message or method is None:
            return web.Response(status=202)
        behaviour = self.on.get(method)
        if behaviour is None:
            status = 404 if self.modern else 200
            return web.json_response(error(message["id"], -32601, "Method not found"), status=status)
        try:
            reply = await behaviour(Exchange(self, request, message))
        except asyncio.CancelledError:
            self.disconnected.set()
            raise
        return (
            reply
            if isinstance(reply, web.StreamResponse)
            else web.json_response(result(message["id"], reply))
        )

    def _refusal(self, request: web.Request, method: str | None) -> web.Response | None:
        if request.method != "POST" and self.modern:
            return web.Response(status=405)
        if self.modern or (method in ("initialize", "server/discover") and method in self.on):
            return None
        session = request.headers.get("Mcp-Session-Id")
        if session in self.sessions:
            return None
        if session is None:
            return web.json_response(error(None, -32000, "Bad Request: not initialized"), status=400)
        return web.json_response(error(None, -32001, "Session not found"), status=404)


class FakeSseServer(FakeServer):
    """HTTP+SSE: ``GET /sse`` is the stream, ``POST /messages`` takes messages."""

    def __init__(self) -> None:
        super().__init__(modern=False)
        self.stream: web.StreamResponse | None = None
        self.endpoint = "/messages?session=1"
        self.end_stream = asyncio.Event()

    async def _initialize(self, exchange: Exchange) -> Reply:
        return {
            "protocolVersion": "2024-11-05",
            "capabilities": self.capabilities,
            "serverInfo": {"name": "old"},
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            self.stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await self.stream.prepare(request)
            await self.stream.write(event(self.endpoint, event="endpoint"))
            await self.end_stream.wait()
            return self.stream
        if not request.path.startswith("/messages"):
            return web.Response(status=405)
        message = await request.json()
        self.seen.append(Seen("POST", message.get("method"), dict(request.headers), message))
        behaviour = self.on.get(message.get("method"))
        if behaviour is not None:
            reply = await behaviour(Exchange(self, request, message))
            if isinstance(reply, web.StreamResponse):
                return reply
            assert self.stream is not None
            await self.stream.write(event(result(message["id"], reply)))
        elif "id" in message and "method" in message:
            assert self.stream is not None
            await self.stream.write(event(error(message["id"], -32601, "Method not found")))
        return web.Response(status=202)


@asynccontextmanager
async def serving(fake: FakeServer) -> AsyncIterator[FakeServer]:
    """Run a fake on a free port of 127.0.0.1."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        yield fake
    finally:
        await runner.cleanup()


def at(fake: FakeServer, **limits: Any) -> HttpServer:
    """The description of a fake for the client, with limits for the test."""
    return HttpServer("fake", parse_url(fake.url), reach=Reach.ALL, limits=McpLimits(**limits))
