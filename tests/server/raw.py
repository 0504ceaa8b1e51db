"""A WebSocket client on a plain TCP socket, for behaviour that real clients do not show.

It reads only when a test calls it, so a test decides when the server finds its client slow. It can send a
message in fragments, send invalid bytes, and disconnect without a close frame.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from slipring.server.transports.websocket import WebSocketConnection
from tests.harness import Running

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
SMALL_BUFFER_BYTES = 65536
_HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{more}\r\n"
)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def frame(
    opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0, mask: bytes | None = bytes(4)
) -> bytes:
    """A client's frame, masked with zeros by default. ``reserved``: the three reserved bits as a number."""
    first = opcode | reserved << 4 | (0x80 if final else 0)
    masked = 0 if mask is None else 0x80
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", first, masked | length)
    elif length < 65536:
        head = struct.pack("!BBH", first, masked | 126, length)
    else:
        head = struct.pack("!BBQ", first, masked | 127, length)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


class RawSocket:
    """A TCP connection that sends and receives WebSocket frames."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def send_frame(self, opcode: int, payload: bytes, *, final: bool = True) -> None:
        await self.send(frame(opcode, payload, final=final))

    async def create(self, **fields: Any) -> None:
        await self.send_frame(TEXT, json.dumps({"type": "response.create", **fields}).encode())

    async def receive_frame(self) -> tuple[int, bytes]:
        """The next frame of the server: its opcode and payload."""
        first, length = await self._read(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self._read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self._read(8))
        return first & 0x0F, await self._read(length)

    async def receive_event(self) -> dict[str, Any]:
        """The next event, skipping pings."""
        opcode, payload = await self.receive_frame()
        while opcode == PING:
            opcode, payload = await self.receive_frame()
        assert opcode == TEXT, (opcode, payload)
        event = json.loads(payload)
        assert isinstance(event, dict)
        return event

    async def closed(self) -> int:
        """Read up to the close frame; returns its code."""
        while True:
            opcode, payload = await self.receive_frame()
            if opcode == CLOSE:
                (code,) = struct.unpack("!H", payload[:2])
                return int(code)

    async def ended(self) -> bytes:
        """Everything up to the end of the connection."""
        while chunk := await self.receive():
            self._received += chunk
        return bytes(self._received)

    def drop(self) -> None:
        """Disconnect with a TCP reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._sock.close()

    def close(self) -> None:
        self._sock.close()

    async def read_head(self) -> bytes:
        """The head of an HTTP response."""
        while b"\r\n\r\n" not in self._received:
            chunk = await self.receive()
            assert chunk, self._received
            self._received += chunk
        return await self._read(self._received.index(b"\r\n\r\n") + 4)

    async def _read(self, count: int) -> bytes:
        while len(self._received) < count:
            chunk = await self.receive()
            assert chunk, "the connection ended within a frame"
            self._received += chunk
        wanted = bytes(self._received[:count])
        del self._received[:count]
        return wanted

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the connection."""
        try:
            return await asyncio.wait_for(self._loop.sock_recv(self._sock, 2**20), 300)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def open_tcp(
    server: Running, *, small_buffers: bool = False, buffer_bytes: int = SMALL_BUFFER_BYTES
) -> AsyncIterator[RawSocket]:
    """A plain TCP connection to a server. Small buffers, of ``buffer_bytes``, fill soon when one side does
    not read."""
    sock = socket.socket()
    sock.setblocking(False)
    if small_buffers:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.server.port))
    raw = RawSocket(sock)
    try:
        yield raw
    finally:
        raw.close()


@asynccontextmanager
async def open_raw(
    server: Running, *, path: str = "/v1/responses", more: str = "", small_buffers: bool = False
) -> AsyncIterator[RawSocket]:
    """A WebSocket connection after its handshake. ``more``: further header lines."""
    async with open_tcp(server, small_buffers=small_buffers) as raw:
        await raw.send(_HANDSHAKE.format(path=path, more=more).encode())
        head = await raw.read_head()
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield raw


def transport_of(server: Running) -> asyncio.Transport:
    """The transport of the server's only connection."""
    client = only_client(server)
    request = client._request if isinstance(client, WebSocketConnection) else client.reply._request
    transport = request.transport
    assert transport is not None
    return transport


def fill(server: Running, size_bytes: int) -> None:
    """Write a frame of this size to the server's transport directly."""
    frame = struct.pack("!BBQ", 0x80 | TEXT, 127, size_bytes) + b"x" * size_bytes
    transport_of(server).write(frame)


def narrow(server: Running) -> None:
    """Give the server's only connection a small send buffer, whatever the system's default is."""
    sock = transport_of(server).get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)


def stop_clock(server: Running) -> None:
    """Stop the server's ticker: only the test calls ``tick``, so nothing depends on the machine's speed."""
    for ticker in server.server._ticker._cancelled_at_stop:
        ticker.cancel()


def only_client(server: Running) -> Any:
    """The server's only client."""
    (client,) = server.service.clients
    return client


def connection_of(server: Running) -> WebSocketConnection:
    client = only_client(server)
    assert isinstance(client, WebSocketConnection)
    return client


async def gone(server: Running) -> None:
    """Wait until no client is being served."""
    await asyncio.wait_for(server.service.wait_until_idle(), 300)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(300):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
