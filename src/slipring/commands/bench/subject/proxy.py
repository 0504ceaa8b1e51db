"""Simulates network distance: a TCP proxy that delays every byte by half a round trip.

Bytes keep their order, and the number in flight is not limited, so throughput is not either. Opening a
connection costs one round trip, like the TCP handshake. Slow start and packet loss are not simulated. The
delay is accurate to about a millisecond, like the timers of event loops.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

_CHUNK_BYTES = 65536


@asynccontextmanager
async def delaying_proxy(host: str, port: int, rtt_s: float) -> AsyncIterator[int]:
    """Run a proxy to an address; yields its local port."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_forward(reader, writer, host, port, rtt_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, rtt_s: float
) -> None:
    clock = asyncio.get_running_loop().time
    opened_at = clock() + rtt_s
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    try:
        await asyncio.gather(
            _pump(reader, far_writer, rtt_s / 2, opened_at),
            _pump(far_reader, writer, rtt_s / 2, opened_at),
        )
    finally:
        writer.close()
        far_writer.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way_s: float, opened_at: float
) -> None:
    """Forward one direction: read at once, write when due; the end of the stream is delayed as well. Bytes
    that arrive before ``opened_at``, the end of the simulated handshake, count as arriving then."""
    clock = asyncio.get_running_loop().time
    pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    writing = asyncio.create_task(_write_when_due(pending, writer, clock))
    try:
        chunk = b"-"
        while chunk:
            try:
                chunk = await reader.read(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            pending.put_nowait((max(clock(), opened_at) + one_way_s, chunk))
        await writing
    finally:
        writing.cancel()


async def _write_when_due(
    pending: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter, clock: Callable[[], float]
) -> None:
    while True:
        due, chunk = await pending.get()
        wait_s = due - clock()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if not chunk:
            with suppress(OSError, RuntimeError):
                writer.write_eof()
            return
        writer.write(chunk)
        with suppress(OSError):
            await writer.drain()
