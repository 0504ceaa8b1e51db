"""Measures the server's own CPU time and the time that it adds: per turn and per delta, by engine and mode.

The workload is a coding agent's: 4 kB of instructions, eleven tools, tool outputs of 3.5 kB, answers that are
a tool call in sixty pieces. The upstream is `instant_upstream.py`; a wrong digest of the history aborts the
run. Every mode runs one loop at each server, and the servers take turns, turn by turn, so that other load on
the machine affects all of them alike:

- `slipring`: this source tree. More trees can be compared in the same run (`--tree before=…/src`).
- `relay`: a bare aiohttp server that passes what it gets between the client and a Responses upstream, unread.
  It keeps nothing, so it serves full history over HTTP and the upstream's own WebSocket only.

Reported, as medians over the turns, with the range of the rounds' medians: the CPU time of the server's
process per turn; the time of a turn, minus that of the same turn directly at the upstream where there is a
relay; the time until the first delta; and the CPU time per delta, before an upstream that tells one delta at
a time. It waits until the client has the last one, so that a busy machine does not merge them (with
`--paced`, it tells 500 per second instead). Last, the memory of a server that has just started.

    python benchmarks/plumbing.py [--tree before=../main/src] [--rounds 7] [--engines chat responses]
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import instant_upstream
from aiohttp import WSMsgType, web
from common import Process, keep, started
from engine_overhead import TOOL, output_text, write_tokenizer

from slipring.commands.bench.client.exchange import FIRST_TOKENS, Event, TurnExchange
from slipring.commands.bench.client.transports import Access, Transport
from slipring.commands.bench.client.turn_requests import Context
from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.workloads.prose import INSTRUCTIONS
from slipring.commands.bench.workloads.tools import CODING_TOOLS

TURNS = 25
WARMUP_TURNS = 2
STEPPED_TOKENS = 200
PACE = 500
ENGINES = {
    "chat": "chat:{url}/v1",
    "responses": "responses:{url}/v1,transport=sse",
    "responses-ws": "responses:{url}/v1,transport=websocket",
    "vllm": "vllm:{url},tokenizer={tokenizer}",
    "sglang": "sglang:{url},tokenizer={tokenizer}",
}
MODE_NAMES = ("websocket", "http-full", "http-chained")
RELAYED = {("responses", "http-full"), ("responses-ws", "websocket")}
KINDS = {"cpu_ms": "CPU ms/turn", "turn_ms": "ms/turn", "first_ms": "first ms", "delta_us": "CPU µs/delta"}
HEAD = {"model": "instant", "instructions": INSTRUCTIONS, "tools": [TOOL, *CODING_TOOLS]}
ASK = {"role": "user", "content": "Mend the failing test."}
TREE = Path(__file__).parents[1] / "src"
UPSTREAM = str(Path(__file__).with_name("instant_upstream.py"))

Figures = dict[str, dict[str, list[float]]]
"""The values of one loop: by server, then by kind."""


class Steps:
    """Makes the upstream wait with each event until the client has received the one before."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()

    async def wait(self) -> None:
        # Some events cause none at the client; nothing is to be waited for then.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), 0.02)
        self._arrived.clear()

    def exchange(self) -> TurnExchange:
        """An exchange that reports its events."""
        arrived = self._arrived

        class Reporting(TurnExchange):
            def record(self, event: Event, at_ns: int) -> Event:
                arrived.set()
                return super().record(event, at_ns)

        return Reporting()


class Agent:
    """A client in the middle of its loop, at one server."""

    def __init__(self, transport: Transport, context: Context) -> None:
        self._transport = transport
        self._context = context
        self._outputs: list[str] = []
        self._call_id = ""

    async def turn(self, exchange: TurnExchange | None = None) -> TurnExchange:
        """Send the next tool output, or the first question; check the answer for lost history."""
        new: dict[str, Any] = ASK
        if self._call_id:
            self._outputs.append(output_text(len(self._outputs)))
            new = {"type": "function_call_output", "call_id": self._call_id, "output": self._outputs[-1]}
        request = self._context.request(HEAD, [new])
        exchange = await self._transport.turn(request, exchange=exchange or TurnExchange())
        (call,) = exchange.answer
        if f"outputs={instant_upstream.digest(self._outputs)}" not in call["arguments"]:
            raise RuntimeError("the engine did not see the whole history")
        self._call_id = call["call_id"]
        self._context.learn(exchange)
        return exchange


@asynccontextmanager
async def agents(
    urls: Mapping[str, str], mode: str, short: Collection[str] = ()
) -> AsyncIterator[dict[str, Agent]]:
    """A client of each server. ``short``: those that ask for short first events."""
    async with AsyncExitStack() as stack:
        found = {}
        for name, url in urls.items():
            access = Access(
                url.removesuffix("/v1") + "/v1",
                "",
                timeout_s=60,
                asks_timing=False,
                short_events=name in short,
            )
            transport = await stack.enter_async_context(MODES[mode].open(access))
            found[name] = Agent(transport, MODES[mode].context())
        yield found


async def loops(
    servers: Mapping[str, Process],
    direct: str | None,
    mode: str,
    direct_mode: str = "",
    short: Collection[str] = (),
) -> Figures:
    """Run a loop at every server, turn by turn in alternation. ``direct``: the upstream's URL, if clients can
    use it, in ``direct_mode`` or else in the same mode. ``short``: as for ``agents``."""
    figures: Figures = {name: {kind: [] for kind in ("cpu_ms", "turn_ms", "first_ms")} for name in servers}
    urls = {name: server.url for name, server in servers.items()}
    async with (
        agents(urls, mode, short) as through,
        agents({"": direct} if direct else {}, direct_mode or mode) as directly,
    ):
        names = list(servers)
        for turn in range(TURNS):
            apart_ns = sum([(await each.turn()).total_ns for each in directly.values()])
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                before = servers[name].cpu_s()
                exchange = await through[name].turn()
                await asyncio.sleep(0.002)  # what the server does after its last event belongs to the turn
                spent_ms = (servers[name].cpu_s() - before) * 1e3
                if turn < WARMUP_TURNS:
                    continue
                figures[name]["cpu_ms"].append(spent_ms)
                figures[name]["turn_ms"].append((exchange.total_ns - apart_ns) / 1e6)
                figures[name]["first_ms"].append(exchange.first_ms(*FIRST_TOKENS) or 0.0)
    return figures


async def streams(
    servers: Mapping[str, Process], mode: str, tokens: int, steps: Steps | None = None
) -> Figures:
    """Run three turns at every server in front of an upstream that tells so many tokens one at a time; the
    first turn does not count."""
    figures: Figures = {name: {"delta_us": []} for name in servers}
    async with agents({name: server.url for name, server in servers.items()}, mode) as clients:
        for turn in range(3):
            for name, server in servers.items():
                before = server.cpu_s()
                await clients[name].turn(steps.exchange() if steps else None)
                spent_us = (server.cpu_s() - before) * 1e6
                if turn:
                    figures[name]["delta_us"].append(spent_us / tokens)
    return figures


@contextmanager
def tree(source: Path, engine: str, directory: str, *flags: str) -> Iterator[Process]:
    """Serve with the slipring of a source tree, from compiled files as an installed package."""
    compiled = {"PYTHONPYCACHEPREFIX": f"{directory}/compiled", "PYTHONDONTWRITEBYTECODE": ""}
    env = {**os.environ, **compiled, "PYTHONPATH": str(source)}
    with tempfile.TemporaryDirectory(dir=directory) as own:
        command = ("-m", "slipring", "serve", "--port", "0", "--log-level", "error")
        store = ("--store", f"sqlite:{own}/store.db")
        with started(*command, *store, "--engine", engine, *flags, env=env) as process:
            yield process


def serve_relay(upstream: str) -> None:
    """Serve the baseline: pass on what comes from client and upstream, unread."""
    import uvloop

    connector: aiohttp.TCPConnector | None = None

    async def post(request: web.Request) -> web.StreamResponse:
        body, headers = await request.read(), {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(connector=connector, connector_owner=False) as http,
            http.post(f"{upstream}/v1/responses", data=body, headers=headers) as theirs,
        ):
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            async for chunk in theirs.content.iter_any():
                await answer.write(chunk)
            await answer.write_eof()
        return answer

    async def socket(request: web.Request) -> web.WebSocketResponse:
        ours = web.WebSocketResponse(max_msg_size=0, compress=False)
        await ours.prepare(request)
        async with (
            aiohttp.ClientSession(connector=connector, connector_owner=False) as http,
            http.ws_connect(f"{upstream}/v1/responses", max_msg_size=0) as theirs,
            asyncio.TaskGroup() as tasks,
        ):

            async def back() -> None:
                async for message in theirs:
                    await ours.send_str(message.data)

            task = tasks.create_task(back())
            async for message in ours:
                if message.type is WSMsgType.TEXT:
                    await theirs.send_str(message.data)
            task.cancel()
        return ours

    async def run() -> None:
        nonlocal connector
        connector = aiohttp.TCPConnector(limit=0)
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/responses", post)
        app.router.add_get("/v1/responses", socket)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    uvloop.run(run())


async def measure(given: argparse.Namespace, trees: Mapping[str, Path]) -> dict[str, Any]:
    rounds: dict[str, dict[str, dict[str, list[list[float]]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    memory: dict[str, float] = {}
    steps = Steps()
    instant_upstream.Settings.tokens = STEPPED_TOKENS
    instant_upstream.Settings.before_each = partial(asyncio.sleep, 1 / PACE) if given.paced else steps.wait
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        tokenizer = write_tokenizer(Path(directory))
        instant = stack.enter_context(started(UPSTREAM)).url
        stepped = await instant_upstream.serve()

        async def serving(url: str, engine: str, running: ExitStack) -> dict[str, Process]:
            spec = ENGINES[engine].format(url=url, tokenizer=tokenizer)
            servers = {}
            for name, path in trees.items():
                # In a thread: a server that starts asks its upstream, which may be in this process.
                servers[name] = await asyncio.to_thread(
                    running.enter_context, tree(path, spec, f"{directory}")
                )
            if any(each == engine for each, _ in RELAYED):
                servers["relay"] = running.enter_context(started(__file__, "--relay", url))
            return servers

        for engine in given.engines:
            with ExitStack() as running:
                fast = await serving(instant, engine, running)
                slow = await serving(stepped, engine, running)
                memory |= {f"{engine}, {name}": fast[name].resident_bytes() / 1e6 for name in trees}
                for number in range(given.rounds):
                    for mode in given.modes:
                        print(f"{engine}, {mode}, round {number + 1} …", file=sys.stderr, flush=True)
                        relayed = (engine, mode) in RELAYED
                        chosen = [name for name in fast if name != "relay" or relayed]
                        direct = instant if relayed else None
                        for found in (
                            await loops({name: fast[name] for name in chosen}, direct, mode),
                            await streams({name: slow[name] for name in chosen}, mode, STEPPED_TOKENS, steps),
                        ):
                            for name, kinds in found.items():
                                for kind, values in kinds.items():
                                    rounds[f"{engine}, {mode}"][name][kind].append(values)
    modes = {
        what: {name: {kind: _spread(each) for kind, each in kinds.items()} for name, kinds in servers.items()}
        for what, servers in rounds.items()
    }
    return {"modes": modes, "start_mb": memory}


def _spread(rounds: list[list[float]]) -> dict[str, float]:
    medians = [statistics.median(values) for values in rounds]
    middle = statistics.median([value for values in rounds for value in values])
    return {"median": round(middle, 3), "low": round(min(medians), 3), "high": round(max(medians), 3)}


def show(results: Mapping[str, Any]) -> None:
    print(f"{'':26} {'':10}" + "".join(f"{title:>24}" for title in KINDS.values()))
    for what, servers in results["modes"].items():
        for name, kinds in servers.items():
            cells = (
                f"{each['median']:.2f} ({each['low']:.2f} – {each['high']:.2f})"
                for each in (kinds[kind] for kind in KINDS)
            )
            print(f"{what:26} {name:10}" + "".join(f"{cell:>24}" for cell in cells))
    for name, megabytes in results["start_mb"].items():
        print(f"memory at start, in front of {name}: {megabytes:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--modes", nargs="+", choices=MODE_NAMES, default=list(MODE_NAMES))
    parser.add_argument("--tree", action="append", default=[], help="NAME=DIRECTORY: another src to compare")
    parser.add_argument("--paced", action="store_true", help=f"tell {PACE} deltas per second")
    parser.add_argument("--relay", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.relay is not None:
        serve_relay(given.relay)
        return
    others = {name: Path(path).resolve() for name, _, path in (each.partition("=") for each in given.tree)}
    results = asyncio.run(measure(given, {**others, "slipring": TREE}))
    show(results)
    if set(given.engines) == set(ENGINES) and set(given.modes) == set(MODE_NAMES):
        keep("plumbing", {"turns": TURNS, "paced": given.paced, **results})


if __name__ == "__main__":
    main()
