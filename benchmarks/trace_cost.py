"""Measures what traces cost a server: the CPU time per turn with them and without.

Of three servers, one traces no turns, one a tenth of them and one all. They run the same loops of chained
turns, one server after the other, so that changes of the machine's speed affect all. The time of a loop
includes that of the thread which delivers its spans. The collector is this process.

    python benchmarks/trace_cost.py
"""

import argparse
import asyncio
import os
import statistics
import sys
from contextlib import AsyncExitStack

import aiohttp
from aiohttp import web
from common import Loop, Process, connected, keep, slipring, spread

ENGINE = "simulated:tokens_per_s=0,output_tokens={tokens}"
SHARES = {"off": 0.0, "a tenth": 0.1, "all": 1.0}
SETTLE_S = 2.5
"""Spans are delivered a second after the first of them, at the latest."""


async def collector(stack: AsyncExitStack) -> tuple[str, list[int]]:
    """Serve a collector; return its URL, and the sizes of the requests that it gets."""
    sizes: list[int] = []

    async def receive(request: web.Request) -> web.Response:
        sizes.append(len(await request.read()))
        return web.Response()

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/traces", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}", sizes


async def run_loop(loop: Loop, turns: int) -> None:
    after: dict[str, str] = {}
    for _ in range(turns):
        response, _ = await loop.turn(model="simulated", input="go on", store=False, **after)
        after = {"previous_response_id": response["id"]}


async def delivered(http: aiohttp.ClientSession, server: Process) -> int:
    async with http.get(f"{server.url.removesuffix('/v1')}/health") as answer:
        counts = (await answer.json())["traces"]
    assert counts is None or not counts["dropped"], counts
    return counts["delivered"] if counts is not None else 0


async def measure(tokens: int, turns: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """Return the CPU time per turn in µs, for each server and round, and the bytes of a turn's spans."""
    costs: dict[str, list[float]] = {name: [] for name in SHARES}
    async with AsyncExitStack() as stack:
        url, sizes = await collector(stack)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        servers: dict[str, tuple[Process, Loop]] = {}
        for name, share in SHARES.items():
            flags = ("--trace-endpoint", url, "--trace-sample", str(share)) if share else ()
            starting = slipring(ENGINE.format(tokens=tokens), "--log-level", "warning", *flags)
            process = await asyncio.to_thread(stack.enter_context, starting)
            servers[name] = process, await stack.enter_async_context(connected(process.url))
        for number in range(rounds + 1):
            for name, (server, loop) in servers.items():
                before = server.cpu_s()
                await run_loop(loop, turns)
                await asyncio.sleep(SETTLE_S)
                if number:  # the first round warms all up
                    costs[name].append((server.cpu_s() - before) / turns * 1e6)
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        traced = {name: await delivered(http, server) for name, (server, _) in servers.items()}
        assert traced["off"] == 0
        assert traced["all"] == (rounds + 1) * turns, traced
        return costs, sum(sizes) / sum(traced.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50, help="of each answer")
    parser.add_argument("--turns", type=int, default=300, help="of each loop")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    costs, span_bytes = asyncio.run(measure(arguments.tokens, arguments.turns, arguments.rounds))
    load = (load_before, os.getloadavg()[0])
    print(f"server CPU per turn with answers of {arguments.tokens} tokens, traces off and on")
    ratios = {}
    for name, values in costs.items():
        each = [one / off for one, off in zip(values, costs["off"], strict=True)]
        ratios[name] = spread(each)
        told = f"{statistics.median(each):.2f} × ({min(each):.2f} to {max(each):.2f})"
        print(f"  {name:<8} {statistics.median(values):5.0f} µs  {told}")
    print(
        f"  {span_bytes:,.0f} bytes for each traced turn; load of the machine {load[0]:.1f} to {load[1]:.1f}"
    )
    keep(
        "trace_cost",
        {
            "tokens": arguments.tokens,
            "turns": arguments.turns,
            "load": load,
            "bytes_per_traced_turn": span_bytes,
            "cpu_us_per_turn": costs,
            "ratios": ratios,
        },
    )


if __name__ == "__main__":
    main()
