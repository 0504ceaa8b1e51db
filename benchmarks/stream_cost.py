"""Measures the CPU time per streamed delta: slipring against a bare aiohttp socket that sends the same
frames.

Each is a separate server process; only the CPU time of that process between a create and its last frame
counts. The bare server gets the frames that slipring sent and sends them on the same schedule: 1,000 tokens/s
on one stream, the same on eight streams at once, and as fast as possible, one frame per iteration of the
event loop. No engine produces the last load; it shows the cost without any waiting. Rounds alternate, so that
changes of the machine's speed affect both.

The bare server sleeps before each frame of each stream. The simulated engine has one timer for all streams
whose tokens are due in the same millisecond, like an engine that decodes a batch, so with several streams the
ratio contains what that saves. A stream that is behind its schedule sends all frames that are due: slipring
with one write, the bare server with one write each.

The same slipring without its admin address, and so without metrics, runs in the same rounds: metrics are fed
once per turn, so the ratio of the two is 1 within their spread.

Then one stream of 4,000 tokens/s, and how late its deltas reach the client: a server that cannot keep up
falls further and further behind its schedule, and ends late. The schedule begins with the first delta that
arrives. The delay of the bare server is due to the machine.

    python benchmarks/stream_cost.py
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web
from common import Process, connected, keep, slipring, spread, started, verdict

BUDGET = 1.25
FASTEST = 4000
MOST_LAG_MS = 50
LOADS = {  # streams, tokens/s of each
    "1 stream of 1,000 tokens/s": (1, 1000),
    "8 streams of 1,000 tokens/s": (8, 1000),
    "1 stream, as fast as possible": (1, 0),
}


async def measure(tokens: int, rounds: int, streams: int, tokens_per_s: int) -> dict[str, list[float]]:
    """Return the CPU time per frame in µs, for each round and each server."""
    costs: dict[str, list[float]] = {"slipring": [], "no metrics": [], "bare": []}
    engine = f"simulated:tokens_per_s={tokens_per_s},output_tokens={tokens}"
    async with AsyncExitStack() as stack:
        ours = stack.enter_context(slipring(engine))
        blind = stack.enter_context(slipring(engine, "--admin", "off"))
        bare = stack.enter_context(started(__file__, "--bare", str(tokens_per_s)))
        loops = [await stack.enter_async_context(connected(ours.url)) for _ in range(streams)]
        blinds = [await stack.enter_async_context(connected(blind.url)) for _ in range(streams)]
        floors = [await stack.enter_async_context(connected(bare.url)) for _ in range(streams)]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        create = {"model": "simulated", "input": "go", "store": False}
        for number in range(rounds + 1):
            cost, frames = await _cpu_of(ours, [loop.turn(**create) for loop in loops])
            blind_cost, unseen = await _cpu_of(blind, [loop.turn(**create) for loop in blinds])
            assert len(unseen) == len(frames)
            await http.post(f"{bare.url}/frames", json=frames)
            bare_cost, echoed = await _cpu_of(bare, [floor.turn() for floor in floors])
            assert echoed == frames, "the bare server must send the same frames"
            if number:  # the first round warms both up
                costs["slipring"].append(cost / len(frames) / streams * 1e6)
                costs["no metrics"].append(blind_cost / len(frames) / streams * 1e6)
                costs["bare"].append(bare_cost / len(frames) / streams * 1e6)
    return costs


async def _cpu_of(server: Process, turns: list[Any]) -> tuple[float, list[str]]:
    """Return the CPU time of a server for concurrent turns, and the frames of the last one."""
    before = server.cpu_s()
    *_, (_, frames) = await asyncio.gather(*turns)
    return server.cpu_s() - before, frames


async def measure_lag(tokens: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the delay of the last delta of a fast stream, the longest delay, both in ms, and the load in
    cores: for each round and both servers."""
    lags: dict[str, dict[str, list[float]]] = {}
    create = json.dumps({"type": "response.create", "model": "simulated", "input": "go", "store": False})
    engine = f"simulated:tokens_per_s={FASTEST},output_tokens={tokens}"
    async with AsyncExitStack() as stack:
        ours = stack.enter_context(slipring(engine))
        bare = stack.enter_context(started(__file__, "--bare", str(FASTEST)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        servers = {}
        for name, server in (("slipring", ours), ("bare", bare)):
            ws = await stack.enter_async_context(http.ws_connect(f"{server.url}/responses", max_msg_size=0))
            servers[name] = (server, ws)
            lags[name] = {"last": [], "most": [], "cores": []}
        for number in range(rounds + 1):
            for name, (server, ws) in servers.items():
                cpu, frames, arrivals = server.cpu_s(), *(await _arrivals(ws, create))
                took = arrivals[-1] - arrivals[0]
                late = [(at - arrivals[0]) * 1e3 - index * 1e3 / FASTEST for index, at in enumerate(arrivals)]
                if name == "slipring":
                    await http.post(f"{bare.url}/frames", json=frames)
                if number:  # the first round warms both up
                    lags[name]["last"].append(late[-1])
                    lags[name]["most"].append(max(late))
                    lags[name]["cores"].append((server.cpu_s() - cpu) / took)
    return lags


async def _arrivals(ws: aiohttp.ClientWebSocketResponse, create: str) -> tuple[list[str], list[float]]:
    """Return the frames of a response, and the arrival times of its deltas."""
    await ws.send_str(create)
    frames: list[str] = []
    arrivals: list[float] = []
    while not frames or not frames[-1].startswith('{"type":"response.completed"'):
        frames.append(frame := await ws.receive_str())
        if frame.startswith('{"type":"response.output_text.delta"'):
            arrivals.append(time.perf_counter())
    return frames, arrivals


def show_lag(lags: dict[str, dict[str, list[float]]]) -> None:
    rounds = len(lags["slipring"]["last"])
    print(f"1 stream of {FASTEST:,} tokens/s: ms behind its schedule, median (range) of {rounds} rounds")
    for label, each in (("slipring", lags["slipring"]), ("bare aiohttp", lags["bare"])):
        last, most, cores = (spread(each[name]) for name in ("last", "most", "cores"))
        print(
            f"  {label:13} {last['median']:6.1f} at the end  ({last['low']:.1f} – {last['high']:.1f}),"
            f" {most['median']:.1f} at most, with {cores['median']:.0%} of a core"
        )
    kept = spread(lags["slipring"]["last"])["median"] <= MOST_LAG_MS
    print(f"  at the end    budget ≤ {MOST_LAG_MS} ms: {'met' if kept else 'FALLS SHORT'}")


def serve_bare(tokens_per_s: int) -> None:
    """Serve the baseline: a socket that sends prepared frames."""
    frames: list[str] = []

    async def take(request: web.Request) -> web.Response:
        frames[:] = await request.json()
        return web.Response()

    async def send(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(compress=False)
        await ws.prepare(request)
        clock = asyncio.get_running_loop().time
        async for _ in ws:
            due = clock()
            for frame in frames:
                if tokens_per_s:
                    due += 1 / tokens_per_s
                    if (wait := due - clock()) > 0:
                        await asyncio.sleep(wait)
                else:
                    await asyncio.sleep(0)
                await ws.send_str(frame)
        return ws

    async def run() -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/frames", take)
        app.router.add_get("/responses", send)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    import uvloop

    uvloop.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bare", type=int, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare is not None:
        serve_bare(arguments.bare)
        return
    figures = {}
    for name, (streams, rate) in LOADS.items():
        print(f"{name}: {arguments.rounds} rounds …", file=sys.stderr, flush=True)
        costs = asyncio.run(measure(arguments.tokens // streams, arguments.rounds, streams, rate))
        ours, blind, bare = (spread(costs[each]) for each in ("slipring", "no metrics", "bare"))
        pairs = zip(costs["slipring"], costs["no metrics"], strict=True)
        metrics = spread([with_them / without for with_them, without in pairs])
        ratio = ours["median"] / bare["median"]
        print(f"{name}: CPU per frame, median (range) of {arguments.rounds} rounds")
        for label, each in (("slipring", ours), ("no metrics", blind), ("bare aiohttp", bare)):
            print(f"  {label:13} {each['median']:6.1f} µs  ({each['low']:.1f} – {each['high']:.1f})")
        print(f"  ratio         {verdict(ratio, BUDGET)}")
        print(f"  with metrics  {metrics['median']:.2f} × ({metrics['low']:.2f} – {metrics['high']:.2f})")
        figures[name] = {"us_per_frame": costs, "ratio": ratio, "with_metrics": metrics["median"]}
    print(f"1 stream of {FASTEST:,} tokens/s: {arguments.rounds} rounds …", file=sys.stderr, flush=True)
    lags = asyncio.run(measure_lag(arguments.tokens, arguments.rounds))
    show_lag(lags)
    record = {"budget": BUDGET, "tokens": arguments.tokens, "loads": figures}
    keep("stream_cost", {**record, "lag": {"tokens_per_s": FASTEST, "budget_ms": MOST_LAG_MS, **lags}})


if __name__ == "__main__":
    main()
