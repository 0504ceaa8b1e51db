"""Idle WebSockets, which do nothing but answer pings: thousands of them in one process."""

import asyncio
import base64
import os
import ssl
from typing import cast
from urllib.parse import urlsplit

from slipring.commands.bench.client.transports import Access

_UPGRADED = b"HTTP/1.1 101"
_HEAD_END = b"\r\n\r\n"
_PING, _PONG, _CLOSE, _FINAL, _MASKED = 0x9, 0xA, 0x8, 0x80, 0x80
_SHORT = 126
"""From here on the length follows: in 2 bytes if this is it, else in 8."""
_NO_MASK = bytes(4)
_AT_ONCE = 100


class IdleSockets:
    """Idle connections of one process."""

    def __init__(self, access: Access) -> None:
        self._access = access
        parts = urlsplit(access.url)
        self._host, self._path = parts.hostname or "", parts.path
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._sockets: list[_IdleSocket] = []

    @property
    def open_connections(self) -> int:
        return sum(socket.is_open for socket in self._sockets)

    @property
    def pings(self) -> int:
        """How many pings were answered."""
        return sum(socket.pings for socket in self._sockets)

    async def grow(self, count: int) -> None:
        """Open connections up to this number, as fast as the server accepts them. One that is refused counts
        as not open."""
        while (missing := count - len(self._sockets)) > 0:
            await asyncio.gather(*(self._open() for _ in range(min(missing, _AT_ONCE))))

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    async def _open(self) -> None:
        socket = _IdleSocket(self._request())
        self._sockets.append(socket)
        try:
            async with asyncio.timeout(self._access.timeout_s):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: socket, self._host, self._port, ssl=self._tls)
                await socket.opened
        except OSError:  # a timeout is one
            socket.close()

    def _request(self) -> bytes:
        nonce = base64.b64encode(os.urandom(16)).decode()
        headers = {
            **self._access.headers(),
            "Host": f"{self._host}:{self._port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": nonce,
        }
        lines = [f"GET {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join((*lines, "", "")).encode()


class _IdleSocket(asyncio.Protocol):
    """One connection. ``opened`` is done when the server has answered the upgrade, whatever the answer is."""

    __slots__ = ("_request", "_rest", "_transport", "is_open", "opened", "pings")

    def __init__(self, request: bytes) -> None:
        self.is_open = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pings = 0
        self._request = request
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class does not inherit from it
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if not self.opened.done():
            head, end, rest = self._rest.partition(_HEAD_END)
            if not end:
                return
            self.is_open, self._rest = head.startswith(_UPGRADED), rest
            self.opened.set_result(None)
        while self.is_open and self._take_frame():
            pass

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if not self.opened.done():
            self.opened.set_result(None)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _take_frame(self) -> bool:
        """Answer the next frame if it has arrived. Servers do not mask their frames."""
        rest = self._rest
        if len(rest) < 2:
            return False
        start, length = 2, rest[1]
        if length >= _SHORT:
            start += 2 if length == _SHORT else 8
            if len(rest) < start:
                return False
            length = int.from_bytes(rest[2:start], "big")
        if len(rest) < start + length:
            return False
        kind, payload, self._rest = rest[0] & 0xF, rest[start : start + length], rest[start + length :]
        if kind == _CLOSE:
            self.close()
        elif kind == _PING and self._transport is not None:
            self.pings += 1
            # Zeros as a mask leave the payload as it is.
            self._transport.write(bytes((_FINAL | _PONG, _MASKED | len(payload))) + _NO_MASK + payload)
        return True
