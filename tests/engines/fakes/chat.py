"""A fake Chat Completions server, which streams chunk by chunk as real servers do."""

import asyncio
import json
from typing import Any, ClassVar

from aiohttp import web

from slipring.engines.chat.engine import ChatEngine
from slipring.engines.chat.options import ChatOptions
from tests.engines.fakes.server import (
    PATIENT,
    Call,
    Deny,
    FakeServer,
    Garbage,
    HangUp,
    Refuse,
    Say,
    Stall,
    Step,
    Stop,
    Think,
)


class Hung(Exception):
    """The script has cut the connection."""


class Send:
    """Payloads to send unchanged, for what other servers send differently."""

    def __init__(self, *payloads: Any) -> None:
        self.payloads = payloads


class FakeChatServer(FakeServer):
    """A Chat Completions server under a test's control."""

    can_deny = True
    with_logprobs: ClassVar[dict[str, Any]] = {"logprobs": True}

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.queries: list[str] = []
        self.models: list[str] = ["fake"]
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def close(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def engine(self, **options: Any) -> ChatEngine:
        return ChatEngine(ChatOptions(url=self.url, **{"model": "fake", **PATIENT, **options}))

    async def _list(self, request: web.Request) -> web.Response:
        data = [{"id": name, "object": "model"} for name in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.queries.append(request.query_string)
        self.requests.append(json.loads(self.bodies[-1]))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        steps = self.next_script()
        if isinstance(steps[0], Refuse):
            body = {"error": {"message": steps[0].message, "type": "error", "param": None, "code": None}}
            return web.json_response(body, status=steps[0].status, headers=steps[0].headers)
        stream = Stream(self, request, web.StreamResponse(headers={"Content-Type": "text/event-stream"}))
        try:
            for step in steps:
                await stream.play(step)
        except Hung:
            return stream.response
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return stream.response


class Stream:
    """One answer."""

    def __init__(self, fake: FakeChatServer, request: web.Request, response: web.StreamResponse) -> None:
        self.fake = fake
        self.request = request
        self.response = response
        self.calls = 0

    async def play(self, step: Step | Send) -> None:
        if isinstance(step, HangUp):
            transport = self.request.transport
            assert transport is not None
            # What was sent so far arrives first, as it does when a process dies.
            while transport.get_write_buffer_size():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            transport.abort()
            raise Hung
        if not self.response.prepared:
            await self.response.prepare(self.request)
            if not isinstance(step, Send):
                await self.delta(role="assistant", content=None)
        await getattr(self, type(step).__name__.lower())(step)

    async def say(self, step: Say) -> None:
        for number, word in enumerate(step.words):
            if number == 1 and step.rest is not None:
                await step.rest.wait()
            await self.delta(content=word)

    async def deny(self, step: Deny) -> None:
        for word in step.words:
            await self.delta(refusal=word)

    async def think(self, step: Think) -> None:
        for word in step.words:
            await self.delta(reasoning_content=word)

    async def call(self, step: Call) -> None:
        index, self.calls = self.calls, self.calls + 1
        function = {"name": step.name, "arguments": ""}
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        await self.delta(tool_calls=[first])
        for at in range(0, len(step.arguments), 5):
            piece = {"arguments": step.arguments[at : at + 5]}
            await self.delta(tool_calls=[{"index": index, "function": piece}])

    async def stop(self, step: Stop) -> None:
        reason = "tool_calls" if self.calls and step.reason == "stop" else step.reason
        await self.payload(
            {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": None}
        )
        if self.fake.requests[-1].get("stream_options"):
            usage = {
                "prompt_tokens": step.input_tokens,
                "completion_tokens": step.output_tokens,
                "total_tokens": step.input_tokens + step.output_tokens,
                "prompt_tokens_details": {"cached_tokens": step.cached_tokens},
            }
            await self.payload({**CHUNK, "choices": [], "usage": usage})
        await self.response.write(b"data: [DONE]\n\n")

    async def send(self, step: Send) -> None:
        for payload in step.payloads:
            await self.payload(payload)

    async def garbage(self, step: Garbage) -> None:
        await self.response.write(b"data: <html>502 Bad Gateway</html>\n\n")

    async def stall(self, step: Stall) -> None:
        self.fake.stalled.set()
        transport = self.request.transport
        while transport is not None and not transport.is_closing():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)
        self.fake.left.set()
        raise Hung

    async def delta(self, **fields: Any) -> None:
        asked = self.fake.requests[-1]
        logprobs = None
        if asked.get("logprobs") and fields.get("content"):
            top = [{"token": "y", "logprob": -1.0, "bytes": [121]}] * asked.get("top_logprobs", 0)
            logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": top}]}
        choice = {"index": 0, "delta": fields, "logprobs": logprobs, "finish_reason": None}
        await self.payload({**CHUNK, "choices": [choice]})

    async def payload(self, payload: Any) -> None:
        data = payload if isinstance(payload, bytes) else b"data: " + json.dumps(payload).encode() + b"\n\n"
        await self.response.write(data)


CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
