"""The servers around slipring, which repeat every credential that they are sent: in answers and in errors."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.mcp.fakes import Exchange, FakeServer, Reply, serving, text


def _repeat(request: web.Request) -> str:
    return json.dumps(dict(request.headers)) + str(request.url)


class World:
    """An MCP server, a model server, a moderation endpoint and a trace collector."""

    def __init__(self) -> None:
        self.mcp = FakeServer(modern=True)
        self.mcp.tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("reveal", "fail")]
        self.mcp.calls = {"reveal": self._reveal, "fail": self._fail}
        self.traces: list[bytes] = []
        self.seen: list[str] = []
        """What was repeated: it shows that the secrets were there to be leaked."""
        self.url = ""

    async def _reveal(self, exchange: Exchange) -> Reply:
        self.seen.append(_repeat(exchange.request))
        return text(f"You sent {self.seen[-1]}")

    async def _fail(self, exchange: Exchange) -> Reply:
        self.seen.append(_repeat(exchange.request))
        return web.Response(status=500, text=f"Wrong credentials: {self.seen[-1]}")

    async def refuse(self, request: web.Request) -> web.Response:
        """Answer as a model server or a moderation endpoint that does not accept a key, and repeats it."""
        self.seen.append(_repeat(request))
        body = {"error": {"message": f"Incorrect API key: {self.seen[-1]}", "type": "x", "code": "y"}}
        status = int(request.match_info["status"])
        return web.json_response(body, status=status, headers={"X-Repeated": self.seen[-1][:200]})

    async def collect(self, request: web.Request) -> web.Response:
        """Receive traces, and complain all the same."""
        self.traces.append(await request.read())
        self.seen.append(_repeat(request))
        secret = request.headers["Authorization"]
        return web.Response(status=400, text=f"Not accepted: {secret}", reason=f"Not accepted: {secret}")


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    around = World()
    app = web.Application()
    app.router.add_route("*", "/{status:\\d+}/{rest:.*}", around.refuse)
    app.router.add_post("/v1/traces", around.collect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    around.url = f"http://{host}:{port}"
    try:
        async with serving(around.mcp):
            yield around
    finally:
        await runner.cleanup()
