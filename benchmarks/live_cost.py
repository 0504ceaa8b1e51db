"""Measures what it costs a server that somebody watches its live page.

A server with 1,000 connections, of which some run one turn after another, each with an answer of two seconds.
Its CPU time is measured in periods without a watcher and with one, which alternate, so that changes of the
machine's speed affect both. The difference, as a share of one core, is the cost of the live stream.

    python benchmarks/live_cost.py
"""

import argparse
import asyncio
import socket
import statistics
import sys
import time
from contextlib import AsyncExitStack

import aiohttp
from common import Loop, Process, keep, slipring
from idle_connections import open_sockets

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.subject.machine import raise_file_limit

BUDGET = 0.02
ENGINE = "simulated:tokens_per_s=20,output_tokens=40"


async def run_turns(ws: aiohttp.ClientWebSocketResponse) -> None:
    loop = Loop(ws)
    while True:
        await loop.turn(model="simulated", input="go", store=False)


async def watch(http: aiohttp.ClientSession, url: str, received: list[int]) -> None:
    """Read the live stream until cancelled, and count its bytes."""
    async with http.get(f"{url}/live") as answer:
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            received[0] += len(chunk)


async def measure(
    server: Process, admin: str, connections: int, active: int, periods: int, seconds: float
) -> dict[str, list[float]]:
    """Return, for each period, the load of the server in cores with and without a watcher, and the bytes per
    second of the stream."""
    figures: dict[str, list[float]] = {"unwatched": [], "watched": [], "bytes_per_s": []}
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        sockets = await open_sockets(http, server.url, connections)
        turns = [asyncio.create_task(run_turns(ws)) for ws in sockets[:active]]
        await asyncio.sleep(seconds)  # until the turns of different connections are spread over time
        for number in range(2 * periods):
            received = [0]
            is_watched = bool(number % 2)
            watcher = asyncio.create_task(watch(http, admin, received)) if is_watched else None
            await asyncio.sleep(1)  # the complete update at the beginning does not count
            before, bytes_before, began = server.cpu_s(), received[0], time.monotonic()
            await asyncio.sleep(seconds)
            took = time.monotonic() - began
            figures["watched" if is_watched else "unwatched"].append((server.cpu_s() - before) / took)
            if watcher is not None:
                figures["bytes_per_s"].append((received[0] - bytes_before) / took)
                watcher.cancel()
                await asyncio.wait([watcher])
            print(f"period {number + 1} of {2 * periods}", file=sys.stderr, flush=True)
        for turn in turns:
            turn.cancel()
        await asyncio.wait(turns)
        for ws in sockets:
            await ws.close()
    return figures


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port: int = reserved.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--active", type=int, default=50, help="connections that run turns")
    parser.add_argument("--periods", type=int, default=5, help="of each kind")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a period")
    arguments = parser.parse_args()
    try:
        raise_file_limit(arguments.connections + 100)  # for the server as well
    except UsageError as error:
        parser.error(str(error))
    address = f"127.0.0.1:{free_port()}"
    with slipring(ENGINE, "--admin", address, "--log-level", "warning") as server:
        figures = asyncio.run(
            measure(
                server,
                f"http://{address}",
                arguments.connections,
                arguments.active,
                arguments.periods,
                arguments.seconds,
            )
        )
    pairs = zip(figures["watched"], figures["unwatched"], strict=True)
    differences = [watched - unwatched for watched, unwatched in pairs]
    cost = statistics.median(differences)
    met = "met" if cost <= BUDGET else "FALLS SHORT"
    print(f"the live stream, {arguments.connections} connections of which {arguments.active} run turns")
    for name in ("unwatched", "watched"):
        print(f"  {name:<10} {statistics.median(figures[name]):.1%} of a core")
    print(f"  difference {cost:.2%} of a core (budget ≤ {BUDGET:.0%}: {met})")
    print(f"             {min(differences):.2%} to {max(differences):.2%}")
    print(f"  stream     {statistics.median(figures['bytes_per_s']) / 1000:.0f} kB/s")
    keep(
        "live_cost",
        {"budget": BUDGET, "connections": arguments.connections, "active": arguments.active, **figures},
    )


if __name__ == "__main__":
    main()
