"""Measures the server's own CPU time and the time that it adds: per turn and per delta, by mode and engine.

The workload is a coding agent's: 4 kB of instructions, ten tools, tool outputs of 3.5 kB, answers that are a
tool call in sixty pieces. The upstream is `instant_upstream.py`, which answers at once; a wrong digest of the
history aborts the run. Every mode runs one loop against each server, and the servers take turns, turn by
turn, so that other load on the machine affects all of them alike:

- `slipring`: this source tree. More trees can be compared in the same run (`--tree before=…/src`).
- `relay`: a bare aiohttp server that passes bytes between the client and a Responses upstream without reading
  them. It keeps nothing, so it serves full history over HTTP and the upstream's own WebSocket only.

Reported, as medians over the turns with the range of the rounds' medians: the CPU time of the server's
process, the time until the answer begins and ends minus that of the same turn directly at the upstream (for
engines whose API the client speaks), and, in front of an upstream that tells 500 tokens/s, the CPU time per
delta. Last, the memory of a server that has just started.

    python benchmarks/plumbing.py [--tree before=../main/src] [--rounds 7] [--engines chat responses]
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web
from common import Process, keep, started
from engine_overhead import TOOL, output_text, write_tokenizer
from instant_upstream import digest

from slipring.bench.client.exchange import FIRST_TOKENS, Exchange
from slipring.bench.client.transports import Access, Transport
from slipring.bench.measure.modes import MODES, Context
from slipring.bench.workloads.prose import INSTRUCTIONS
from slipring.bench.workloads.tools import CODING_TOOLS

TURNS = 25
PACE = 500
"""Tokens per second of the paced upstream."""
PACED_TOKENS = 400
ENGINES = {
    "chat": "chat:{url}/v1",
    "responses": "responses:{url}/v1,transport=sse",
    "responses-ws": "responses:{url}/v1,transport=websocket",
    "vllm": "vllm:{url},tokenizer={tokenizer},dialect=chatml",
    "sglang": "sglang:{url},tokenizer={tokenizer},dialect=chatml",
}
RELAYED = {("responses", "http-full"), ("responses-ws", "websocket")}
MODE_NAMES = ("websocket", "http-full", "http-chained")
HEAD = {"model": "instant", "instructions": INSTRUCTIONS, "tools": [TOOL, *CODING_TOOLS]}
ASK = {"role": "user", "content": "Mend the failing test."}
TREE = Path(__file__).parents[1] / "src"


@dataclass
class Figures:
    """What was measured of one server in one mode: one list per round."""

    cpu_ms: list[list[float]] = field(default_factory=list)
    added_ms: list[list[float]] = field(default_factory=list)
    first_ms: list[list[float]] = field(default_factory=list)
    cpu_us_per_delta: list[list[float]] = field(default_factory=list)

    def summary(self) -> dict[str, dict[str, float]]:
        return {name: _spread(rounds) for name, rounds in vars(self).items() if rounds}


def _spread(rounds: list[list[float]]) -> dict[str, float]:
    medians = [statistics.median(values) for values in rounds]
    every = [value for values in rounds for value in values]
    return {
        "median": round(statistics.median(every), 3),
        "low": round(min(medians), 3),
        "high": round(max(medians), 3),
    }


class Agent:
    """A client in the middle of its loop, at one server."""

    def __init__(self, transport: Transport, context: Context) -> None:
        self._transport = transport
        self._context = context
        self._outputs: list[str] = []
        self._call_id = ""

    async def turn(self) -> Exchange:
        """Send the next tool output, or the first question; check the answer for lost history."""
        new: list[dict[str, Any]] = [ASK]
        if self._call_id:
            self._outputs.append(output_text(len(self._outputs)))
            new = [
                {
                    "type": "function_call_output",
                    "call_id": self._call_id,
                    "output": self._outputs[-1],
                }
            ]
        exchange = await self._transport.turn(self._context.request(HEAD, new))
        (call,) = exchange.answer
        if f"outputs={digest(self._outputs)}" not in call["arguments"]:
            raise RuntimeError("the engine did not see the whole history")
        self._call_id = call["call_id"]
        self._context.learn(exchange)
        return exchange


@asynccontextmanager
async def agent(url: str, mode: str) -> AsyncIterator[Agent]:
    access = Access(url.removesuffix("/v1") + "/v1", "", timeout_s=60, asks_timing=False)
    async with MODES[mode].open(access) as transport:
        yield Agent(transport, MODES[mode].context())


async def loops(servers: dict[str, Process], direct: str | None, mode: str) -> dict[str, Figures]:
    """Run a loop at every server, turn by turn in alternation."""
    figures = {name: Figures([[]], [[]], [[]]) for name in servers}
    names = list(servers)
    async with _agents({name: server.url for name, server in servers.items()}, mode) as agents:
        async with _agents({"direct": direct} if direct else {}, mode) as directly:
            for turn in range(TURNS):
                own = [await each.turn() for each in directly.values()]
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    before = servers[name].cpu_s()
                    exchange = await agents[name].turn()
                    # A turn ends with its last event; what the server does after that belongs to it.
                    await asyncio.sleep(0.002)
                    spent_ms = (servers[name].cpu_s() - before) * 1e3
                    if turn < 2:
                        continue
                    figures[name].cpu_ms[0].append(spent_ms)
                    figures[name].first_ms[0].append(exchange.first_ms(*FIRST_TOKENS) or 0.0)
                    wall_ns = exchange.total_ns - sum(each.total_ns for each in own)
                    figures[name].added_ms[0].append(wall_ns / 1e6)
    return figures


async def paced(servers: dict[str, Process], mode: str) -> dict[str, Figures]:
    """Run two turns at every server in front of the paced upstream; the second counts."""
    figures = {name: Figures(cpu_us_per_delta=[[]]) for name in servers}
    async with _agents({name: server.url for name, server in servers.items()}, mode) as agents:
        for turn in range(2):
            for name, server in servers.items():
                before = server.cpu_s()
                exchange = await agents[name].turn()
                spent_us = (server.cpu_s() - before) * 1e6
                deltas = sum(event["type"] in FIRST_TOKENS for event in exchange.events)
                if turn:
                    figures[name].cpu_us_per_delta[0].append(spent_us / deltas)
    return figures


@asynccontextmanager
async def _agents(urls: dict[str, str], mode: str) -> AsyncIterator[dict[str, Agent]]:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(agent(url, mode)) for name, url in urls.items()}


@contextmanager
def tree(source: Path, engine: str, directory: str) -> Iterator[Process]:
    """Serve with the slipring of a source tree."""
    with tempfile.TemporaryDirectory(dir=directory) as own:
        command = ("-m", "slipring", "serve", "--port", "0", "--log-level", "error")
        outer = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(source)
        try:
            running = started(*command, "--store", f"sqlite:{own}/store.db", "--engine", engine)
            process = running.__enter__()
        finally:
            if outer is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = outer
        try:
            yield process
        finally:
            running.__exit__(None, None, None)


def serve_relay(upstream: str) -> None:
    """Serve the baseline: pass bytes between client and upstream, unread."""

    async def post(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with http.post(f"{upstream}/v1/responses", data=body, headers=headers) as theirs:
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            async for chunk in theirs.content.iter_any():
                await answer.write(chunk)
            await answer.write_eof()
        return answer

    async def socket(request: web.Request) -> web.WebSocketResponse:
        ours = web.WebSocketResponse(max_msg_size=0, compress=False)
        await ours.prepare(request)
        async with http.ws_connect(f"{upstream}/v1/responses", max_msg_size=0) as theirs:

            async def back() -> None:
                async for message in theirs:
                    await ours.send_str(message.data)

            task = asyncio.create_task(back())
            async for message in ours:
                if message.type is WSMsgType.TEXT:
                    await theirs.send_str(message.data)
            task.cancel()
        return ours

    async def run() -> None:
        nonlocal http
        http = aiohttp.ClientSession()
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/responses", post)
        app.router.add_get("/v1/responses", socket)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    http: aiohttp.ClientSession = None  # type: ignore[assignment]
    import uvloop

    uvloop.run(run())


def measure(given: argparse.Namespace, trees: dict[str, Path]) -> dict[str, Any]:
    upstream_file = str(Path(__file__).with_name("instant_upstream.py"))
    found: dict[str, dict[str, Figures]] = defaultdict(lambda: defaultdict(Figures))
    memory: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        tokenizer = write_tokenizer(Path(directory))
        instant = stack.enter_context(started(upstream_file))
        pacing = ("--tokens-per-s", str(PACE), "--tokens", str(PACED_TOKENS))
        slow = stack.enter_context(started(upstream_file, *pacing))
        relays = {each: stack.enter_context(started(__file__, "--relay", each.url)) for each in (instant, slow)}
        for engine in given.engines:
            with ExitStack() as running:
                servers: dict[Process, dict[str, Process]] = {}
                for upstream in (instant, slow):
                    spec = ENGINES[engine].format(url=upstream.url, tokenizer=tokenizer)
                    servers[upstream] = {
                        name: running.enter_context(tree(path, spec, directory))
                        for name, path in trees.items()
                    }
                for name, server in servers[instant].items():
                    memory[f"{engine} {name}"].append(server.resident_bytes() / 1e6)
                for number in range(given.rounds):
                    for mode in given.modes:
                        print(f"{engine}, {mode}, round {number + 1} …", file=sys.stderr, flush=True)
                        relayed = (engine, mode) in RELAYED
                        direct = instant.url if relayed else None
                        _run(found, f"{engine} {mode}", servers[instant], relays[instant] if relayed else None,
                             lambda each, mode=mode, direct=direct: loops(each, direct, mode))  # type: ignore[misc]
                        if not given.no_pace:
                            _run(found, f"{engine} {mode}", servers[slow], relays[slow] if relayed else None,
                                 lambda each, mode=mode: paced(each, mode))  # type: ignore[misc]
    summaries = {
        name: {server: figures.summary() for server, figures in each.items()} for name, each in found.items()
    }
    return {"modes": summaries, "memory_mb": memory}


def _run(
    found: dict[str, dict[str, Figures]],
    what: str,
    servers: dict[str, Process],
    relay: Process | None,
    run: Callable[[dict[str, Process]], Any],
) -> None:
    every = {**servers, "relay": relay} if relay is not None else servers
    for name, figures in asyncio.run(run(every)).items():
        for kind, rounds in vars(figures).items():
            getattr(found[what][name], kind).extend(rounds)


def show(results: dict[str, Any]) -> None:
    print(f"{'':28} {'server':10} {'CPU ms/turn':>22} {'ms/turn (added)':>22} {'first ms':>20} {'CPU µs/delta':>20}")
    for what, servers in results["modes"].items():
        for name, figures in servers.items():
            cells = [
                f"{each['median']:.2f} ({each['low']:.2f}–{each['high']:.2f})" if (each := figures.get(kind)) else ""
                for kind in ("cpu_ms", "added_ms", "first_ms", "cpu_us_per_delta")
            ]
            print(f"{what:28} {name:10} {cells[0]:>22} {cells[1]:>22} {cells[2]:>20} {cells[3]:>20}")
    for name, values in results["memory_mb"].items():
        print(f"memory at start: {name}: {statistics.median(values):.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--modes", nargs="+", choices=MODE_NAMES, default=list(MODE_NAMES))
    parser.add_argument("--tree", action="append", default=[], help="NAME=DIRECTORY of another src to compare")
    parser.add_argument("--no-pace", action="store_true", help="without the paced upstream")
    parser.add_argument("--relay", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.relay is not None:
        serve_relay(given.relay)
        return
    others = {name: Path(path).resolve() for name, _, path in (each.partition("=") for each in given.tree)}
    results = measure(given, {**others, "slipring": TREE})
    show(results)
    if set(given.engines) == set(ENGINES):
        keep("plumbing", {"turns": TURNS, "tokens_per_s": PACE, **results})


if __name__ == "__main__":
    main()
