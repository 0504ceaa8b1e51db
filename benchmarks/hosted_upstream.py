"""The model server and the tool server of ``hosted_tools.py``. Each prints its address and serves until it is
stopped; both count what they are asked, at ``/counts``.

    python benchmarks/hosted_upstream.py model|tools

The model server serves Chat Completions, and Responses, and decodes nothing. The last user
message says what to do, as in ``calls=lookup steps=10 parallel=1``: it calls that tool in so many steps, and
then answers. It also finds out how many tokens an engine with an unlimited prefix cache would have to
prefill: those after the longest beginning that a request has in common with an earlier one, at four
characters per token.

The tool server is one of the official MCP SDK, which speaks all revisions of the protocol.
"""

import argparse
import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import count as counting
from typing import Any

from aiohttp import web

from slipring.commands.bench.workloads.prose import Prose

_PLAN = re.compile(r"calls=(\w+) steps=(\d+) parallel=(\d+)")
_REMEMBERED = 64
OUTPUT_BYTES = 3500
"""Size of what ``lookup`` returns."""
GLANCE_BYTES = 400
"""Size of what ``glance`` returns, for a model that really reads."""
_numbers = counting(1)


class Model:
    """Answers requests by their plans."""

    def __init__(self) -> None:
        self.read: list[dict[str, int]] = []
        """What reading each request took."""
        self._contexts: list[str] = []

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        total, known = self._take(raw, body, "messages")
        calls = _calls(body["messages"], [tool["function"]["name"] for tool in body.get("tools") or []])
        usage = {
            **{"prompt_tokens": total, "completion_tokens": 8, "total_tokens": total + 8},
            "prompt_tokens_details": {"cached_tokens": known},
        }
        if not body.get("stream"):
            return web.json_response(_completion(calls, usage))
        return await _stream(request, _events(calls, usage))

    async def respond(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        if isinstance(body["input"], str):
            body["input"] = [{"role": "user", "content": body["input"]}]
        total, known = self._take(raw, body, "input")
        response = _response(body, _calls(body["input"], list(_namespaces(body))), total, known)
        if not body.get("stream"):
            return web.json_response(response)
        return await _stream(request, _response_events(response))

    def _take(self, raw: bytes, body: dict[str, Any], field: str) -> tuple[int, int]:
        """Read a request; returns its tokens, and how many of them an earlier one had."""
        context = json.dumps(body.get("tools") or []) + json.dumps(body[field])
        known = max((_common(context, each) for each in self._contexts), default=0) // 4
        self._contexts = [*self._contexts[1 - _REMEMBERED :], context]
        total = len(context) // 4
        self.read.append({"bytes": len(raw), "tokens": total, "prefilled": total - known})
        return total, known

    async def counts(self, request: web.Request) -> web.Response:
        """What was read since the last time."""
        read, self.read = self.read, []
        return web.json_response(read)


async def _stream(request: web.Request, events: Iterator[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b"".join(events))
    await answer.write_eof()
    return answer


def _common(one: str, other: str) -> int:
    """The length of the beginning that two texts have in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _calls(messages: list[dict[str, Any]], tools: list[str]) -> list[dict[str, Any]]:
    """The calls of an answer; empty if the plan of the last user message is fulfilled."""
    last = max(index for index, message in enumerate(messages) if message.get("role") == "user")
    found = _PLAN.search(json.dumps(messages[last]["content"]))
    assert found is not None, messages[last]
    name, steps, parallel = found[1], int(found[2]), int(found[3])
    done = sum(
        message.get("role") == "tool" or message.get("type") == "function_call_output"
        for message in messages[last:]
    )
    if done >= steps * parallel:
        return []
    # Servers put the name of the MCP server before that of the tool, or not.
    tool = next(tool for tool in tools if tool.endswith(name))
    return [
        {
            **{"index": index, "id": f"call_{next(_numbers)}", "type": "function"},
            "function": {"name": tool, "arguments": json.dumps({"number": done + index})},
        }
        for index in range(parallel)
    ]


def _completion(calls: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None if calls else "It is done."}
    choice = {
        **{"index": 0, "message": {**message, **({"tool_calls": calls} if calls else {})}},
        "finish_reason": "tool_calls" if calls else "stop",
    }
    return {**_head(), "object": "chat.completion", "choices": [choice], "usage": usage}


def _head() -> dict[str, Any]:
    return {"id": f"chatcmpl-{next(_numbers)}", "created": 0, "model": "instant"}


def _events(calls: list[dict[str, Any]], usage: dict[str, Any]) -> Iterator[bytes]:
    head = {**_head(), "object": "chat.completion.chunk"}

    def event(*choices: dict[str, Any], **fields: Any) -> bytes:
        return b"data: " + json.dumps({**head, "choices": choices, **fields}).encode() + b"\n\n"

    delta = {"role": "assistant", **({"tool_calls": calls} if calls else {"content": "It is done."})}
    yield event({"index": 0, "delta": delta, "finish_reason": None})
    yield event({"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"})
    yield event(usage=usage)
    yield b"data: [DONE]\n\n"


def _namespaces(body: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The functions of a request of Responses by name, with the namespace that a call of them says."""
    found: dict[str, dict[str, str]] = {}
    for tool in body.get("tools") or []:
        if tool["type"] == "function":
            found[tool["name"]] = {}
        elif tool["type"] == "namespace":
            found |= {each["name"]: {"namespace": tool["name"]} for each in tool["tools"]}
    return found


def _response(body: dict[str, Any], calls: list[dict[str, Any]], total: int, known: int) -> dict[str, Any]:
    text = {"type": "output_text", "text": "It is done.", "annotations": [], "logprobs": []}
    message = {"type": "message", "role": "assistant", "content": [text]}
    namespaces = _namespaces(body)
    made = [
        {
            **{"type": "function_call", "call_id": call["id"], **call["function"]},
            **namespaces[call["function"]["name"]],
        }
        for call in calls
    ]
    output = [{"id": f"item_{next(_numbers)}", "status": "completed", **each} for each in made or [message]]
    usage = {
        **{"input_tokens": total, "output_tokens": 8, "total_tokens": total + 8},
        "input_tokens_details": {"cached_tokens": known},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    echo = {name: body.get(name) for name in ("instructions", "previous_response_id", "metadata", "tools")}
    return {
        **{**echo, "metadata": {}, "tools": echo["tools"] or [], "tool_choice": "auto"},
        **{"id": f"resp_{next(_numbers)}", "object": "response", "created_at": 0, "status": "completed"},
        **{"error": None, "incomplete_details": None, "parallel_tool_calls": True, "temperature": 1.0},
        **{"top_p": 1.0, "model": "instant", "output": output, "usage": usage},
    }


def _response_events(response: dict[str, Any]) -> Iterator[bytes]:
    numbers = counting()

    def event(kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": f"response.{kind}", "sequence_number": next(numbers), **fields})
        return f"event: response.{kind}\ndata: {data}\n\n".encode()

    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            empty = {**item, "status": "in_progress", "arguments": ""}
            yield event("output_item.added", output_index=index, item=empty)
            yield event("function_call_arguments.delta", delta=item["arguments"], **at)
            yield event("function_call_arguments.done", arguments=item["arguments"], name=item["name"], **at)
        else:
            (part,) = item["content"]
            empty = {**item, "status": "in_progress", "content": []}
            yield event("output_item.added", output_index=index, item=empty)
            yield event("content_part.added", content_index=0, part={**part, "text": ""}, **at)
            yield event("output_text.delta", content_index=0, delta=part["text"], logprobs=[], **at)
            yield event("output_text.done", content_index=0, text=part["text"], logprobs=[], **at)
            yield event("content_part.done", content_index=0, part=part, **at)
        yield event("output_item.done", output_index=index, item=item)
    yield event("completed", response=response)


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "instant", "max_model_len": 10**6}]})


async def serve_model() -> None:
    model = Model()
    app = web.Application(client_max_size=2**30)
    app.router.add_post("/v1/chat/completions", model.chat)
    app.router.add_post("/v1/responses", model.respond)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", models)
    app.router.add_get("/counts", model.counts)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


class Counted:
    """An ASGI application in front of another, which counts the MCP methods of its requests."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._methods: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/counts":
            body = json.dumps(self._methods).encode()
            self._methods.clear()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return

        async def read() -> Any:
            message = await receive()
            if message["type"] == "http.request" and message.get("body"):
                self._methods[json.loads(message["body"]).get("method", "")] += 1
            return message

        await self._app(scope, read, send)


def serve_tools() -> None:
    import uvicorn
    from mcp.server import MCPServer

    server = MCPServer("tools", log_level="ERROR")
    text = Prose("hosted").tool_output(OUTPUT_BYTES)

    @server.tool()
    def lookup(number: int) -> str:
        """Look up an entry by its number."""
        return f"{number}: {text}"

    @server.tool()
    def glance(number: int) -> str:
        """Look up the beginning of an entry by its number."""
        return f"{number}: {text[:GLANCE_BYTES]}"

    @server.tool()
    async def wait(number: int) -> str:
        """Look up an entry that takes a second to find."""
        await asyncio.sleep(1)
        return f"{number}: found"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    app = Counted(server.streamable_http_app())
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("role", choices=("model", "tools"))
    if parser.parse_args().role == "model":
        asyncio.run(serve_model())
    else:
        serve_tools()
