"""A fake server of the Responses API, over SSE and over WebSockets.

It keeps responses per socket, supports lanes, runs hosted tools as scripted, and refuses what real servers
refuse: a previous response that it does not have, an output without its call, and ids that it has not made.
Every event that it sends passes the same checks as slipring's own. Its ids hold the word ``upstream``, so
that a test can look for them where they must not be.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web

from slipring.engines.base import Engine
from slipring.engines.responses.engine import ResponsesEngine
from slipring.engines.responses.options import ResponsesOptions
from tests import wire
from tests.engines.fakes.server import (
    PATIENT,
    Call,
    Deny,
    FakeServer,
    Garbage,
    HangUp,
    Host,
    Refuse,
    Say,
    Stall,
    Step,
    Stop,
    Think,
)

Json = dict[str, Any]
Emit = Callable[[Json], Awaitable[None]]
_ids = count(1)
OUR_IDS = ("msg_", "rs_", "fc_", "ctc_")


def new_id(prefix: str) -> str:
    return f"{prefix}_upstream{next(_ids):010}"


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.frame: Json = {
            "type": "error",
            "status": status,
            "error": {"type": "invalid_request_error", "code": code, "message": message, "param": param},
        }


class Cut(Exception):
    """Raised to cut the connection."""


class Peer:
    """One of the server's sockets, and the responses that it keeps for it."""

    def __init__(self, ws: web.WebSocketResponse, headers: dict[str, str]) -> None:
        self.ws = ws
        self.headers = headers
        self.memory: dict[str, set[str]] = {}
        """Responses, each with its calls that have no output."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.order = wire.Order()
        self.creates: list[Json] = []
        self.pings: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_closed = asyncio.Event()


class FakeResponsesServer(FakeServer):
    """The server. ``transport`` is the option that its engine gets."""

    can_deny = True
    garbage = "{not json"
    """What it sends for ``Garbage``."""

    def __init__(self, transport: str = "auto") -> None:
        super().__init__()
        self.transport = transport
        self.raw: list[bytes] = []
        """What it was sent, byte for byte."""
        self.peers: list[Peer] = []
        self.refuses_upgrade: int | None = 426 if transport == "sse" else None
        self.refusal_headers: dict[str, str] = {}
        self.upgrades = 0
        self.names_lanes = True
        """Whether events carry a ``stream_id``: those of upstreams without lanes do not."""
        self.is_strict = True
        """Whether outputs without a call are refused."""
        self.is_deaf = False
        """Whether pings are left unanswered."""
        self.counts: web.Response | None = None
        """The answer to a request for a count; None: 404."""
        self.counted: list[Json] = []
        self.stored: dict[str, set[str]] = {}
        self.faults: list[str] = []
        self.pulled = 0
        """How many events it has sent over sockets."""

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/v1/responses", self._upgrade)
        app.router.add_post("/v1/responses", self._post)
        app.router.add_post("/v1/responses/input_tokens", self._count)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = self._runner.addresses[0][1]

    async def close(self) -> None:
        for peer in self.peers:
            for task in peer.tasks:
                task.cancel()
        await self._runner.cleanup()
        assert not self.faults, "\n".join(self.faults)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def engine(self, **options: Any) -> Engine:
        known = {"url": self.url, "model": "up", "transport": self.transport}
        return ResponsesEngine(ResponsesOptions(**{**PATIENT, **known, **options}))

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "up", "object": "model"}]})

    async def _count(self, request: web.Request) -> web.Response:
        self.counted.append(await request.json())
        return self.counts or web.json_response({"error": {"message": "no such path"}}, status=404)

    # Over SSE.

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        create = json.loads(body)
        self._note(body, create, {name.lower(): value for name, value in request.headers.items()})
        script = self.next_script()
        if isinstance(script[0], Refuse):
            refuse = script[0]
            error = {"message": refuse.message, "type": "invalid_request_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=refuse.status, headers=refuse.headers)
        try:
            self._check(create, self.stored)
        except Refusal as refusal:
            return web.json_response({"error": refusal.frame["error"]}, status=refusal.frame["status"])
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        order = wire.Order()

        async def emit(event: Json) -> None:
            text = json.dumps(event)
            self._judge(lambda: order.see(wire.check_sse_event(event["type"], text)))
            await answer.write(f"event: {event['type']}\ndata: {text}\n\n".encode())

        async def garble() -> None:
            await answer.write(f"data: {self.garbage}\n\n".encode())

        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        try:
            await self._play(create, script, emit, garble, self.stored, gone)
            await answer.write(b"data: [DONE]\n\n")
        except Cut:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            self.left.set()
        return answer

    # Over WebSockets.

    async def _upgrade(self, request: web.Request) -> web.StreamResponse:
        self.upgrades += 1
        if self.refuses_upgrade is not None:
            return web.json_response(
                {"error": {"message": "no sockets"}},
                status=self.refuses_upgrade,
                headers=self.refusal_headers,
            )
        ws = web.WebSocketResponse(max_msg_size=64 * 2**20, autoping=False)
        await ws.prepare(request)
        peer = Peer(ws, {name.lower(): value for name, value in request.headers.items()})
        self.peers.append(peer)
        async for message in ws:
            if message.type is WSMsgType.PING and not self.is_deaf:
                await ws.pong(message.data)
                peer.pings.put_nowait(message.data)
            elif message.type is WSMsgType.TEXT:
                create = json.loads(message.data)
                peer.creates.append(create)
                self._note(message.data.encode(), create, peer.headers)
                task = asyncio.create_task(self._answer(peer, create, request))
                peer.tasks.add(task)
                task.add_done_callback(peer.tasks.discard)
        if peer.tasks:
            self.left.set()
        peer.is_closed.set()
        for task in list(peer.tasks):
            task.cancel()
        return ws

    async def _answer(self, peer: Peer, create: Json, request: web.Request) -> None:
        lane = {"stream_id": create["stream_id"]} if "stream_id" in create and self.names_lanes else {}

        async def emit(event: Json) -> None:
            text = json.dumps({**event, **lane})
            self._judge(lambda: peer.order.see(wire.check_frame(text)))
            await peer.ws.send_str(text)
            self.pulled += 1

        async def garble() -> None:
            await peer.ws.send_str(self.garbage)

        script = self.next_script()
        try:
            if isinstance(script[0], Refuse):
                refuse = script[0]
                refusal = Refusal(refuse.status, "refused", refuse.message)
                refusal.frame["error"]["headers"] = refuse.headers
                raise refusal
            self._check(create, peer.memory)
            await self._play(create, script, emit, garble, peer.memory, lambda: peer.ws.closed)
        except Refusal as refusal:
            await emit(refusal.frame)
        except Cut:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            self.left.set()

    # Either.

    def _note(self, body: bytes, create: Json, headers: dict[str, str]) -> None:
        self.raw.append(body)
        self.requests.append(create)
        self.headers.append(headers)

    def _judge(self, check: Callable[[], object]) -> None:
        try:
            check()
        except AssertionError as fault:
            self.faults.append(str(fault))

    def _check(self, create: Json, memory: dict[str, set[str]]) -> None:
        previous = create.get("previous_response_id")
        if previous is not None and previous not in memory:
            raise Refusal(
                400,
                "previous_response_not_found",
                f"Previous response with id '{previous}' not found.",
                "previous_response_id",
            )
        calls = set(memory[previous]) if previous is not None else set()
        if not self.is_strict:
            return
        for item in create["input"]:
            if str(item.get("id", "")).startswith(OUR_IDS):
                raise Refusal(400, "invalid_value", f"Item with id '{item['id']}' not found.", "input")
            if item["type"] in ("function_call", "custom_tool_call", "tool_search_call"):
                calls.add(item["call_id"])
            elif item["type"] in ("function_call_output", "custom_tool_call_output", "tool_search_output"):
                if item["call_id"] not in calls:
                    raise Refusal(400, "invalid_value", f"No tool call found: {item['call_id']}.", "input")
                calls.discard(item["call_id"])
        if calls:
            raise Refusal(400, "invalid_value", f"No tool output found for {calls}.", "input")

    async def _play(
        self,
        create: Json,
        script: tuple[Step, ...],
        emit: Emit,
        garble: Callable[[], Awaitable[None]],
        memory: dict[str, set[str]],
        gone: Callable[[], bool],
    ) -> None:
        if create.get("generate") is False:
            script = (Stop(output_tokens=0),)
        voice = Voice(create, emit)
        if not isinstance(script[0], HangUp):
            await voice.begin()
        for step in script:
            if isinstance(step, Say | Deny | Think | Call | Host):
                await voice.speak(step)
            elif isinstance(step, Stop):
                memory[voice.response["id"]] = set(voice.calls)
                await voice.stop(step)
            elif isinstance(step, Garbage):
                await garble()
            elif isinstance(step, HangUp):
                raise Cut
            elif isinstance(step, Stall):
                self.stalled.set()
                while not gone():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
                self.left.set()
                raise ConnectionResetError


class Voice:
    """One response of the server, event by event."""

    def __init__(self, create: Json, emit: Emit) -> None:
        self._emit = emit
        self._numbers = count()
        self._warmup = create.get("generate") is False
        top = create.get("top_logprobs") or 0
        likely = {"token": "x", "logprob": -0.5, "top_logprobs": [{"token": "y", "logprob": -1.0}] * top}
        self._likely = [likely] if "message.output_text.logprobs" in create.get("include", ()) else []
        self.calls: list[str] = []
        self.response: Json = {
            **{"id": new_id("resp"), "object": "response", "created_at": 1, "completed_at": None},
            **{"status": "in_progress", "model": "up", "output": [], "tools": [], "tool_choice": "auto"},
            **{"parallel_tool_calls": True, "truncation": "disabled", "text": {"format": {"type": "text"}}},
            **{"temperature": 1.0, "top_p": 1.0, "top_logprobs": 0, "presence_penalty": 0},
            **{"frequency_penalty": 0, "store": False, "background": False, "service_tier": "default"},
            **{"error": None, "incomplete_details": None, "instructions": None, "max_output_tokens": None},
            **{"max_tool_calls": None, "metadata": {}, "prompt_cache_key": None, "reasoning": None},
            **{"safety_identifier": None, "usage": None, "user": None},
            "previous_response_id": create.get("previous_response_id"),
        }

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._emit({"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields})

    async def begin(self) -> None:
        await self._send("created", response=self.response)
        if not self._warmup:
            await self._send("in_progress", response=self.response)

    async def _item(self, item: Json, stream: Callable[[Json], Awaitable[Json]], **begun: Any) -> None:
        place = {"output_index": len(self.response["output"])}
        await self._send("output_item.added", **place, item={**item, **begun})
        done = await stream({**place, "item_id": item["id"]})
        await self._send("output_item.done", **place, item={**item, **done})
        self.response["output"].append({**item, **done})

    async def _part(
        self,
        place: Json,
        part: Json,
        family: str,
        step: Say | Think,
        **more: Any,
    ) -> Json:
        words = step.words
        annotations, rest = (step.annotations, step.rest) if isinstance(step, Say) else ((), None)
        place = {**place, "content_index": 0}
        await self._send("content_part.added", **place, part=part)
        for number, word in enumerate(words):
            if number == 1 and rest is not None:
                await rest.wait()
            await self._send(f"{family}.delta", **place, delta=word, **more)
        for number, annotation in enumerate(annotations):
            about = {**place, "annotation_index": number, "annotation": annotation}
            await self._send("output_text.annotation.added", **about)
        if annotations:
            part = {**part, "annotations": list(annotations)}
        text = "".join(words)
        await self._send(f"{family}.done", **place, text=text, **more)
        await self._send("content_part.done", **place, part={**part, "text": text})
        return {"content": [{**part, "text": text}]}

    async def speak(self, step: Say | Deny | Think | Call | Host) -> None:
        if isinstance(step, Say):
            await self.say(step)
        elif isinstance(step, Deny):
            await self.deny(step.words)
        elif isinstance(step, Think):
            await self.think(step)
        elif isinstance(step, Host):
            await self.host(step)
        else:
            await self.call(step)

    async def say(self, step: Say) -> None:
        item = {"id": new_id("msg"), "type": "message", "role": "assistant"}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}

        async def stream(place: Json) -> Json:
            done = await self._part(place, part, "output_text", step, logprobs=self._likely)
            return {**done, "status": "completed"}

        await self._item(item, stream, status="in_progress", content=[])

    async def deny(self, words: tuple[str, ...]) -> None:
        item = {"id": new_id("msg"), "type": "message", "role": "assistant"}
        text = "".join(words)

        async def stream(place: Json) -> Json:
            place = {**place, "content_index": 0}
            await self._send("content_part.added", **place, part={"type": "refusal", "refusal": ""})
            for word in words:
                await self._send("refusal.delta", **place, delta=word)
            await self._send("refusal.done", **place, refusal=text)
            part = {"type": "refusal", "refusal": text}
            await self._send("content_part.done", **place, part=part)
            return {"content": [part], "status": "completed"}

        await self._item(item, stream, status="in_progress", content=[])

    async def think(self, step: Think) -> None:
        item = {"id": new_id("rs"), "type": "reasoning", "summary": [], "encrypted_content": step.secret}
        part = {"type": "reasoning_text", "text": ""}
        await self._item(item, lambda place: self._part(place, part, "reasoning_text", step))

    async def call(self, call: Call) -> None:
        call_id = new_id("call")
        self.calls.append(call_id)
        if call.kind == "tool_search":
            return await self.search(call_id, call)
        if call.kind == "custom":
            return await self.custom(call_id, call)
        item = {"id": new_id("fc"), "type": "function_call", "call_id": call_id, "name": call.name}
        if call.namespace is not None:
            item["namespace"] = call.namespace

        async def stream(place: Json) -> Json:
            for start in range(0, len(call.arguments), 5):
                delta = call.arguments[start : start + 5]
                await self._send("function_call_arguments.delta", **place, delta=delta)
            done = {"arguments": call.arguments}
            await self._send("function_call_arguments.done", **place, **done)
            return {**done, "status": "completed"}

        await self._item(item, stream, arguments="", status="in_progress")

    async def host(self, step: Host) -> None:
        place = {"output_index": len(self.response["output"])}
        item = {"id": new_id(step.item["type"]), **step.item}
        begun = {key: value for key, value in {**item, **step.begun}.items() if key not in step.later}
        await self._send("output_item.added", **place, item=begun)
        for kind, fields in step.events:
            await self._send(kind, **place, item_id=item["id"], **fields)
        if step.ends:
            await self._send("output_item.done", **place, item=item)
            self.response["output"].append(item)

    async def search(self, call_id: str, call: Call) -> None:
        item = {"id": new_id("ts"), "type": "tool_search_call", "call_id": call_id, "execution": "client"}

        async def stream(place: Json) -> Json:
            return {"arguments": json.loads(call.arguments), "status": "completed"}

        await self._item(item, stream, arguments={}, status="in_progress")

    async def custom(self, call_id: str, call: Call) -> None:
        item = {"id": new_id("ctc"), "type": "custom_tool_call", "call_id": call_id, "name": call.name}
        text = json.loads(call.arguments)["input"]

        async def stream(place: Json) -> Json:
            await self._send("custom_tool_call_input.delta", **place, delta=text)
            await self._send("custom_tool_call_input.done", **place, input=text)
            return {"input": text, "status": "completed"}

        await self._item(item, stream, input="", status="in_progress")

    async def stop(self, stop: Stop) -> None:
        usage = {
            "input_tokens": stop.input_tokens,
            "input_tokens_details": {"cached_tokens": stop.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": stop.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": stop.input_tokens + stop.output_tokens,
        }
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(stop.reason)
        status = "completed" if reason is None else "incomplete"
        self.response |= {"usage": usage, "status": status}
        self.response |= {"completed_at": 2} if reason is None else {"incomplete_details": {"reason": reason}}
        await self._send(status, response=self.response)


async def settle() -> None:
    """Give the tasks of both sides 50 ms to settle."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.Event().wait()
