"""A server that answers at once, over the wires of several kinds of engine, and checks what it was sent.

Every answer is a call of the tool ``run``, streamed in sixty pieces. Its arguments hold a digest of all tool
outputs that the request brought, so that a history that was lost on the way is seen in the answer. It prints
its address and serves until it is ended.

    python benchmarks/instant_upstream.py
"""

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from slipring.engines.llama.models import embedded_model, read_file
from slipring.prompts.tokenizer import Tokenizer

PIECES = 60
_OUTPUT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def digest(outputs: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(outputs).encode()).hexdigest()


def arguments_for(outputs: Iterable[str]) -> str:
    return json.dumps({"digest": digest(outputs), "pad": "x" * (PIECES * 4 - 84)})


def cut(text: str, pieces: int = PIECES) -> Iterator[str]:
    """A text in so many pieces of about the same length."""
    size = -(-len(text) // pieces)
    return (text[start : start + size] for start in range(0, len(text), size))


def sse(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


async def stream(request: web.Request, events: Iterable[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for event in events:
        await answer.write(event)
    await answer.write_eof()
    return answer


# Chat Completions.


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    outputs = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return await stream(request, chat_events(arguments_for(outputs)))


def chat_events(arguments: str) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], **rest: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **rest}
        return sse({"id": "c", "object": "chat.completion.chunk", "model": "instant", "choices": [choice]})

    call = {
        "index": 0,
        "id": "call_upstream",
        "type": "function",
        "function": {"name": "run", "arguments": ""},
    }
    yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
    for piece in cut(arguments):
        yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield chunk({}, finish_reason="tool_calls")
    usage = {"prompt_tokens": 10, "completion_tokens": PIECES, "total_tokens": 10 + PIECES}
    yield sse(
        {"id": "c", "object": "chat.completion.chunk", "model": "instant", "choices": [], "usage": usage}
    )
    yield b"data: [DONE]\n\n"


# Responses, over SSE and over a WebSocket that remembers.


def outputs_of(items: Iterable[Any]) -> list[str]:
    return [item["output"] for item in items if item.get("type") == "function_call_output"]


async def responses(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    return await stream(request, map(sse, response_events("resp_1", outputs_of(body["input"]), {})))


async def responses_socket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    seen: dict[str, list[str]] = {}
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            continue
        create = json.loads(message.data)
        before = seen.get(create.get("previous_response_id") or "", [])
        response_id = f"resp_{len(seen)}"
        seen[response_id] = [*before, *outputs_of(create["input"])]
        lane = {"stream_id": create["stream_id"]} if create.get("stream_id") else {}
        for event in response_events(response_id, seen[response_id], lane):
            await socket.send_str(json.dumps(event, separators=(",", ":")))
    return socket


def response_events(response_id: str, outputs: list[str], lane: dict[str, str]) -> Iterator[dict[str, Any]]:
    arguments = arguments_for(outputs)
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": PIECES,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10 + PIECES,
    }
    response: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "status": "in_progress",
        "output": [],
    }
    item = {"type": "function_call", "id": "fc_1", "call_id": f"call_{response_id}", "name": "run"}
    opened = {**item, "arguments": "", "status": "in_progress"}
    closed = {**item, "arguments": arguments, "status": "completed"}
    place = {"output_index": 0, "item_id": "fc_1"}
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
    """Reads contexts back from their ids and answers in ids. What it has read of a context, it need not read
    again: as with an engine's own cache of prefixes, a long history costs little more than a short one."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_gguf(read_file(embedded_model()))
        self._stop = self._tokenizer.control("<|im_end|>")
        self._read: deque[tuple[list[int], bytes]] = deque(maxlen=4)

    def answer(self, ids: list[int]) -> list[int]:
        known, said = next((each for each in self._read if ids[: len(each[0])] == each[0]), ([], b""))
        said += b"".join(map(self._tokenizer.bytes_of, ids[len(known) :]))
        self._read.appendleft((ids, said))
        text = said.decode("utf-8", "replace")
        call = f'{{"name": "run", "arguments": {arguments_for(_OUTPUT.findall(text))}}}'
        return self._tokenizer.encode(f"<tool_call>\n{call}\n</tool_call>")

    async def vllm(self, request: web.Request) -> web.StreamResponse:
        ids = msgspec.json.decode(await request.read())["prompt"]
        return await stream(request, self._vllm_events(ids, self.answer(ids)))

    def _vllm_events(self, prompt: list[int], said: list[int]) -> Iterator[bytes]:
        def chunk(token_ids: list[int], reason: str | None = None) -> bytes:
            choice = {
                "index": 0,
                "text": "",
                "token_ids": token_ids,
                "logprobs": None,
                "finish_reason": reason,
            }
            return sse({"id": "c", "object": "text_completion", "model": "instant", "choices": [choice]})

        for piece in _in_pieces(said):
            yield chunk(piece)
        yield chunk([self._stop], "stop")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(said) + 1}
        yield sse({"id": "c", "object": "text_completion", "model": "instant", "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    async def sglang(self, request: web.Request) -> web.StreamResponse:
        ids = msgspec.json.decode(await request.read())["input_ids"]
        return await stream(request, self._sglang_events(ids, self.answer(ids)))

    def _sglang_events(self, prompt: list[int], said: list[int]) -> Iterator[bytes]:
        told: list[int] = []
        for piece in _in_pieces(said):
            told += piece
            counts = {"prompt_tokens": len(prompt), "cached_tokens": 0, "completion_tokens": len(told)}
            yield sse({"text": "", "output_ids": told, "meta_info": {**counts, "finish_reason": None}})
        counts = {"prompt_tokens": len(prompt), "cached_tokens": 0, "completion_tokens": len(told) + 1}
        ended = {**counts, "finish_reason": {"type": "stop", "matched": self._stop}}
        yield sse({"text": "", "output_ids": [*told, self._stop], "meta_info": ended})
        yield b"data: [DONE]\n\n"


def _in_pieces(ids: list[int]) -> Iterator[list[int]]:
    size = -(-len(ids) // PIECES)
    return (ids[start : start + size] for start in range(0, len(ids), size))


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "instant", "max_model_len": 10**6}]})


async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def sglang_model(request: web.Request) -> web.Response:
    return web.json_response({"model_path": "instant", "tokenizer_path": "instant", "context_length": 10**6})


async def main() -> None:
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
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    print(f"http://127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
