"""Raw connections for attackers: they read only on request, and send any bytes."""

import asyncio
import json
import re
import select
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.attack.server import Server

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_SMALL_BYTES = 65536
_CHUNK = 2**18
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
GONE = (OSError, TimeoutError, asyncio.IncompleteReadError)
"""Exceptions by which an attacker notices that its connection was closed."""

Json = dict[str, Any]


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, reserved: int = 0) -> bytes:
    """Return a client's frame, masked with zeros."""
    return frame_head(opcode, len(payload), final=final, reserved=reserved) + payload


def frame_head(opcode: int, length: int, *, final: bool = True, reserved: int = 0) -> bytes:
    """Return the head of a frame that announces this many bytes."""
    first = opcode | reserved << 4 | (0x80 if final else 0)
    if length < 126:
        return struct.pack("!BB", first, 0x80 | length) + bytes(4)
    if length < 65536:
        return struct.pack("!BBH", first, 0x80 | 126, length) + bytes(4)
    return struct.pack("!BBQ", first, 0x80 | 127, length) + bytes(4)


def request_head(method: str, path: str, *lines: str, key: str | None = None) -> bytes:
    """Return the head of an HTTP request."""
    more = [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([f"{method} /v1{path} HTTP/1.1", "Host: localhost", *more, *lines, "", ""]).encode()


def post(path: str, body: bytes, key: str) -> bytes:
    """Return a complete POST request with ``Connection: close``."""
    return request_head("POST", path, "Connection: close", *json_lines(len(body)), key=key) + body


def json_lines(length: int) -> list[str]:
    """Return the header lines for a JSON body."""
    return ["Content-Type: application/json", f"Content-Length: {length}"]


def upgrade(key: str | None, *lines: str) -> bytes:
    """Return a request for a WebSocket upgrade."""
    wanted = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    nonce = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    return request_head("GET", "/responses", *wanted, nonce, *lines, key=key)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    head: str
    body: bytes

    @property
    def error(self) -> Json:
        """The error object of the API's format; empty if the body has another format. One of the Messages API
        gets the field that its message begins with as ``param``."""
        with suppress(ValueError, KeyError, TypeError):
            body = json.loads(self.body)
            error = body["error"]
            if isinstance(error, dict) and {"message", "type", "code", "param"} <= error.keys():
                return error
            if body["type"] == "error" and body["request_id"] and {"message", "type"} <= error.keys():
                return {"code": error["type"], "param": error["message"].partition(":")[0], **error}
        return {}


class Socket:
    """A TCP connection to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    async def send(self, data: bytes | memoryview) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def send_frame(self, opcode: int, payload: bytes = b"", *, final: bool = True) -> None:
        await self.send(frame(opcode, payload, final=final))

    async def send_event(self, **fields: Any) -> None:
        await self.send_frame(TEXT, json.dumps(fields).encode())

    async def create(self, **fields: Any) -> None:
        await self.send_event(type="response.create", **fields)

    async def receive(self, most: int = _CHUNK) -> bytes:
        """Return the next bytes; empty at the end."""
        return await self._loop.sock_recv(self.sock, most)

    @property
    def has_received(self) -> bool:
        """Whether bytes, or the end of the connection, have arrived that were not read."""
        return bool(select.select([self.sock], [], [], 0)[0])

    async def read(self, count: int) -> bytes:
        while len(self._received) < count:
            if not (chunk := await self.receive()):
                raise asyncio.IncompleteReadError(bytes(self._received), count)
            self._received += chunk
        wanted = bytes(self._received[:count])
        del self._received[:count]
        return wanted

    async def read_head(self) -> str:
        """Read the head of an HTTP answer."""
        while b"\r\n\r\n" not in self._received:
            if not (chunk := await self.receive()):
                raise asyncio.IncompleteReadError(bytes(self._received), None)
            self._received += chunk
        head = await self.read(self._received.index(b"\r\n\r\n") + 4)
        return head.decode("latin-1")

    async def answer(self) -> Answer:
        """Read an HTTP answer, by its length or until the end of the connection."""
        head = await self.read_head()
        length = re.search(r"(?im)^content-length: *(\d+)", head)
        body = await self.read(int(length[1])) if length else await self.rest()
        return Answer(int(head.split()[1]), head, body)

    async def frame(self) -> tuple[int, bytes]:
        """Read the next frame of the server; return its opcode and payload."""
        first, length = await self.read(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self.read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.read(8))
        return first & 0x0F, await self.read(length)

    async def event(self) -> Json:
        """Read the next event. Pings are answered, pongs are skipped, and a close is returned as an event
        too."""
        while True:
            opcode, payload = await self.frame()
            if opcode == PING:
                await self.send_frame(PONG, payload)
            elif opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                return {"type": "close", "code": code, "reason": payload[2:].decode()}
            elif opcode == TEXT:
                return dict(json.loads(payload))

    async def until(self, *types: str) -> Json:
        """Read until an event of one of these types, or a close, an error or the end."""
        while True:
            event = await self.event()
            if event["type"] in (*types, "close", "error"):
                return event

    async def rest(self) -> bytes:
        """Read everything until the server closes."""
        with suppress(ConnectionError):
            while chunk := await self.receive():
                self._received += chunk
        rest = bytes(self._received)
        self._received.clear()
        return rest

    async def closed_within(self, seconds: float) -> bool:
        """Return whether the server closes in this time. Data until then is discarded."""
        try:
            async with asyncio.timeout(seconds):
                while await self.receive():
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    def reset(self) -> None:
        """Close with a TCP reset."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.sock.close()

    def close(self) -> None:
        self.sock.close()


async def connect(server: Server, *, small: bool = False) -> Socket:
    """Open a plain connection. ``small`` makes the socket buffers small, so that unread data piles up at the
    server."""
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    except BaseException:
        sock.close()
        raise
    return Socket(sock)


async def connect_websocket(server: Server, key: str, *lines: str, small: bool = False) -> Socket:
    """Open a WebSocket connection and complete its handshake."""
    connection = await connect(server, small=small)
    try:
        await connection.send(upgrade(key, *lines))
        head = await connection.read_head()
        if " 101 " not in head.splitlines()[0]:
            raise ConnectionError(f"no WebSocket: {head}")
    except BaseException:
        connection.close()
        raise
    return connection


@asynccontextmanager
async def connections(server: Server, count: int, *, small: bool = False) -> AsyncIterator[list[Socket]]:
    """Open several plain connections; those that are open at the end are reset."""
    async with _opened(lambda: connect(server, small=small), count) as opened:
        yield opened


@asynccontextmanager
async def websockets(server: Server, key: str, count: int = 1, *lines: str) -> AsyncIterator[list[Socket]]:
    """Open several WebSocket connections with small buffers; those that are open at the end are reset."""
    async with _opened(lambda: connect_websocket(server, key, *lines, small=True), count) as opened:
        yield opened


@asynccontextmanager
async def _opened(open_one: Callable[[], Awaitable[Socket]], count: int) -> AsyncIterator[list[Socket]]:
    opened: list[Socket] = []
    try:
        while len(opened) < count:
            opened.append(await open_one())
        yield opened
    finally:
        for each in opened:
            each.reset()


class Deadline:
    """Counts down a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())
