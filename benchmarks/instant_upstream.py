"""A fake engine server for several APIs, which answers at once or at a chosen speed.

It calls the first available tool, or answers with text if there is none or ``tool_choice`` forbids it.
Answers are streamed in sixty pieces. They show whether history was lost: they contain a digest of all tool
outputs of the request (``outputs=``) and, for APIs with items or messages, a digest of the whole context as
``slipring bench`` computes it (``digest=``). The server prints its address and serves until it is stopped.

    python benchmarks/instant_upstream.py [--tokens-per-s 1000] [--tokens 60] [--first-ms 0] [--port 0]
"""

import argparse
import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count as counting
from itertools import pairwise
from typing import Any

import msgspec
from aiohttp import WSMsgType, web
from packaged import packaged_metadata

from slipring.prompts.tokenization.tokenizer import Tokenizer

_OUTPUT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_numbers = counting(1)
_WORDS = "plain words that no model chose and that mean nothing "
Entry = tuple[str, str]
"""A part of a context: its kind and its text."""


class Settings:
    """Speed and length of the answers."""

    tokens = 60
    tokens_per_s = 0.0
    first_ms = 0.0
    """How long each answer waits before its first token."""
    before_each: Callable[[], Awaitable[None]] | None = None
    """Waited for before each event of a stream, for a benchmark that runs the upstream in its own process."""


def digest(outputs: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(outputs).encode()).hexdigest()


def context_digest(entries: Iterable[Entry]) -> str:
    state = b""
    for kind, text in entries:
        state = hashlib.sha256(state + kind.encode() + b"\0" + text.encode() + b"\0").digest()
    return state.hex()[:16]


def outputs_of(entries: Iterable[Entry]) -> list[str]:
    return [text for kind, text in entries if kind == "output"]


def answer_text(entries: list[Entry]) -> str:
    """Return the text of an answer, at four characters per token."""
    return _padded(f"digest={context_digest(entries)} outputs={digest(outputs_of(entries))} ")


def _padded(text: str) -> str:
    length = Settings.tokens * 4
    return (text + _WORDS * (length // len(_WORDS) + 1))[: max(length, len(text))].rstrip()


def carrier_of(parameters: Any) -> str:
    """Return the name of a tool's first string parameter."""
    properties = (parameters or {}).get("properties") or {}
    strings = [name for name, schema in properties.items() if (schema or {}).get("type") == "string"]
    return strings[0] if strings else "text"


def cut(text: str) -> list[str]:
    """Cut a text into as many pieces of about the same length as an answer has."""
    count = min(Settings.tokens, len(text))
    cuts = [len(text) * number // count for number in range(count + 1)]
    return [text[start:end] for start, end in pairwise(cuts)]


def text_of(content: Any) -> str:
    """Return a content that is text, or the text of all its parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def sse(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


class Pace:
    """The schedule of one answer, which begins now: a token per interval. A rate of 0 is unlimited."""

    def __init__(self, tokens_per_s: float) -> None:
        self._interval_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()

    async def wait(self, seconds: float) -> None:
        """Wait for so long after the last token was due."""
        self._due_s += seconds
        delay_s = self._due_s - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def token(self) -> None:
        """Wait until the next token is due."""
        await self.wait(self._interval_s)


async def stream(request: web.Request, events: Iterable[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    pace = Pace(Settings.tokens_per_s)
    await pace.wait(Settings.first_ms / 1000)
    for event in events:
        if Settings.tokens_per_s:
            await pace.token()
        if Settings.before_each is not None:
            await Settings.before_each()
        await answer.write(event)
    await answer.write_eof()
    return answer


# Chat Completions.


def chat_entries(messages: Iterable[dict[str, Any]]) -> Iterator[Entry]:
    for message in messages:
        role, text = message["role"], text_of(message.get("content"))
        if role == "tool":
            yield "output", text
            continue
        if text or not message.get("tool_calls"):
            yield role, text
        for call in message.get("tool_calls") or ():
            yield "call", call["function"]["name"] + call["function"]["arguments"]


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    entries = list(chat_entries(body["messages"]))
    text = answer_text(entries)
    tool = None
    if body.get("tools") and body.get("tool_choice") != "none":
        tool = body["tools"][0]["function"]
        text = json.dumps({carrier_of(tool.get("parameters")): text})
    usage = {
        "prompt_tokens": sum(len(text) for _, text in entries) // 4,
        "completion_tokens": Settings.tokens,
    }
    usage["total_tokens"] = sum(usage.values())
    if not body.get("stream"):
        return web.json_response(chat_completion(tool, text, usage))
    return await stream(request, chat_events(tool, text, usage))


def _call(tool: dict[str, Any], arguments: str) -> dict[str, Any]:
    function = {"name": tool["name"], "arguments": arguments}
    return {"index": 0, "id": f"call_{next(_numbers)}", "type": "function", "function": function}


def chat_completion(tool: dict[str, Any] | None, text: str, usage: dict[str, int]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tool is not None:
        message |= {"content": None, "tool_calls": [_call(tool, text)]}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if tool is None else "tool_calls"}
    return {
        **{"id": f"chatcmpl-{next(_numbers)}", "object": "chat.completion", "created": 0, "model": "instant"},
        **{"choices": [choice], "usage": usage},
    }


def chat_events(tool: dict[str, Any] | None, text: str, usage: dict[str, int]) -> list[bytes]:
    name = f"chatcmpl-{next(_numbers)}"
    head = {"id": name, "object": "chat.completion.chunk", "created": 0, "model": "instant"}

    def chunk(delta: dict[str, Any], **rest: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **rest}
        return sse({**head, "choices": [choice]})

    first, *others = cut(text)
    if tool is not None:
        events = [chunk({"role": "assistant", "content": None, "tool_calls": [_call(tool, first)]})]
        events += (chunk({"tool_calls": [{"index": 0, "function": {"arguments": each}}]}) for each in others)
    else:
        events = [
            chunk({"role": "assistant", "content": first}),
            *(chunk({"content": each}) for each in others),
        ]
    ended = chunk({}, finish_reason="stop" if tool is None else "tool_calls")
    # The end of an answer is sent with its last piece, so that it adds no time.
    events[-1] += ended + sse({**head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    return events


# Responses, over SSE and over a WebSocket that keeps the context.


def item_entries(items: Iterable[Any]) -> Iterator[Entry]:
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            yield item["role"], text_of(item["content"])
        elif kind == "function_call":
            yield "call", item["name"] + item["arguments"]
        elif kind == "function_call_output":
            yield "output", text_of(item["output"])


def head_entries(create: dict[str, Any]) -> list[Entry]:
    return [("system", create["instructions"])] if create.get("instructions") else []


def arguments_for(create: dict[str, Any], entries: list[Entry]) -> str:
    (tool, *_) = create.get("tools") or [{}]
    return json.dumps({carrier_of(tool.get("parameters")): answer_text(entries)})


async def responses(request: web.Request) -> web.StreamResponse:
    create = await request.json()
    entries = [*head_entries(create), *item_entries(create["input"])]
    events = response_events(f"resp_{next(_numbers)}", arguments_for(create, entries), {})
    return await stream(request, map(sse, events))


async def responses_socket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    seen: dict[str, list[Entry]] = {}
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            continue
        create = json.loads(message.data)
        before = seen.get(create.get("previous_response_id") or "", [])
        response_id = f"resp_{len(seen)}"
        context = [*before, *item_entries(create["input"])]
        arguments = arguments_for(create, [*head_entries(create), *context])
        seen[response_id] = [*context, ("call", f"run{arguments}")]
        lane = {"stream_id": create["stream_id"]} if create.get("stream_id") else {}
        for event in response_events(response_id, arguments, lane):
            if Settings.before_each is not None:
                await Settings.before_each()
            await socket.send_str(json.dumps(event, separators=(",", ":")))
    return socket


def response_events(response_id: str, arguments: str, lane: dict[str, str]) -> Iterator[dict[str, Any]]:
    tokens = Settings.tokens
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10 + tokens,
    }
    response: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "status": "in_progress",
        "output": [],
    }
    item_id = f"fc_{response_id}"
    item = {"type": "function_call", "id": item_id, "call_id": f"call_{response_id}", "name": "run"}
    opened = {**item, "arguments": "", "status": "in_progress"}
    closed = {**item, "arguments": arguments, "status": "completed"}
    place = {"output_index": 0, "item_id": item_id}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        *(
            {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            for piece in cut(arguments)
        ),
        {"type": "response.function_call_arguments.done", **place, "arguments": arguments},
        {"type": "response.output_item.done", "output_index": 0, "item": closed},
        {
            "type": "response.completed",
            "response": {**response, "status": "completed", "output": [closed], "usage": usage},
        },
    ]
    return ({**event, "sequence_number": number, **lane} for number, event in enumerate(events))


# Token ids: vLLM and SGLang.


class Tokens:
    """Decodes contexts from ids and answers in ids. It caches decoded prefixes, as an engine caches prefixes,
    so that a long history costs little more than a short one."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_gguf(packaged_metadata())
        self._stop = self._tokenizer.control("<|im_end|>")
        self._read: deque[tuple[list[int], bytes]] = deque(maxlen=4)

    def answer(self, ids: list[int]) -> list[int]:
        known, text = next((each for each in self._read if ids[: len(each[0])] == each[0]), ([], b""))
        text += b"".join(map(self._tokenizer.bytes_of, ids[len(known) :]))
        self._read.appendleft((ids, text))
        outputs = f"outputs={digest(_OUTPUT.findall(text.decode('utf-8', 'replace')))} "
        call = f'{{"name": "run", "arguments": {json.dumps({"digest": _padded(outputs)})}}}'
        return self._tokenizer.encode(f"<tool_call>\n{call}\n</tool_call>")

    async def vllm(self, request: web.Request) -> web.StreamResponse:
        ids = msgspec.json.decode(await request.read())["prompt"]
        return await stream(request, self._vllm_events(ids, self.answer(ids)))

    def _vllm_events(self, prompt: list[int], answer: list[int]) -> Iterator[bytes]:
        def chunk(token_ids: list[int], reason: str | None = None) -> bytes:
            choice = {
                "index": 0,
                "text": "",
                "token_ids": token_ids,
                "logprobs": None,
                "finish_reason": reason,
            }
            return sse({"id": "c", "object": "text_completion", "model": "instant", "choices": [choice]})

        for piece in _in_pieces(answer):
            yield chunk(piece)
        yield chunk([self._stop], "stop")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(answer) + 1}
        yield sse({"id": "c", "object": "text_completion", "model": "instant", "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    async def sglang(self, request: web.Request) -> web.StreamResponse:
        ids = msgspec.json.decode(await request.read())["input_ids"]
        return await stream(request, self._sglang_events(ids, self.answer(ids)))

    def _sglang_events(self, prompt: list[int], answer: list[int]) -> Iterator[bytes]:
        sent: list[int] = []
        for piece in _in_pieces(answer):
            sent += piece
            counts: dict[str, Any] = {"prompt_tokens": len(prompt), "cached_tokens": 0}
            counts |= {"completion_tokens": len(sent), "finish_reason": None}
            yield sse({"text": "", "output_ids": sent, "meta_info": counts})
        ended = {
            **{"prompt_tokens": len(prompt), "cached_tokens": 0, "completion_tokens": len(sent) + 1},
            "finish_reason": {"type": "stop", "matched": self._stop},
        }
        yield sse({"text": "", "output_ids": [*sent, self._stop], "meta_info": ended})
        yield b"data: [DONE]\n\n"


def _in_pieces(ids: list[int]) -> Iterator[list[int]]:
    size = -(-len(ids) // Settings.tokens)
    return (ids[start : start + size] for start in range(0, len(ids), size))


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "instant", "max_model_len": 10**6}]})


async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def sglang_model(request: web.Request) -> web.Response:
    return web.json_response({"model_path": "instant", "tokenizer_path": "instant", "context_length": 10**6})


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tokens-per-s", type=float, default=0.0, help="speed of an answer; 0: at once")
    parser.add_argument("--tokens", type=int, default=60, help="pieces of an answer")
    parser.add_argument("--first-ms", type=float, default=0.0, help="time to the first token")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    Settings.tokens, Settings.tokens_per_s = given.tokens, given.tokens_per_s
    Settings.first_ms = given.first_ms
    print(await serve(given.port), flush=True)
    await asyncio.Event().wait()


async def serve(port: int = 0) -> str:
    """Serve until the event loop ends; return the address."""
    tokens = Tokens()
    app = web.Application(client_max_size=2**30)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/responses", responses)
    app.router.add_get("/v1/responses", responses_socket)
    app.router.add_post("/v1/completions", tokens.vllm)
    app.router.add_post("/generate", tokens.sglang)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.router.add_get("/get_model_info", sglang_model)
    app.router.add_get("/get_server_info", sglang_model)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


if __name__ == "__main__":
    asyncio.run(main())
