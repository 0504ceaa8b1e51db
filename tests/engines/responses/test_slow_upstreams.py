"""Upstreams of WebSockets that do not read what is sent to them."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from slipring.engines.responses.reported_errors import ContextLost
from slipring.engines.responses.sockets import Socket
from tests.server.raw import until

LARGE = b'"' + b"x" * (15 * 2**20) + b'"'


@asynccontextmanager
async def slow_upstream() -> AsyncIterator[tuple[Socket, asyncio.Event, list[int]]]:
    """A socket to an upstream that accepts WebSockets and reads when the event is set; the bytes that it has
    read."""
    reads, read = asyncio.Event(), [0]
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = head.lower().partition(b"sec-websocket-key: ")[2].partition(b"\r\n")[0]
        key = head[head.lower().index(key) :][: len(key)]
        accepted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n"
        )
        await reads.wait()
        try:
            while data := await reader.read(2**20):
                read[0] += len(data)
        except ConnectionError:
            pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ws = await session.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=0.05))
        socket = Socket(ws, "tenant", 0.0)
        try:
            yield socket, reads, read
        finally:
            socket.drop()
            reads.set()
            assert socket.closing is not None
            await asyncio.wait([socket.closing])
            await ended.wait()
    server.close()


async def test_a_job_that_is_cancelled_while_a_create_is_sent_cancels_no_other() -> None:
    async with slow_upstream() as (socket, reads, read), asyncio.timeout(300):
        sending = [asyncio.create_task(socket.send(LARGE)) for _ in range(3)]
        await asyncio.wait(sending, timeout=0.1)
        assert not any(task.done() for task in sending)
        sending[0].cancel()
        await asyncio.wait([sending[0]])
        assert sending[0].cancelled()
        reads.set()
        await asyncio.gather(*sending[1:])
        await until(lambda: read[0] > 3 * len(LARGE))  # frames are whole: that of the cancelled job as well
        assert socket.is_alive


async def test_a_socket_whose_upstream_does_not_read_is_closed_in_time() -> None:
    async with slow_upstream() as (socket, _, _), asyncio.timeout(300):
        sending = asyncio.create_task(socket.send(LARGE))
        await asyncio.wait([sending], timeout=0.1)
        socket.drop()
        assert socket.closing is not None
        await asyncio.wait([socket.closing])  # it does not wait for the upstream to read, which never does
        with pytest.raises(ContextLost):
            await sending
