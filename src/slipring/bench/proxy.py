"""A network that is farther away than it is: a TCP proxy that holds back every byte for half a round trip.

Bytes keep their order, and any number of them may be on their way at once, so throughput is not limited. A
new connection costs a round trip, as the handshake of TCP does. Windows that grow and packets that get lost
are not imitated. Timers of event loops are exact to a millisecond, and so is this.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

_CHUNK_BYTES = 65536


class Delay:
    """When bytes that arrive may go on. Later bytes are never due before earlier ones."""

    def __init__(self, one_way_s: float, opened_at: float) -> None:
        self._one_way_s = one_way_s
        self._opened_at = opened_at
        """Before this moment the connection does not exist: what came earlier counts as having come now."""

    def due(self, arrived_at: float) -> float:
        return max(arrived_at, self._opened_at) + self._one_way_s


@asynccontextmanager
async def proxied(host: str, port: int, rtt_s: float) -> AsyncIterator[int]:
    """A port of this machine that leads to an address, ``rtt_s`` away."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_carry(reader, writer, host, port, rtt_s))
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


async def _carry(
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
            pump(reader, far_writer, Delay(rtt_s / 2, opened_at), clock),
            pump(far_reader, writer, Delay(rtt_s / 2, opened_at), clock),
        )
    finally:
        writer.close()
        far_writer.close()


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: Delay, clock: Callable[[], float]
) -> None:
    """One direction: read at once, write when it is due, the end of the stream included."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    writing = asyncio.create_task(_release(held, writer, clock))
    try:
        chunk = b"-"
        while chunk:
            try:
                chunk = await reader.read(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            held.put_nowait((delay.due(clock()), chunk))
        await writing
    finally:
        writing.cancel()


async def _release(
    held: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter, clock: Callable[[], float]
) -> None:
    while True:
        due, chunk = await held.get()
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
