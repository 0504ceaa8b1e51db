"""A small Responses server with one selectable fault.

Without a fault, everything that the bench checks is correct: it keeps chains, answers over SSE and WebSocket,
numbers its events, calls a tool until enough outputs were sent, and reports a digest of its context. It
shares no code with the bench, so a misreading of the protocol in one of them makes tests fail.
"""

import asyncio
import hashlib
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

Json = dict[str, Any]

PART_FAULTS = {
    "opens a part late": "content_part.added of item 0 after the text that is in it",
    "closes a part early": "content_part.done of item 0 before the end of its text",
    "closes what it never opened": "content_part.done of item 0 before its part is added",
    "never closes a part": "part 0 of item 0 never ends",
    "opens a part twice": "content_part.added of item 0 comes twice",
    "closes a part twice": "content_part.done of item 0 comes twice",
    "changes the text of a part": "part 0 of item 0 has another text than the item",
}
"""Faults in the events of content parts, and the text that describes each."""
WORDS = ["one ", "two ", "three ", "four"]


@dataclass
class Made:
    """A response in progress."""

    id: str
    create: Json
    context: list[Json]
    output: list[Json] = field(default_factory=list)
    number: int = 0
    """Sequence number of its next event."""


class Faulty:
    """The server. ``fault`` selects what it does wrong."""

    def __init__(self, fault: str = "", *, calls: int = 2, has_digests: bool = True) -> None:
        self.fault = fault
        self.calls = calls
        self.has_digests = has_digests
        self.requests: list[Json] = []
        self.connections = 0
        self._contexts: dict[str, list[Json]] = {}
        self._open: dict[str, Made] = {}
        """Responses that wait for the outputs of their calls."""
        self._number = 0

    # Events ---------------------------------------------------------------------------------------

    def events(self, frame: Json) -> list[Json]:
        self.requests.append(frame)
        if frame.get("type") == "response.append":
            return self._append(frame)
        if self.fault == "refuses lanes" and "stream_id" in frame:
            error = {"message": "Unknown parameter: 'stream_id'.", "code": "unknown_parameter"}
            return [{"type": "error", "status": 400, "error": error}]
        self._number += 1
        made = Made(id=f"resp_{self._number}", create=frame, context=self._context(frame))
        begun = {**self._response(made), "status": "in_progress", "output": [], "usage": None}
        opening = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        return self._step(made, opening)

    def _append(self, frame: Json) -> list[Json]:
        """Continue a response that waits for outputs."""
        made = self._open.pop(frame["response_id"])
        events = []
        for sent in frame["input"]:
            item = {"id": f"own_{len(made.output)}", **sent}
            place = {"output_index": len(made.output), "item": item}
            events += [{"type": f"response.output_item.{stage}", **place} for stage in ("added", "done")]
            made.output.append(item)
            if self.fault != "loses what is appended":
                made.context.append(item)
        return self._step(made, events)

    def _step(self, made: "Made", events: list[Json]) -> list[Json]:
        """Produce one answer, after which the response ends or waits for outputs."""
        answer = self._answer(made.create, made.context)
        answer["id"], answer["status"] = f"item_{self._number}_{len(made.output)}", "completed"
        events += _item_events(answer, len(made.output))
        made.output.append(answer)
        response = self._response(made)
        made.context.append(answer)
        knows_rollouts = self.fault != "knows no rollouts"
        if knows_rollouts and made.create.get("rollout") and answer["type"] == "function_call":
            call_id = "call_other" if self.fault == "waits for another call" else answer["call_id"]
            owed = [{"type": "function_call_output", "call_id": call_id, "name": answer["name"]}]
            events.append({"type": "response.done", "response_id": made.id, "required_input": owed})
            self._open[made.id] = made
        else:
            self._contexts[made.id] = made.context
            events.append({"type": f"response.{response['status']}", "response": response})
        events = self._spoil(events)
        for number, event in enumerate(events, start=made.number):
            event.setdefault("sequence_number", number)
            if "stream_id" in made.create and self.fault != "names no lane":
                event["stream_id"] = made.create["stream_id"]
        made.number += len(events)
        return self._misnumber(events)

    def _context(self, create: Json) -> list[Json]:
        items = create["input"]
        new = [{"role": "user", "content": items}] if isinstance(items, str) else items
        parent = create.get("previous_response_id")
        before = self._contexts.get(parent, []) if parent is not None else []
        if self.fault == "forgets the chain" and parent is not None:
            before = before[-1:]
        if self.fault == "forgets one output":
            outputs = [item for item in before if item.get("type") == "function_call_output"]
            before = [item for item in before if item not in outputs[:1]]
        return [*before, *new]

    def _answer(self, create: Json, context: list[Json]) -> Json:
        outputs = sum(item.get("type") == "function_call_output" for item in context)
        is_call = bool(create.get("tools")) and outputs < self.calls
        choice = create.get("tool_choice", "auto")
        is_call = choice == "required" or (is_call and choice == "auto")
        if self.fault == "answers instead of calling" and outputs == 1:
            is_call = False
        mark = f"digest={digest(create.get('instructions', ''), context)}" if self.has_digests else "hello"
        if self.fault == "stops giving digests" and outputs == 1:
            mark = "hello"
        if is_call:
            name = create["tools"][0]["name"]
            arguments = json.dumps({"path": f"{mark} a.py"})
            call_id = f"call_{self._number}_{outputs}"
            return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
        text = "".join([f"{mark} ", *WORDS])
        part = {"type": "output_text", "text": text, "annotations": []}
        return {"type": "message", "role": "assistant", "content": [part]}

    def _response(self, made: "Made") -> Json:
        size = tokens(made.context)
        usage = {
            "input_tokens": size,
            "output_tokens": tokens(made.output[-1:]),
            "input_tokens_details": {"cached_tokens": size // 2},
        }
        parent = made.create.get("previous_response_id")
        return {
            "id": made.id,
            "status": "incomplete" if self.fault == "is cut short" else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if self.fault == "is cut short" else None,
            "output": made.output,
            "previous_response_id": "resp_0" if self.fault == "names another parent" else parent,
            "usage": usage,
        }

    # Faults --------------------------------------------------------------------------------------

    def _spoil(self, events: list[Json]) -> list[Json]:
        deltas = [place for place, event in enumerate(events) if event["type"].endswith(".delta")]
        second = deltas[1]
        if self.fault == "repeats a delta":
            events.insert(second, dict(events[second]))
        if self.fault == "drops a delta":
            del events[second]
        if self.fault == "swaps deltas":
            events[second], events[second + 1] = events[second + 1], events[second]
        if self.fault == "speaks before the item":
            events.insert(2, events.pop(second))
        self._spoil_parts(events)
        self._spoil_ends(events)
        if self.fault == "changes its id" and "response" in events[-1]:
            events[-1]["response"] = {**events[-1]["response"], "id": "resp_other"}
        if self.fault == "changes the item at the end" and "response" in events[-1]:
            events[-1]["response"] = json.loads(json.dumps(events[-1]["response"]))
            events[-1]["response"]["output"][0]["extra"] = True
        return events

    def _spoil_ends(self, events: list[Json]) -> None:
        if self.fault == "ends twice":
            events.append(dict(events[-1]))
        if self.fault == "sends events after the end":
            events.append({"type": "response.in_progress"})
        if self.fault == "is in progress twice":
            events.insert(1, {"type": "response.in_progress", "response": events[-1].get("response")})
        if self.fault == "begins in the middle":
            del events[0]

    def _spoil_parts(self, events: list[Json]) -> None:
        at = {event["type"]: place for place, event in enumerate(events)}
        opened, closed = at.get("response.content_part.added"), at.get("response.content_part.done")
        if opened is None or closed is None:
            return
        if self.fault == "opens a part late":
            events.insert(closed - 1, events.pop(opened))
        if self.fault == "closes a part early":
            events.insert(closed - 1, events.pop(closed))
        if self.fault == "closes what it never opened":
            del events[opened]
        if self.fault == "never closes a part":
            del events[closed]
        if self.fault == "opens a part twice":
            events.insert(opened, dict(events[opened]))
        if self.fault == "closes a part twice":
            events.insert(closed, dict(events[closed]))
        if self.fault == "changes the text of a part":
            events[closed]["part"] = {"type": "output_text", "text": "another"}

    def _misnumber(self, events: list[Json]) -> list[Json]:
        if self.fault == "numbers events wrongly":
            events[3]["sequence_number"] = 1
        if self.fault == "skips numbers":
            for event in events:
                event["sequence_number"] *= 7
        if self.fault == "sends no numbers":
            for event in events:
                del event["sequence_number"]
        if self.fault == "reorders events":
            events[3], events[4] = events[4], events[3]
        return events

    # Transports -----------------------------------------------------------------------------------

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "faulty", "object": "model"}]})

    async def post(self, request: web.Request) -> web.StreamResponse:
        create = await request.json()
        if self.fault == "stores nothing" and create.get("store"):
            error = {"message": "There is no store.", "code": "unsupported"}
            return web.json_response({"error": error}, status=400)
        if self.fault == "refuses unknown betas" and "slipring" in request.headers.get("OpenAI-Beta", ""):
            return web.json_response({"error": {"message": "Unknown beta."}}, status=400)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for event in self.events(create):
            await answer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            if self.fault == "breaks off" and event["type"].endswith(".delta"):
                assert request.transport is not None
                request.transport.close()
                return answer
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def socket(self, request: web.Request) -> web.StreamResponse:
        if self.fault == "has no websocket":
            raise web.HTTPNotFound
        if self.fault == "refuses unknown betas" and "slipring" in request.headers.get("OpenAI-Beta", ""):
            raise web.HTTPBadRequest
        self.connections += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                for event in self.events(json.loads(message.data)):
                    await socket.send_str(json.dumps(event))
                    if self.fault == "breaks off" and event["type"].endswith(".delta"):
                        await socket.close()
                        return socket
        return socket


def _item_events(item: Json, index: int) -> Iterator[Json]:
    """All events of an item, in order."""
    place = {"output_index": index, "item_id": item["id"]}
    yield {"type": "response.output_item.added", "output_index": index, "item": {"id": item["id"]}}
    if item["type"] == "function_call":
        name, key, text = "response.function_call_arguments", "arguments", item["arguments"]
    else:
        name, key, text = "response.output_text", "text", item["content"][0]["text"]
        place["content_index"] = 0
        part = {"type": "output_text", "text": "", "annotations": []}
        yield {"type": "response.content_part.added", "part": part, **place}
    size = len(text) // 4 + 1
    for start in range(0, len(text), size):
        yield {"type": f"{name}.delta", "delta": text[start : start + size], **place}
    yield {"type": f"{name}.done", key: text, **place}
    if item["type"] == "message":
        yield {"type": "response.content_part.done", "part": item["content"][0], **place}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def tokens(items: list[Json]) -> int:
    """One token for each character, and four for each item."""
    return sum(len(_text(item)) + 4 for item in items)


def _text(item: Json) -> str:
    content = item.get("arguments") or item.get("output") or item.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def digest(instructions: str, context: list[Json]) -> str:
    """Digest of the context before an answer."""
    entries = [("system", instructions)] if instructions else []
    for item in context:
        if item.get("type") == "function_call":
            entries.append(("call", item["name"] + item["arguments"]))
        elif item.get("type") == "function_call_output":
            entries.append(("output", item["output"]))
        else:
            content = item["content"]
            texts = [content] if isinstance(content, str) else [part["text"] for part in content]
            entries.append((item["role"], "".join(texts)))
    state = b""
    for kind, text in entries:
        state = hashlib.sha256(state + kind.encode() + b"\x00" + text.encode() + b"\x00").digest()
    return state.hex()[:16]


@asynccontextmanager
async def running(faulty: Faulty) -> AsyncIterator[str]:
    """Serve it on a free port; yields its URL."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", faulty.models)
    app.router.add_post("/v1/responses", faulty.post)
    app.router.add_get("/v1/responses", faulty.socket)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@contextmanager
def serving(faulty: Faulty) -> Iterator[str]:
    """Serve it from a thread, for a test that runs an event loop itself; yields its URL."""
    started: queue.Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        stop = asyncio.Event()
        async with running(faulty) as url:
            started.put((url, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    url, loop, stop = started.get()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
