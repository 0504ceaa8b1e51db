"""Runs a real server on a real port, with clients that check every frame they receive.

Nothing of slipring is mocked: ``serve`` starts the server that ``slipring serve`` starts, in this process.
``tests.wire`` checks the types and order of all frames and SSE events, so every test that uses a server also
tests that its output is well formed.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
from aiohttp import WSMsgType

from slipring.config.settings import Config
from slipring.core.generation import Accepted, Capabilities, Delta, Emit, Finished, Job, Model, Text, deliver
from slipring.core.limits import Limits
from slipring.engines.base import Engine, Level
from slipring.server.process.server import Server
from slipring.stores.store import Store
from tests import wire

TERMINAL = ("response.completed", "response.failed", "response.incomplete")
FAST = "simulated:tokens_per_s=0,output_tokens=5"
PATIENT = Limits(header_timeout_s=600.0)
"""A busy machine may stand still between a connection and its first request."""
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Performance:
    """One job of a ``PuppetEngine``, whose output the test controls."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stopped = asyncio.Event()
        """Set when the server cancels the job before it is done."""
        self.pulled = asyncio.Semaphore(0)
        """Released each time the server asks for more."""
        self.cues: asyncio.Queue[list[Delta] | Exception] = asyncio.Queue()

    def say(self, *texts: str) -> None:
        for text in texts:
            self.cues.put_nowait([Text(text)])

    def emit(self, *deltas: Delta) -> None:
        self.cues.put_nowait(list(deltas))

    def finish(self, reason: str = "stop", **counts: int) -> None:
        usage = {"input_tokens": 3, "cached_tokens": 0, "output_tokens": 2, **counts}
        self.cues.put_nowait([Finished(reason, **usage)])  # type: ignore[arg-type]

    def fail(self, error: Exception) -> None:
        self.cues.put_nowait(error)


class PuppetEngine(Engine):
    """An engine whose output the test controls: ``await engine.next()`` returns the next job."""

    name = "puppet"
    level = Level.ITEMS

    accepts = True
    """Whether jobs are accepted at once. If not, the first thing that the test emits accepts or refuses."""

    tokens = 1
    """The number of prompt tokens that the engine reports for every job."""

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self._capabilities = capabilities or Capabilities()
        self._performances: asyncio.Queue[Performance] = asyncio.Queue()

    def models(self) -> list[Model]:
        return [Model(name="puppet", owner="tests", capabilities=self._capabilities)]

    async def count(self, job: Job, enough: int | None = None) -> int:
        return self.tokens

    async def next(self) -> Performance:
        return await asyncio.wait_for(self._performances.get(), 300)

    async def generate(self, job: Job, emit: Emit) -> None:
        performance = Performance(job)
        self._performances.put_nowait(performance)
        done = False
        try:
            if self.accepts:
                await deliver(emit, [Accepted()])
            while not done:
                performance.pulled.release()
                cue = await performance.cues.get()
                if isinstance(cue, Exception):
                    done = True
                    raise cue
                done = isinstance(cue[-1], Finished)
                await deliver(emit, cue)
                if not done and job.stop.asked and isinstance(cue[-1], Text):
                    done = True
                    await deliver(
                        emit, [Finished("steered", input_tokens=3, cached_tokens=0, output_tokens=2)]
                    )
        finally:
            if not done:
                performance.stopped.set()


class Socket:
    """A WebSocket client that checks what it reads."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, foreign_tool_types: frozenset[str]) -> None:
        self.ws = ws
        self.order = wire.Order()
        self._foreign = foreign_tool_types

    async def send(self, **frame: Any) -> None:
        await self.ws.send_str(json.dumps(frame))

    async def create(self, **fields: Any) -> None:
        await self.send(type="response.create", **fields)

    async def receive(self, within_s: float = 300) -> dict[str, Any]:
        """Return the next event."""
        message = await self.ws.receive(timeout=within_s)
        assert message.type is WSMsgType.TEXT, f"expected an event, got {message}"
        event = wire.check_frame(message.data, self._foreign)
        self.order.see(event)
        return event

    async def until(self, *types: str, lane: str | None = None) -> list[dict[str, Any]]:
        """Return the events of a lane up to the first of these types. Events of other lanes are skipped."""
        events = []
        while True:
            event = await self.receive()
            if event.get("stream_id") != lane:
                continue
            events.append(event)
            if event["type"] in types:
                return events

    async def turn(self, **fields: Any) -> list[dict[str, Any]]:
        """Create a response and read it to its end."""
        await self.create(**fields)
        return await self.until(*TERMINAL, "error", lane=fields.get("stream_id"))

    async def response(self, **fields: Any) -> dict[str, Any]:
        """Create a response; return the object of its terminal event, which must not be an error."""
        last = (await self.turn(**fields))[-1]
        assert last["type"] in TERMINAL, last
        return last["response"]

    async def error(self, **fields: Any) -> dict[str, Any]:
        """Create a response that is refused; return the error frame."""
        last = (await self.turn(**fields))[-1]
        assert last["type"] == "error", last
        return last

    async def closed(self, within_s: float = 300) -> int | None:
        """Wait until the server closes the connection; return the close code."""
        message = await self.ws.receive(timeout=within_s)
        assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING), message
        return self.ws.close_code


class Reached(Protocol):
    """A server that can be asked over HTTP, wherever it runs."""

    @property
    def url(self) -> str: ...

    @property
    def http(self) -> aiohttp.ClientSession: ...


class Running:
    """A running server, with methods that open clients of it."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    @property
    def url(self) -> str:
        return self.server.base_url

    @property
    def service(self) -> Any:
        return self.server.service

    @asynccontextmanager
    async def connect(
        self,
        *,
        key: str = "test-key",
        headers: dict[str, str] | None = None,
        foreign_tool_types: frozenset[str] = frozenset(),
        abandoned: bool = False,
        **options: Any,
    ) -> AsyncIterator[Socket]:
        """Open a checked socket. ``abandoned``: responses may be left unfinished at the end."""
        headers = {"Authorization": f"Bearer {key}", **(headers or {})}
        async with self.http.ws_connect(f"{self.url}/responses", headers=headers, **options) as ws:
            socket = Socket(ws, foreign_tool_types)
            yield socket
            socket.order.finish(abandoned=abandoned)

    async def post(self, *, key: str = "test-key", **body: Any) -> tuple[int, dict[str, Any]]:
        """POST a create without streaming; return the status and the checked body."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.post(f"{self.url}/responses", json=body, headers=headers) as answer:
            content = await answer.json()
            if answer.status == 200:
                wire.check_response(content)
            else:
                wire.check_http_error(content)
            return answer.status, content

    async def compact(self, *, key: str = "test-key", **body: Any) -> tuple[int, dict[str, Any]]:
        """POST to the compact endpoint; return the status and the checked body."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.post(f"{self.url}/responses/compact", json=body, headers=headers) as answer:
            content = await answer.json()
            (wire.check_window if answer.status == 200 else wire.check_http_error)(content)
            return answer.status, content

    async def stream(self, *, key: str = "test-key", **body: Any) -> list[dict[str, Any]]:
        """POST a create with ``stream: true``; return the checked events."""
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{self.url}/responses"
        async with self.http.post(url, json={**body, "stream": True}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            text = (await answer.read()).decode()
        return read_sse(text)


def read_sse(text: str, foreign_tool_types: frozenset[str] = wire.NO_TYPES) -> list[dict[str, Any]]:
    """Check a whole SSE body: framing, types, order, and the final marker."""
    *blocks, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    order = wire.Order()
    events = []
    for block in blocks:
        if block == ": keepalive":
            continue  # a busy machine may be silent for long
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        event = wire.check_sse_event(
            name.removeprefix("event: "), data.removeprefix("data: "), foreign_tool_types
        )
        order.see(event)
        events.append(event)
    order.finish()
    return events


@asynccontextmanager
async def serve(
    engine: str | Engine = FAST,
    *,
    limits: Limits | None = None,
    store: str | Store = "memory",
    **settings: Any,
) -> AsyncIterator[Running]:
    """Run a server on a free loopback port until the block ends. It serves the admin address only if that is
    among the settings."""
    named = engine if isinstance(engine, str) else FAST
    spec = store if isinstance(store, str) else "memory"
    config = Config(port=0, engine=named, store=spec, limits=limits or PATIENT, **settings)
    server = Server(
        config,
        engine=None if isinstance(engine, str) else engine,
        store=None if isinstance(store, str) else store,
        has_admin="admin" in settings,
    )
    await server.start()
    async with aiohttp.ClientSession() as http:
        try:
            yield Running(server, http)
        finally:
            await server.stop()
