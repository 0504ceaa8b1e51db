"""Memory that a server holds per idle connection.

Opens connections in two lots and divides the growth of the server's resident memory between them by their
number, so that what a server needs once is not counted. Then each connection makes one small response, and
the growth is measured again: what a connection costs that has a conversation to come back to.

    python benchmarks/idle_connections.py
"""

import argparse
import asyncio
import sys

import aiohttp
from common import Loop, Process, keep, slipring

from slipring.bench.errors import UsageError
from slipring.bench.load.file_limit import raise_file_limit

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


async def measure(server: Process, connections: int) -> dict[str, float]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        first = await open_sockets(http, server.url, connections // 4)
        before = server.resident_bytes()
        sockets = await open_sockets(http, server.url, connections)
        idle = server.resident_bytes() - before
        for socket in first:
            await Loop(socket).turn(model="simulated", input="hello", store=False)
        before = server.resident_bytes()
        for socket in sockets:
            await Loop(socket).turn(model="simulated", input="hello", store=False)
        used = server.resident_bytes() - before
        for socket in first + sockets:
            await socket.close()
    return {"idle_kib": idle / connections / 1024, "after_a_turn_kib": (idle + used) / connections / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1000)
    arguments = parser.parse_args()
    try:
        raise_file_limit(arguments.connections + arguments.connections // 4)  # for the server as well
    except UsageError as error:
        parser.error(str(error))
    print(f"{arguments.connections} connections …", file=sys.stderr, flush=True)
    with slipring("simulated:tokens_per_s=0,output_tokens=20") as server:
        figures = asyncio.run(measure(server, arguments.connections))
    met = "met" if figures["idle_kib"] <= BUDGET_KIB else "FALLS SHORT"
    print(f"server memory per connection, {arguments.connections} connections")
    print(f"  idle           {figures['idle_kib']:.1f} KiB (budget ≤ {BUDGET_KIB} KiB: {met})")
    print(f"  after a turn   {figures['after_a_turn_kib']:.1f} KiB")
    keep("idle_connections", {"budget_kib": BUDGET_KIB, "connections": arguments.connections, **figures})


if __name__ == "__main__":
    main()
