"""Measures what inspecting a loop costs: slipring, LiteLLM and OGX, each with its own guardrail, in one run.

All ask the same moderations endpoint, which counts calls and bytes, takes a fixed time for each call, and
flags nothing. Each server runs twice, with and without its guardrail, in front of one upstream, and the loops
take turns. Every text of a loop has a mark, so that the endpoint can tell how often each was inspected.

    python benchmarks/peers/guardrails.py [--repeats 3] [--turns 25] [--check-ms 50] [--first-ms 60]

The figures are written to ``benchmarks/results/peers/guardrails.json``; ``benchmarks/page.py`` shows them.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from guardrails_table import RESULT, table
from servers import SERVERS, Server, upstream

from slipring.commands.bench.client.transports import SseParser
from slipring.commands.bench.subject import machine
from slipring.commands.bench.workloads.prose import INSTRUCTIONS, Prose
from slipring.commands.bench.workloads.tools import CODING_TOOLS

WORKLOADS = ("tools", "messages")
"""What the turns of a loop bring: outputs of tools that the model has called, or messages of a user."""
TRANSPORTS = ("http", "websocket")
TEXT_BYTES = 3_500
TOKENS_PER_S = 1_000.0
_DIGEST = re.compile(r"digest=[0-9a-f]{16}")
_NUMBERS = re.compile(r"\[[\s\d.,eE+-]+\]")
"""Matches a list of numbers in the results, to put it on one line."""
_TIMEOUT_S = 120.0


class Wrong(Exception):
    """A loop that did not run to its end. The message is one line."""


class Moderator:
    """A moderations endpoint that flags nothing, and keeps what it was asked."""

    def __init__(self, check_ms: float) -> None:
        self._check_s = check_ms / 1000
        self.asked: list[str] = []
        """The bodies of all calls since the last ``begin``."""
        self.url = ""

    def begin(self) -> None:
        self.asked = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.asked.append(body)
        given = json.loads(body)["input"]
        await asyncio.sleep(self._check_s)
        names = ("harassment", "hate", "illicit", "self-harm", "sexual", "violence")
        result = {
            "flagged": False,
            "categories": dict.fromkeys(names, False),
            "category_scores": dict.fromkeys(names, 0.0),
            "category_applied_input_types": {name: ["text"] for name in names},
        }
        results = [result] * (len(given) if isinstance(given, list) else 1)
        return web.json_response({"id": "modr_1", "model": "omni-moderation-latest", "results": results})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Moderator"]:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/moderations", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self
        finally:
            await runner.cleanup()


@dataclass
class Figures:
    """One loop."""

    turn_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    """To the first delta."""
    cpu_s: float = 0.0
    calls: int = 0
    bytes: int = 0
    inputs: list[int] = field(default_factory=list)
    """How many calls contained each text that the client has sent."""
    outputs: list[int] = field(default_factory=list)
    """The same for the model's answers, or the arguments of its calls."""


class Loop:
    """One conversation with a server, over one connection."""

    def __init__(self, server: Server, workload: str, name: str, guarded: bool) -> None:
        self._server = server
        self._is_calling = workload == "tools"
        self._name = name
        self._prose = Prose(name)
        # OGX inspects only what asks for it, and answers 400 to lists of parts in a request that does.
        self._has_parts = server.name != "ogx"
        self._fields: dict[str, Any] = {"guardrails": True} if guarded and server.name == "ogx" else {}
        self._marks: list[str] = []
        self._digests: list[str] = []
        self._history: list[dict[str, Any]] = []
        self.figures = Figures()

    async def run(self, transport: str, turns: int) -> None:
        headers = {"Authorization": f"Bearer {self._server.key}"}
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, timeout=timeout))
            ws = None
            if transport == "websocket":
                connecting = http.ws_connect(f"{self._server.url}/responses", max_msg_size=0)
                ws = await stack.enter_async_context(connecting)
            latest: dict[str, Any] = {}
            new = self._message(self._prose.task())
            for _ in range(turns):
                self._history.append(new)
                if ws is not None:
                    body = self._body([new], type="response.create", **latest)
                    await ws.send_str(body)
                    response = await self._read(_frames(ws))
                else:
                    body = self._body(self._history, stream=True)
                    response = await self._read(_events(http, f"{self._server.url}/responses", body))
                latest = {"previous_response_id": response["id"]}
                new = self._next(response)

    def count(self, asked: list[str], cpu_s: float) -> None:
        """Add what the moderator was asked meanwhile."""
        figures = self.figures
        figures.cpu_s = cpu_s
        figures.calls = len(asked)
        figures.bytes = sum(len(body.encode()) for body in asked)
        sent = self._marks[: len(self._digests)]  # what would follow the last answer is not sent
        figures.inputs = [sum(mark in body for body in asked) for mark in sent]
        figures.outputs = [sum(digest in body for body in asked) for digest in self._digests]

    def _body(self, items: list[dict[str, Any]], **fields: Any) -> str:
        tools = {"tools": CODING_TOOLS} if self._is_calling else {}
        body = {"model": self._server.model, "instructions": INSTRUCTIONS, "input": items, "store": False}
        return json.dumps({**body, **tools, **self._fields, **fields})

    def _marked(self, text: str) -> str:
        self._marks.append(f"mark {self._name} {len(self._marks)} end")
        return f"{self._marks[-1]}\n{text}"

    def _message(self, text: str) -> dict[str, Any]:
        text = self._marked(text)
        content = [{"type": "input_text", "text": text}] if self._has_parts else text
        return {"type": "message", "role": "user", "content": content}

    def _next(self, response: dict[str, Any]) -> dict[str, Any]:
        """Read an answer; return what follows it."""
        text = self._prose.tool_output(TEXT_BYTES)
        if not self._is_calling:
            (message,) = [item for item in response["output"] if item["type"] == "message"]
            said = "".join(part["text"] for part in message["content"])
            self._digests.append(_mark_of(said))
            content = message["content"] if self._has_parts else said
            self._history.append({"type": "message", "role": "assistant", "content": content})
            return self._message(text)
        (call,) = [item for item in response["output"] if item["type"] == "function_call"]
        self._digests.append(_mark_of(call["arguments"]))
        self._history.append({key: call[key] for key in ("type", "call_id", "name", "arguments")})
        output = self._marked(text)
        return {"type": "function_call_output", "call_id": call["call_id"], "output": output}

    async def _read(self, events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        begun, first = time.perf_counter(), 0.0
        async for event in events:
            kind = event["type"]
            if not first and kind.endswith(".delta"):
                first = time.perf_counter()
            if kind == "response.completed":
                ended = time.perf_counter()
                self.figures.turn_ms.append((ended - begun) * 1e3)
                self.figures.first_ms.append(((first or ended) - begun) * 1e3)
                response: dict[str, Any] = event["response"]
                return response
            if kind in ("response.failed", "response.incomplete", "error"):
                raise Wrong(json.dumps(event)[:300])
        raise Wrong("the answer has no end")


def _mark_of(text: str) -> str:
    found = _DIGEST.search(text)
    if found is None:
        raise Wrong(f"not an answer of the upstream: {text[:80]!r}")
    return found[0]


async def _events(http: aiohttp.ClientSession, url: str, body: str) -> AsyncIterator[dict[str, Any]]:
    async with http.post(url, data=body.encode(), headers={"Content-Type": "application/json"}) as answer:
        if answer.status != 200:
            raise Wrong(f"HTTP {answer.status}: {(await answer.text())[:300]}")
        parser = SseParser()
        async for chunk in answer.content.iter_any():
            for data in parser.feed(chunk):
                yield json.loads(data)


async def _frames(ws: aiohttp.ClientWebSocketResponse) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield json.loads(await ws.receive_str())


def cpu_s(pid: int) -> float:
    spent = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        spent += int(path.read_text().split()[0])
    return spent / 1e9


async def one_loop(
    server: Server, workload: str, transport: str, turns: int, moderator: Moderator, guarded: bool
) -> Figures:
    loop = Loop(server, workload, f"{time.monotonic_ns():x}", guarded)
    moderator.begin()
    before = cpu_s(server.pid)
    try:
        await loop.run(transport, turns)
    except (aiohttp.ClientError, TimeoutError, TypeError, LookupError, ValueError) as error:
        raise Wrong(f"{type(error).__name__}: {error}"[:300]) from error
    loop.count(moderator.asked, cpu_s(server.pid) - before)
    return loop.figures


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    loops: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    versions: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        moderator = await stack.enter_async_context(Moderator(given.check_ms).serving())
        url = await asyncio.to_thread(stack.enter_context, upstream(TOKENS_PER_S, given.first_ms))
        servers: dict[str, tuple[Server, Server]] = {}
        for name in given.only:
            pair = [
                await asyncio.to_thread(stack.enter_context, SERVERS[name](url, moderations=moderations))
                for moderations in ("", moderator.url)
            ]
            servers[name] = (pair[0], pair[1])
            versions |= pair[0].versions
        for repeat in range(given.repeats + 1):
            for name, (plain, checked) in servers.items():
                for workload in given.workload:
                    for transport in TRANSPORTS:
                        key = f"{name} {workload} {transport}"
                        if key in wrong:
                            continue
                        try:
                            pair_of = [
                                await one_loop(server, workload, transport, given.turns, moderator, guarded)
                                for server, guarded in ((plain, False), (checked, True))
                            ]
                        except Wrong as error:
                            wrong[key] = str(error)
                            loops.pop(key, None)
                            print(f"{key}: {error}", file=sys.stderr, flush=True)
                            continue
                        if repeat:  # the first one warms all up
                            kept = loops.setdefault(key, {"plain": [], "checked": []})
                            for way, figures in zip(("plain", "checked"), pair_of, strict=True):
                                kept[way].append(asdict(figures))
            print(f"{repeat} of {given.repeats}", file=sys.stderr, flush=True)
    return {"versions": {**machine.versions(), **versions}, "loops": loops, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--check-ms", type=float, default=50.0, help="time of a call of the endpoint")
    parser.add_argument("--first-ms", type=float, default=60.0, help="the upstream's time to the first token")
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--only", choices=SERVERS, nargs="+", default=list(SERVERS))
    given = parser.parse_args()
    load = [os.getloadavg()[0]]
    found = asyncio.run(measure(given))
    record = {
        "benchmark": "guardrails",
        "when": machine.now(),
        "machine": msgspec.to_builtins(machine.machine()),
        **{name: getattr(given, name) for name in ("turns", "repeats", "check_ms", "first_ms")},
        "text_bytes": TEXT_BYTES,
        "tokens_per_s": TOKENS_PER_S,
        "load": [*load, os.getloadavg()[0]],
        **found,
    }
    print(table(record))
    RESULT.write_text(
        _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(record, indent=1)) + "\n"
    )
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
