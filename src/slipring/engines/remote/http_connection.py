"""HTTP/1.1 to the servers of engines: connections that give the bytes of an answer as they come.

A stream of tokens is one chunk of HTTP after the other, each in a read of its own. The clients of libraries
resume a task for each of them, or keep where every chunk ends; both cost more than the rest of a read. Here
the read itself calls the function that takes the bytes (``Answer.push``).

Answers that one server sends another are read with bounds: the head, the lengths and the chunks of a body.
Bodies are never decoded: requests accept no encoding.
"""

import asyncio
import errno
import os
import re
import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from http.client import BadStatusLine, RemoteDisconnected
from itertools import zip_longest
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

_MOST_AT_ONCE = 2**20
"""Bytes of a request that is written at once. A longer one waits for the server to read it."""
_MOST_UNREAD = 2**16
"""Bytes of a body after which no more is read from the socket until they are taken."""
_LONGEST_HEAD = 2**16
_LONGEST_LINE = 2**10
"""Bytes of the line before a chunk, and of a line behind the last one."""
_IDLE_S = 15.0
"""How long a connection is kept for the next request: servers close those that are idle for longer."""
_STAGGER_S = 0.25
"""After so long without a connection, the next address of the host is tried as well."""
_PORTS = {"http": 80, "https": 443}
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?:[ \r]|$)")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_NO_BODY = frozenset({204, 304})
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress"})
_SWITCHING, _FINAL = 101, 200


class CannotConnect(OSError):
    """No connection could be made. The cause says why."""


class Answer:
    """The answer to one request: its head, and its body as it comes."""

    __slots__ = (
        *("_chunked", "_connection", "_error", "_left", "_push", "_rest", "_size_unread", "_unread"),
        *("_waiter", "headers", "is_complete", "is_kept", "status"),
    )

    def __init__(self, connection: "Connection", head: bytes) -> None:
        """Raises ``BadStatusLine`` if the head is no head of an answer."""
        first, *lines = head.split(b"\n")
        found = _STATUS.match(first)
        if found is None:
            raise BadStatusLine(repr(first[:80]))
        self._connection = connection
        self.status = int(found[2])
        self.headers = _headers(lines)
        """By their names in lower case."""
        if self.headers.get("content-encoding", "").strip().lower() in _COMPRESSED:
            raise BadStatusLine("a compressed body that was not asked for")
        self._chunked = "transfer-encoding" in self.headers and self.status not in _NO_BODY
        self._left = self._length()
        """Bytes of the body, or of the current chunk, that have not come; -1: until the connection ends."""
        self._rest = b""
        """The beginning of a line that has not ended, between chunks."""
        self._unread: deque[bytes] = deque()
        self._size_unread = 0
        self.is_complete = not self._left and not self._chunked
        self.is_kept = self._left >= 0 and self._keeps_alive(found[1] == b"1")
        """Whether another request may follow on the connection."""
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._push: Callable[[bytes], None] | None = None
        """Takes the body as it comes."""

    def _keeps_alive(self, is_current: bool) -> bool:
        options = self.headers.get("connection", "").lower()
        return "close" not in options and (is_current or "keep-alive" in options)

    def _length(self) -> int:
        if self._chunked:
            if self.headers["transfer-encoding"].strip().lower() != "chunked":
                raise BadStatusLine("a transfer encoding that was not asked for")
            return 0
        if self.status in _NO_BODY:
            return 0
        if (stated := self.headers.get("content-length")) is None:
            return -1
        if not (stated.isascii() and stated.isdigit() and len(stated) < 16):
            raise BadStatusLine("a length that is no number")
        return int(stated)

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        """Take bytes of the connection. Raises ``BadStatusLine`` if they are no body."""
        if self._chunked and not self._left and not self._rest and self._push is not None:
            # Hot path, once per token: a read that is one chunk.
            found = _CHUNK.match(data, 0, _LONGEST_LINE)
            if found is not None and len(data) == found.end() + (size := int(found[1], 16)) + 2 and size:
                if not data.endswith(b"\r\n"):
                    raise BadStatusLine("a chunk that does not end")
                self._push(data[found.end() : -2])
                return
        if self._chunked:
            self._feed_chunks(data)
        elif self._left < 0:
            self._keep(data)
        else:
            if len(data) > self._left:
                data, self.is_kept = data[: self._left], False
            self._left -= len(data)
            self._keep(data)
            self.is_complete = not self._left
        if self._push is not None and self._unread:
            self._push(self._take())
        if self._push is None or self.is_complete:
            self._wake()

    def _feed_chunks(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        while at < end:
            if self._left:  # of a chunk and of the line end behind it
                piece = data[at : at + self._left]
                of_chunk = max(self._left - 2, 0)
                line_end = piece[of_chunk:]
                self._keep(piece[:of_chunk])
                at += len(piece)
                self._left -= len(piece)
                if line_end != b"\r\n"[2 - self._left - len(line_end) : 2 - self._left]:
                    raise BadStatusLine("a chunk that does not end")
                continue
            found = _CHUNK.match(data, at, at + _LONGEST_LINE)
            if found is None:
                self._rest = data[at:]
                if len(self._rest) > _LONGEST_LINE or b"\n" in self._rest:
                    raise BadStatusLine("no length of a chunk")
                return
            size = int(found[1], 16)
            if not size:
                self._end_chunks(data[found.start() :])
                return
            at = found.end()
            self._left = size + 2

    def _end_chunks(self, data: bytes) -> None:
        """Read the last chunk and the lines behind it, up to an empty one."""
        ended = data.find(b"\r\n\r\n")
        if ended < 0:
            self._rest = data
            if len(data) > _LONGEST_HEAD:
                raise BadStatusLine("too many lines behind the last chunk")
            return
        self.is_complete = True
        self.is_kept = self.is_kept and ended + 4 == len(data)

    def _keep(self, data: bytes) -> None:
        if data:
            self._unread.append(data)
            self._size_unread += len(data)
            if self._size_unread > _MOST_UNREAD:
                self._connection.pause()

    def fail(self, error: Exception) -> None:
        """Fail the pending read and all later ones."""
        if self._error is None and not self.is_complete:
            self._error = error
            self._wake()

    def lose(self, error: Exception | None) -> None:
        """The connection has ended."""
        if self._left < 0 and not self._chunked and error is None:
            self.is_complete = True
            self._wake()
        else:
            self.fail(error or ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What its reader calls.

    async def read(self) -> bytes:
        """Wait for more of the body and return all that has come; empty at its end."""
        while not self._unread and not self.is_complete:
            await self._wait()
        return self._take() if self._unread else b""

    async def push(self, take: Callable[[bytes], bool]) -> None:
        """Call ``take`` with what comes, from within each read of the socket, until it returns False or the
        body ends. Returns at once if something has come already. Raises what ``take`` raises.

        ``take`` may cancel the task that waits here.
        """
        if self._unread or self.is_complete:
            return
        if self._error is not None:
            raise self._error
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def push(data: bytes) -> None:
            if ended.done():  # or cancelled: nothing more is taken
                self._keep(data)
                return
            try:
                if not take(data) and not ended.done():
                    ended.set_result(None)
            except Exception as error:
                if not ended.done():
                    ended.set_exception(error)

        self._push, self._waiter = push, ended
        try:
            await ended
        finally:
            self._push = self._waiter = None
        if self._error is not None and not self._unread:
            raise self._error

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None and not self._unread:
            raise self._error

    def _take(self) -> bytes:
        unread = self._unread
        data = unread.popleft() if len(unread) == 1 else b"".join(unread)
        unread.clear()
        if self._size_unread > _MOST_UNREAD:
            self._connection.resume()
        self._size_unread = 0
        return data

    def release(self) -> None:
        """Keep the connection for the next request if the body has ended, else close it. May be called
        twice."""
        self._connection.release(self)


def _headers(lines: Sequence[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise BadStatusLine(repr(line[:80]))
        value = value.strip()
        if name == "content-length" and headers.get(name, value) != value:
            raise BadStatusLine("two lengths")
        headers[name] = f"{headers[name]}, {value}" if name in headers and name != "content-length" else value
    return headers


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._answer: Answer | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._writable: asyncio.Future[None] | None = None
        """Not done while the server does not read as fast as is written."""
        self._is_written = False
        """Whether the whole request was given to the transport."""
        self.idle_since = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # those of uvloop are not derived from it

    def data_received(self, data: bytes) -> None:
        # Hot path: runs once per token of every answer.
        answer = self._answer
        try:
            if answer is None:
                self._read_head(data)
            elif not answer.is_complete:
                answer.feed(data)
            else:
                answer.is_kept = False  # more than was asked for
        except BadStatusLine as error:
            self.close()
            self._fail(error)

    def _read_head(self, data: bytes) -> None:
        if self._answered is None:  # nothing was asked
            self.close()
            return
        data = self._head + data
        while self._answer is None:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._head = head
                if len(head) > _LONGEST_HEAD or not b"HTTP/1."[: len(head)] == head[:7]:
                    raise BadStatusLine(repr(head[:80]))
                return
            answer = Answer(self, head.replace(b"\r\n", b"\n"))
            if answer.status == _SWITCHING:
                raise BadStatusLine("another protocol that was not asked for")
            if answer.status >= _FINAL:
                self._answer = answer
        self._head = b""
        if not self._answered.done():
            self._answered.set_result(self._answer)
        if data:
            self.data_received(data)

    def eof_received(self) -> None:
        # Nothing more is answered. What is left of a request is not sent: the server need not read it.
        self._fail(None)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        self.resume_writing()
        self._fail(exc)
        self._answer = None

    def _fail(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._answer.lose(error)
        elif self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or RemoteDisconnected("the connection ended"))

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # What a request calls.

    async def ask(self, pieces: Sequence[bytes], timeout_s: float | None) -> Answer:
        """Send a request and wait for the head of its answer, at most so long. Raises ``OSError`` or
        ``BadStatusLine``; the connection is closed then."""
        self._answered = asyncio.get_running_loop().create_future()
        self._is_written = False
        try:
            async with asyncio.timeout(timeout_s):
                self._is_written = await self._write(pieces)
                return await self._answered
        except BaseException:
            self._answered.cancel()
            self.close()
            raise
        finally:
            self._answered = None

    async def begin_tls(self, request: bytes, context: ssl.SSLContext, name: str) -> None:
        """Ask a proxy for a tunnel to the host of this name, and begin TLS in it."""
        answer = await self.ask([request], None)
        if answer.status // 100 != 2:
            raise ConnectionRefusedError(f"the proxy answers with {answer.status}")
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, context, server_hostname=name)
        assert transport is not None
        self._transport, self._answer = transport, None

    async def _write(self, pieces: Sequence[bytes]) -> bool:
        """Write a request; returns whether all of it was written. What a server has answered before that is
        no longer of interest to it."""
        if self._transport is None:
            raise RemoteDisconnected("the connection ended")
        if sum(map(len, pieces)) <= _MOST_AT_ONCE:
            self._transport.writelines(pieces)
            return True
        assert self._answered is not None
        for piece in pieces:
            if self._transport is None or self._answered.done():
                return False
            self._transport.write(piece)
            if self._writable is not None and not self._writable.done():
                await asyncio.wait((self._writable, self._answered), return_when=asyncio.FIRST_COMPLETED)
        return True

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def release(self, answer: Answer) -> None:
        """End the use of the connection by an answer."""
        if self._answer is not answer:
            return
        transport = self._transport
        # A server that has answered early takes what comes next for the rest of the request.
        has_sent = self._is_written and transport is not None and not transport.get_write_buffer_size()
        if has_sent and answer.is_complete and answer.is_kept and self._pool.keeps:
            self.resume()
            self._answer = None
            self._pool.put_back(self)
        else:
            self.close()
            answer.lose(ConnectionAbortedError("the answer was given up"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """Close it, and fail the request that uses it."""
        self.close()
        self._fail(ConnectionAbortedError(errno.ECONNABORTED, "the client is closed"))


class ConnectionPool:
    """The connections to one host, directly or through a proxy."""

    def __init__(self, url: str, proxy: str | None, connect_timeout_s: float, *, keeps: bool) -> None:
        """``url``: any of the host. ``keeps``: whether connections are used for more than one request."""
        self._target = urlsplit(url)
        self._proxy = urlsplit(proxy) if proxy else None
        self._connect_timeout_s = connect_timeout_s
        self.keeps = keeps
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False

    def request_line(self, method: str, path: str) -> str:
        """The first line of a request for a path with its query."""
        path = quote(path, safe="/%?&=:@!$'()*+,;~[]")
        is_forwarded = self._proxy is not None and self._target.scheme == "http"
        host = _host_header(self._target)
        where = f"http://{host}{path}" if is_forwarded else path
        return f"{method} {where} HTTP/1.1\r\nHost: {host}\r\n" + (
            f"Proxy-Authorization: {credentials}\r\n"
            if is_forwarded and (credentials := self._proxy_credentials())
            else ""
        )

    async def take(self) -> Connection:
        """A connection that is kept, or a new one. Raises ``CannotConnect``."""
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.close()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._open()
        except (OSError, BadStatusLine, ValueError) as error:
            raise CannotConnect(str(error)) from error
        if self._is_closed or not connection.is_usable:
            connection.close()
            raise CannotConnect("the client is closed" if self._is_closed else "the connection ended")
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_S, self._sweep)

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all connections, those that are used or being made included."""
        self._is_closed, self.keeps = True, False
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._all):
            connection.give_up()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _IDLE_S
        for connection in [each for each in self._idle if each.idle_since <= oldest]:
            connection.close()
        self._sweeper = loop.call_later(_IDLE_S, self._sweep) if self._idle else None

    async def _open(self) -> Connection:
        loop, target = asyncio.get_running_loop(), self._target
        near = self._proxy or target
        if near.scheme not in _PORTS:
            raise ValueError(f"{near.scheme} is no protocol that requests are sent by")
        context = _tls_context() if near.scheme == "https" else None
        host, port = near.hostname or "", near.port or _PORTS[near.scheme]
        connected = await _connect(host, port)
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self),
                sock=connected,
                ssl=context,
                server_hostname=host if context else None,
            )
        except BaseException:
            connected.close()
            raise
        if self._proxy is not None and target.scheme == "https":
            try:
                await self._tunnel(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _tunnel(self, connection: Connection) -> None:
        """Have a proxy connect to the host, and begin TLS with that."""
        host = self._target.hostname or ""
        where = f"{f'[{host}]' if ':' in host else host}:{self._target.port or _PORTS['https']}"
        credentials = self._proxy_credentials()
        authorization = f"Proxy-Authorization: {credentials}\r\n" if credentials else ""
        head = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{authorization}\r\n"
        await connection.begin_tls(head.encode("latin-1"), _tls_context(), host)

    def _proxy_credentials(self) -> str:
        if self._proxy is None or self._proxy.username is None:
            return ""
        name, word = unquote(self._proxy.username), unquote(self._proxy.password or "")
        return "Basic " + b64encode(f"{name}:{word}".encode()).decode()


async def _connect(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of a host that answers. The next one is tried when one
    fails or takes long: a host may have addresses that cannot be reached from here."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    untried = _interleaved(found)
    tasks: set[asyncio.Task[socket.socket]] = set()
    errors: list[BaseException] = []
    try:
        while untried or tasks:
            if untried:
                tasks.add(asyncio.create_task(_connect_to(*untried.pop(0))))
            done, tasks = await asyncio.wait(
                tasks, timeout=_STAGGER_S if untried else None, return_when=asyncio.FIRST_COMPLETED
            )
            errors += [error for task in done if (error := task.exception()) is not None]
            connected = [task.result() for task in done if task.exception() is None]
            for other in connected[1:]:
                other.close()
            if connected:
                return connected[0]
        raise errors[0]
    finally:
        errors.clear()
        for task in tasks:
            task.cancel()
            task.add_done_callback(_close_connected)  # one may be connected by now


def _close_connected(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _interleaved(found: Sequence[Any]) -> list[tuple[int, Any]]:
    """The families and addresses of a host, the families in turn, in the order of the resolver."""
    addresses = [(family, address) for family, _, _, _, address in found]
    first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    pairs = zip_longest(first, others)
    return [each for pair in pairs for each in pair if each is not None]


async def _connect_to(family: int, address: Any) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, address)
    except BaseException:
        connected.close()
        raise
    return connected


def header_lines(headers: Mapping[str, str]) -> str:
    """Headers as they are sent. Raises ``ValueError`` if one of them would be more than a header."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not len(headers) == lines.count("\r") == lines.count("\n") or "\0" in lines:
        raise ValueError("a header with a line end in it")
    return lines


def _host_header(target: SplitResult) -> str:
    host = target.netloc.rpartition("@")[2]
    with suppress(UnicodeError):
        host = host.encode("idna").decode() if not host.isascii() else host
    return host


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
