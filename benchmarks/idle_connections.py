"""Measures the server's memory per idle connection.

Opens connections in two batches and divides the growth of the server's resident memory during the second by
its size, so that one-time costs do not count. A second server is measured with connections that have created
one small response each: the memory of an idle connection with a conversation in its cache. `idle_bytes`
measures any server.

    python benchmarks/idle_connections.py
"""

import argparse
import asyncio
import sys

import aiohttp
from common import Loop, Process, keep, slipring
from rest_cost import idle_sockets, open_all

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.subject.machine import raise_file_limit

BUDGET_KIB = 30
LOTS_AT_ONCE = 50


async def open_sockets(
    http: aiohttp.ClientSession, url: str, count: int
) -> list[aiohttp.ClientWebSocketResponse]:
    sockets: list[aiohttp.ClientWebSocketResponse] = []
    for _ in range(0, count, LOTS_AT_ONCE):
        lot = (http.ws_connect(f"{url}/responses") for _ in range(min(LOTS_AT_ONCE, count - len(sockets))))
        sockets += await asyncio.gather(*lot)
    return sockets


async def idle_bytes(server: Process, connections: int) -> float:
    """Return the growth of any server's memory per WebSocket that does nothing but answer pings."""
    async with idle_sockets(server) as sockets:
        await open_all(sockets, first := connections // 4)
        before = server.resident_bytes()
        await open_all(sockets, first + connections)
        return (server.resident_bytes() - before) / connections


async def used_bytes(server: Process, connections: int) -> float:
    """Return the growth of slipring's memory per WebSocket that has created one small response."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        sockets: list[aiohttp.ClientWebSocketResponse] = []
        before = 0
        for count in (connections // 4, connections):
            before = server.resident_bytes()
            opened = await open_sockets(http, server.url, count)
            for socket in opened:
                await Loop(socket).turn(model="simulated", input="hello", store=False)
            sockets += opened
        grown = server.resident_bytes() - before
        for socket in sockets:
            await socket.close()
    return grown / connections


def measure(connections: int) -> dict[str, float]:
    """Measure idle and used connections, each at a server that has just started."""
    figures = {}
    for name, measured in (("idle_kib", idle_bytes), ("after_a_turn_kib", used_bytes)):
        with slipring("simulated:tokens_per_s=0,output_tokens=20") as server:
            figures[name] = asyncio.run(measured(server, connections)) / 1024
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1000)
    arguments = parser.parse_args()
    try:
        raise_file_limit(arguments.connections + arguments.connections // 4)  # for the server as well
    except UsageError as error:
        parser.error(str(error))
    print(f"{arguments.connections} connections …", file=sys.stderr, flush=True)
    figures = measure(arguments.connections)
    met = "met" if figures["idle_kib"] <= BUDGET_KIB else "FALLS SHORT"
    print(f"server memory per connection, {arguments.connections} connections")
    print(f"  idle           {figures['idle_kib']:.1f} KiB (budget ≤ {BUDGET_KIB} KiB: {met})")
    print(f"  after a turn   {figures['after_a_turn_kib']:.1f} KiB")
    keep("idle_connections", {"budget_kib": BUDGET_KIB, "connections": arguments.connections, **figures})


if __name__ == "__main__":
    main()
