"""CPU that a server uses for connections at rest.

Opens WebSockets that say nothing and answer every ping, waits for the first pings, and measures the
CPU of the server over whole ping intervals.

    python benchmarks/rest_cost.py --connections 1250
"""

import argparse
import asyncio
import sys
from urllib.parse import urlsplit

from common import Process, keep, slipring

from slipring.bench.errors import UsageError
from slipring.bench.load.file_limit import raise_file_limit

AT_ONCE = 50
PING_INTERVAL_S = 20
_PING, _PONG = b"\x89\x00", b"\x8a\x80\x00\x00\x00\x00"
_HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class Resting(asyncio.Protocol):
    """A client that answers pings and does nothing else."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False
        self.pings = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(_HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            assert data.startswith(b"HTTP/1.1 101 "), data
            self.opened.set_result(None)
        elif data == _PING:
            self.pings += 1
            self.transport.write(_PONG)
        else:
            raise RuntimeError(f"unexpected: {data!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


async def open_resting(server: Process) -> Resting:
    address = urlsplit(server.url)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Resting, address.hostname, address.port)
    await client.opened
    return client


async def measure(server: Process, connections: int, intervals: int) -> dict[str, float]:
    clients: list[Resting] = []
    for start in range(0, connections, AT_ONCE):
        lot = range(min(AT_ONCE, connections - start))
        clients += await asyncio.gather(*(open_resting(server) for _ in lot))
    await asyncio.sleep(PING_INTERVAL_S)
    duration_s = intervals * PING_INTERVAL_S
    before, pings = server.cpu_s(), sum(client.pings for client in clients)
    await asyncio.sleep(duration_s)
    spent = server.cpu_s() - before
    assert not any(client.lost for client in clients), "a connection was closed"
    pings = sum(client.pings for client in clients) - pings
    for client in clients:
        client.transport.abort()
    return {
        "cpu_ms_per_s": 1000 * spent / duration_s,
        "pings_per_connection": pings / connections,
        "cpu_us_per_ping": 1e6 * spent / pings,
    }


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
    with slipring("simulated", "--ping-interval-s", str(PING_INTERVAL_S)) as server:
        figures = asyncio.run(measure(server, arguments.connections, arguments.intervals))
    print(f"server CPU at rest, {arguments.connections} connections")
    print(f"  {figures['cpu_ms_per_s']:.1f} ms a second, {figures['cpu_us_per_ping']:.0f} µs a ping")
    keep("rest_cost", {"connections": arguments.connections, **figures})


if __name__ == "__main__":
    main()
