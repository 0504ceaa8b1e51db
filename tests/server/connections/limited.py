"""Servers with limits on connections, and clients that come near them."""

import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests import wire
from tests.harness import Running
from tests.server.raw import (
    SMALL_BUFFER_BYTES,
    RawSocket,
    open_tcp,
    stop_clock,
    until,
)

MIB = 2**20
PAGE_BYTES = 4096
"""Much less than what may be written without waiting for the client."""
KEYS = ("a:key-of-a", "b:key-of-b")
KEY_OF_A, KEY_OF_B = "Authorization: Bearer key-of-a\r\n", "Authorization: Bearer key-of-b\r\n"


class Clock:
    """The clock of a server's connections, advanced by the test."""

    def __init__(self, server: Running, *, narrows: bool = True) -> None:
        """``narrows``: gives all connections a small send buffer."""
        stop_clock(server)
        if narrows:
            narrow_all(server)
        self._connections = server.service.connections
        self._now = self._connections._clock()
        for watch in (self._connections, self._connections.slow_clients, self._connections.unfinished):
            watch._clock = lambda: self._now

    def pass_by(self, seconds: float) -> None:
        self._now += seconds
        self._connections.tick()


def request(method: str, path: str, more: str = "", body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}"
    return (head + (f"Content-Length: {size}\r\n" if size else "") + "\r\n").encode() + body


async def store_large(server: Running, key: str, size: int) -> str:
    """Store a response of about this size; returns its id."""
    body = io.BytesIO(json.dumps({"input": "hello", "instructions": "x" * size}).encode())
    headers = {"Authorization": f"Bearer {key}"}
    async with server.http.post(f"{server.url}/responses", data=body, headers=headers) as answer:
        return str((await answer.json())["id"])


def narrow_all(server: Running, buffer_bytes: int = SMALL_BUFFER_BYTES) -> None:
    """Give all later connections of the server a small send buffer, whatever the system's default is."""
    (acceptor,) = server.server._acceptors
    acceptor._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)


@asynccontextmanager
async def unread_response(server: Running, response_id: str, more: str = "") -> AsyncIterator[RawSocket]:
    """A connection with a GET whose response is larger than all buffers, when these are full.

    They are pages: the first piece of the body fills them. With larger ones a busy kernel, which moves bytes
    from one side's buffer to the other's in its own time, takes whole pieces after writing has been paused,
    and the connection does not count as unread in between."""
    unread = server.service.connections.unread
    before = unread.used_bytes
    narrow_all(server, PAGE_BYTES)
    async with open_tcp(server, small_buffers=True, buffer_bytes=PAGE_BYTES) as raw:
        await raw.send(request("GET", f"/v1/responses/{response_id}", more))
        await until(lambda: unread.used_bytes > before)
        yield raw


def length_of(head: bytes) -> int:
    """The size of the body that the head of a response announces."""
    return next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))


async def cut(raw: RawSocket) -> bool:
    """Whether the server closed a connection before its whole response had arrived."""
    received = await raw.ended()
    head, _, body = received.partition(b"\r\n\r\n")
    return len(body) < length_of(head)


async def read_error(raw: RawSocket) -> tuple[int, str]:
    """The status and the code of an error response; the connection may stay open. One that is due to overload
    says when to try again."""
    head = await raw.read_head()
    body = json.loads(await raw._read(length_of(head)))
    wire.check_http_error(body)
    status = int(head.split()[1])
    assert (b"\r\nretry-after: 1\r\n" in head.lower()) == (status in (429, 503))
    return status, body["error"]["code"]
