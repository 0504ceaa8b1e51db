"""Measures the server's CPU time for idle connections.

Opens WebSockets that send nothing and answer every ping, waits for the first pings, and measures the server's
CPU time over whole ping intervals. `measure` does the same for any server, also for one that sends no pings.

    python benchmarks/rest_cost.py --connections 1250
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common import Process, keep, slipring

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.load.idle_sockets import IdleSockets
from slipring.commands.bench.subject.machine import raise_file_limit
from slipring.core.limits import Limits

PING_INTERVAL_S = Limits().ping_interval_s
"""The default of slipring. Other servers are measured for as long."""


@asynccontextmanager
async def idle_sockets(server: Process) -> AsyncIterator[IdleSockets]:
    """WebSockets of the server's Responses, none at first. Those that are open are closed with the block."""
    access = Access(server.url.removesuffix("/v1") + "/v1", "", timeout_s=60, asks_timing=False)
    sockets = IdleSockets(access)
    try:
        yield sockets
    finally:
        sockets.close()


async def open_all(sockets: IdleSockets, count: int) -> None:
    """Open connections up to this number; raise if one is refused or was closed."""
    await sockets.grow(count)
    check_open(sockets, count)


def check_open(sockets: IdleSockets, count: int) -> None:
    if (found := sockets.open_connections) != count:
        raise RuntimeError(f"{count - found} of {count} connections were refused or closed")


async def measure(server: Process, connections: int, intervals: int) -> dict[str, float]:
    """Return the CPU time per second with so many idle connections, and per ping if the server sends any."""
    async with idle_sockets(server) as sockets:
        await open_all(sockets, connections)
        # Half an interval after a ping, so that whole intervals hold the same number of pings.
        await asyncio.sleep(1.5 * PING_INTERVAL_S)
        spent, pings, began = server.cpu_s(), sockets.pings, time.monotonic()
        await asyncio.sleep(intervals * PING_INTERVAL_S)
        took = time.monotonic() - began
        spent, pings = server.cpu_s() - spent, sockets.pings - pings
        check_open(sockets, connections)
    figures = {"cpu_ms_per_s": 1000 * spent / took, "pings_per_connection": pings / connections}
    return {**figures, "cpu_us_per_ping": 1e6 * spent / pings} if pings else figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1250)
    parser.add_argument("--intervals", type=int, default=2, help="how many ping intervals to measure")
    arguments = parser.parse_args()
    try:
        raise_file_limit(arguments.connections)  # for the server as well
    except UsageError as error:
        parser.error(str(error))
    print(f"{arguments.connections} connections …", file=sys.stderr, flush=True)
    with slipring("simulated") as server:
        figures = asyncio.run(measure(server, arguments.connections, arguments.intervals))
    print(f"server CPU at rest, {arguments.connections} connections")
    print(f"  {figures['cpu_ms_per_s']:.1f} ms a second, {figures['cpu_us_per_ping']:.0f} µs a ping")
    keep("rest_cost", {"connections": arguments.connections, **figures})


if __name__ == "__main__":
    main()
