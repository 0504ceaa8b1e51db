"""The coding loop against one server, by the API and in the way that is asked for.

The model's weights are random, so it calls no tools. Each turn therefore brings what a tool would have
returned as a message, and asks for a fixed number of tokens. Ways that send the whole history send a fixed
text for each answer of the model: random tokens do not become the same tokens again when their text is read,
and the engine would then have to prefill what is in its cache. Chains continue the real answers.

Every turn's ``input_tokens`` must be as many as all texts of the loop so far have.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from comparison import Plan, Turn
from servers import Server

from slipring.commands.bench.client.transports import SseParser
from slipring.commands.bench.workloads.prose import INSTRUCTIONS, Prose
from slipring.commands.bench.workloads.tools import CODING_TOOLS

Count = Callable[[str], int]
"""The number of tokens of a text."""
ANSWER = "I have read the file. The test fails because the interval is open at its end. " * 3
"""Stands for each answer of the model in a history that is sent again; about 60 tokens."""
_ENDINGS = ("response.completed", "response.incomplete")
_TIMEOUT_S = 300.0


class Wrong(Exception):
    """An answer that cannot be right. The message is one line."""


class Loop:
    """One conversation. All have the same texts, but ``name`` at their beginning differs, so that no engine
    has more than the instructions and tools of a new one in its cache. ``number``: its place among those that
    run at once, which decides how long its tools take."""

    def __init__(self, server: Server, plan: Plan, name: str, number: int, count: Count) -> None:
        self.server = server
        self.plan = plan
        self.number = number
        self.turns: list[Turn] = []
        """Those that have ended."""
        self.took_ms = 0.0
        """How long it took, once it has ended."""
        self._count = count
        prose = Prose("engines")
        first = f"Conversation {name}. {prose.task()}"
        self.texts = [first, *(prose.tool_output(plan.output_bytes) for _ in range(plan.turns - 1))]
        self._least = count(INSTRUCTIONS)
        """The tokens that the model must have read at least."""
        self.url = server.url

    def end(self, number: int, turn: Turn) -> None:
        """A turn has ended. Raises ``Wrong`` if its answer has not the right length, or the history was
        lost."""
        self._least += self._count(self.texts[number])
        if turn.input_tokens < self._least:
            raise Wrong(f"history was lost: {turn.input_tokens} input tokens, {self._least} were sent")
        if turn.output_tokens != self.plan.answer_tokens:
            raise Wrong(f"{turn.output_tokens} output tokens instead of {self.plan.answer_tokens}")
        self.turns.append(turn)

    def responses_body(self, items: list[dict[str, Any]], **fields: Any) -> bytes:
        body = {
            **{"model": self.server.model, "instructions": INSTRUCTIONS, "tools": CODING_TOOLS},
            **{"temperature": 0, "max_output_tokens": self.plan.answer_tokens, "input": items, **fields},
        }
        return json.dumps(body).encode()

    async def pause(self, number: int) -> None:
        """Wait as long as the tool takes whose output turn ``number`` brings: the same in every way."""
        if self.plan.pause_s and number:
            await asyncio.sleep(random.Random(f"{self.number} {number}").uniform(*self.plan.pause_s))

    def messages(self, number: int) -> list[dict[str, Any]]:
        """All messages up to turn ``number``, for Chat Completions."""
        said = [{"role": "user", "content": self.texts[0]}]
        for text in self.texts[1 : number + 1]:
            said += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": text}]
        return said

    def items(self, number: int) -> list[dict[str, Any]]:
        """The same as items of the Responses API, written as its servers write them."""
        items: list[dict[str, Any]] = [user_item(self.texts[0])]
        for at, text in enumerate(self.texts[1 : number + 1]):
            answer = {"type": "output_text", "text": ANSWER, "annotations": []}
            said = {"type": "message", "role": "assistant", "id": f"msg_{at}", "status": "completed"}
            items += [{**said, "content": [answer]}, user_item(text)]
        return items


def user_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class _Watch:
    """Measures a turn from now to its last event."""

    def __init__(self, sent: bytes) -> None:
        self._sent = len(sent)
        self._start = time.perf_counter()
        self._first_ms = 0.0

    def see_output(self) -> None:
        self._first_ms = self._first_ms or self._ms()

    def end(self, usage: dict[str, Any], prompt: str, answer: str) -> Turn:
        details = usage.get(f"{prompt}_tokens_details") or {}
        return Turn(
            first_ms=self._first_ms,
            total_ms=self._ms(),
            input_tokens=usage[f"{prompt}_tokens"],
            cached_tokens=details.get("cached_tokens") or 0,
            output_tokens=usage[f"{answer}_tokens"],
            sent_bytes=self._sent,
        )

    def _ms(self) -> float:
        return (time.perf_counter() - self._start) * 1e3


async def _posted(http: aiohttp.ClientSession, url: str, body: bytes) -> AsyncIterator[dict[str, Any]]:
    """Post a request; yield the events of its answer."""
    async with http.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        if answer.status != 200:
            raise Wrong(f"HTTP {answer.status}: {(await answer.text())[:200]}")
        parser = SseParser()
        async for chunk in answer.content.iter_any():
            for data in parser.feed(chunk):
                yield json.loads(data)


async def _read_response(events: AsyncIterator[dict[str, Any]], watch: _Watch) -> tuple[Turn, dict[str, Any]]:
    """Read the events of a response up to the last; return its measurements and itself."""
    async for event in events:
        if event["type"].endswith(".delta"):
            watch.see_output()
        elif event["type"] in _ENDINGS:
            response = event["response"]
            return watch.end(response["usage"], "input", "output"), response
        elif event["type"] in ("response.failed", "error"):
            fault = event.get("error") or event.get("response", {}).get("error") or event
            raise Wrong(json.dumps(fault)[:200])
    raise Wrong("the answer has no end")


async def full(http: aiohttp.ClientSession, loop: Loop) -> None:
    """Send the whole history with each request, as a Responses API without state wants it."""
    for number in range(loop.plan.turns):
        await loop.pause(number)
        body = loop.responses_body(loop.items(number), stream=True, store=False)
        watch = _Watch(body)
        turn, _ = await _read_response(_posted(http, f"{loop.url}/responses", body), watch)
        loop.end(number, turn)


async def resent(http: aiohttp.ClientSession, loop: Loop) -> None:
    """The same, but with the answers as they came, as clients do. Only for servers that recognise them."""
    items: list[dict[str, Any]] = []
    for number, text in enumerate(loop.texts):
        await loop.pause(number)
        items.append(user_item(text))
        body = loop.responses_body(items, stream=True, store=False)
        watch = _Watch(body)
        turn, response = await _read_response(_posted(http, f"{loop.url}/responses", body), watch)
        loop.end(number, turn)
        items += response["output"]


async def chained(http: aiohttp.ClientSession, loop: Loop) -> None:
    """Send what is new with ``previous_response_id``, over HTTP."""
    latest: dict[str, str] = {}
    for number, text in enumerate(loop.texts):
        await loop.pause(number)
        body = loop.responses_body([user_item(text)], stream=True, store=True, **latest)
        watch = _Watch(body)
        turn, response = await _read_response(_posted(http, f"{loop.url}/responses", body), watch)
        loop.end(number, turn)
        latest = {"previous_response_id": response["id"]}


async def websocket(http: aiohttp.ClientSession, loop: Loop) -> None:
    """Send what is new with ``previous_response_id``, over one WebSocket."""
    latest: dict[str, str] = {}
    async with http.ws_connect(f"{loop.url}/responses", max_msg_size=0) as ws:
        for number, text in enumerate(loop.texts):
            await loop.pause(number)
            frame = loop.responses_body([user_item(text)], type="response.create", store=False, **latest)
            watch = _Watch(frame)
            await ws.send_str(frame.decode())
            turn, response = await _read_response(_frames(ws), watch)
            loop.end(number, turn)
            latest = {"previous_response_id": response["id"]}


async def _frames(ws: aiohttp.ClientWebSocketResponse) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield json.loads(await ws.receive_str())


async def chat(http: aiohttp.ClientSession, loop: Loop) -> None:
    """Send the whole history to Chat Completions."""
    tools = [
        {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}
        for tool in CODING_TOOLS
    ]
    for number in range(loop.plan.turns):
        await loop.pause(number)
        messages = [{"role": "system", "content": INSTRUCTIONS}, *loop.messages(number)]
        request = {
            **{"model": loop.server.model, "messages": messages, "tools": tools, "temperature": 0},
            **{"max_tokens": loop.plan.answer_tokens, "stream": True},
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(request).encode()
        watch, usage = _Watch(body), None
        async for chunk in _posted(http, f"{loop.url}/chat/completions", body):
            for choice in chunk.get("choices", ()):
                if any(choice["delta"].get(field) for field in ("content", "reasoning", "tool_calls")):
                    watch.see_output()
            usage = chunk.get("usage") or usage
        if usage is None:
            raise Wrong("the answer has no usage")
        loop.end(number, watch.end(usage, "prompt", "completion"))


WAYS = {"full": full, "resent": resent, "chat": chat, "chained": chained, "websocket": websocket}


@asynccontextmanager
async def _session(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {server.key}"}
    # llama-server closes kept connections when it likes, also while a request is on its way.
    connector = aiohttp.TCPConnector(force_close=(server.name == "llama-server"))
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as http:
        yield http


async def run(way: str, loops: list[Loop]) -> float:
    """Run loops at the same time, each on its own connection; return how long they took, in ms. Raises
    ``Wrong``."""
    start = time.perf_counter()

    async def one(loop: Loop) -> None:
        async with _session(loop.server) as http:
            await WAYS[way](http, loop)
        loop.took_ms = (time.perf_counter() - start) * 1e3

    try:
        await asyncio.gather(*map(one, loops))
    except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as error:
        raise Wrong(f"{type(error).__name__}: {error}"[:200]) from error
    return (time.perf_counter() - start) * 1e3
