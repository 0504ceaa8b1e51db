"""HTTP/1.1 to the servers of engines: the bytes of an answer as they come, and how a request can fail.

A stream of tokens is one chunk of HTTP after the other, each in a read of its own. Here the read itself calls
the function that takes the bytes (``EventStream``). The clients of libraries resume a task for each read:
with aiohttp's ``readany`` a read takes 26 us of CPU, here 17, and a token takes about 50 in all (uvloop, a
server that sends one event at a time). As a parser below this, h11 takes 11 us for a chunk; httptools takes
0.4 instead of 1.3. That is 2 % of a token, and not worth a dependency: heads, trailers and the rules for
bodies without a length would still have to be bounded and written here.

Answers that one server sends another are read with bounds: the head, the lengths and the chunks of a body.
Bodies are never decoded: requests accept no encoding.

A request that gets no usable answer raises an ``HttpFailure``, which callers translate for operators or
clients.
"""

import asyncio
import errno
import os
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http.client import BadStatusLine, HTTPException, RemoteDisconnected
from typing import Protocol, cast

from slipring.base.connection_failures import reason
from slipring.engines.remote.streamed_answer import Consumer, Patience, Silence, raise_fault

_MOST_AT_ONCE = 2**20
"""Bytes of a request that is written at once. A longer one waits for the server to read it."""
_MOST_UNREAD = 2**16
"""Bytes of a body after which no more is read from the socket until they are taken."""
_LONGEST_HEAD = 2**16
_LONGEST_LINE = 2**10
"""Bytes of the line before a chunk, and of a line behind the last one."""
LONGEST_EVENT = 64 * 2**20
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?:[ \r]|$)")
_USUAL_LENGTH = 10
"""Bytes of the line before a chunk of less than 4 GiB."""
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_NO_BODY = frozenset({204, 304})
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress"})
_SWITCHING, _FINAL = 101, 200
_DONE = b"[DONE]"
BOM = b"\xef\xbb\xbf"
_PAYLOAD = re.compile(rb"^(?:(?:data|error):|(?={))(.*)", re.MULTILINE)
"""The data of events, and errors that servers write as a field of its own, or as a bare line of JSON."""


class HttpFailure(Exception):
    """A request got no usable answer."""


class Unreachable(HttpFailure):
    """No connection could be made, or it broke. The message says why, for operators."""


class ConnectTimedOut(Unreachable):
    """The server did not accept a connection in time."""


class TimedOut(HttpFailure):
    """The server accepted the request and then sent nothing for too long."""


class BadStatus(HttpFailure):
    """The server answered with a status that is no success."""

    def __init__(self, status: int, reason: str, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {reason}".rstrip())
        self.status = status
        self.body = body
        self.headers = headers


class Unreadable(HttpFailure):
    """The answer is not what its content type promises: no JSON, or an event line without end."""


class RedirectedElsewhere(HttpFailure):
    """The server redirects to another host, which is given neither the key nor the context."""

    def __init__(self, host: str) -> None:
        super().__init__(f"it redirects to {host}, which is another host: name that one if it is right")


class CannotConnect(OSError):
    """No connection could be made. The cause says why."""


FAILURES = (HTTPException, OSError)
"""What is raised if a request fails on the way. ``TimeoutError`` is an ``OSError``."""


def failure_of(error: Exception) -> HttpFailure:
    """One of ``FAILURES`` as an ``HttpFailure``."""
    if isinstance(error, CannotConnect) and isinstance(error.__cause__, TimeoutError):
        return ConnectTimedOut("timed out")
    if isinstance(error, TimeoutError):
        return TimedOut("timed out")
    return Unreachable(reason(error))


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
        self._push: Callable[[bytes], bool] | None = None
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
        push, waiter = self._push, self._waiter
        if push is not None and self._chunked and not self._left and not self._rest:
            # Hot path, once per token: a read that is one chunk, with its length as most servers write it.
            start = data.find(b"\r\n", 0, _USUAL_LENGTH) + 2
            size = len(data) - start - 2
            if size > 0 and data.endswith(b"\r\n") and data.startswith(b"%x\r\n" % size):
                data = data[start:-2]
                if waiter is None or waiter.done():  # or cancelled: nothing more is taken
                    self._keep(data)
                elif not push(data):
                    self._wake()
                return
        self._feed(data)
        is_waiting = self._waiter is not None and not self._waiter.done()
        if self._unread and self._push is not None and is_waiting and not self._push(self._take()):
            self._wake()
        if self._push is None or self.is_complete:
            self._wake()

    def _feed(self, data: bytes) -> None:
        """Keep what is body of these bytes."""
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
        body ends. Returns at once if something has come already.

        ``take`` must not raise. It may cancel the task that waits here.
        """
        if self._unread or self.is_complete:
            return
        self._push = take
        try:
            await self._wait()
        finally:
            self._push = None

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


class ConnectionKeeper(Protocol):
    """Keeps connections for later requests."""

    keeps: bool

    def put_back(self, connection: "Connection") -> None:
        """Keep a connection for the next request."""

    def forget(self, connection: "Connection") -> None:
        """A connection has ended."""


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, pool: ConnectionKeeper) -> None:
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


class Payloads:
    """Splits a stream of bytes into the data of server-sent events; ``[DONE]`` ends them."""

    __slots__ = ("_has_begun", "_rest_bytes", "ended", "rest")

    def __init__(self) -> None:
        self.rest: list[bytes] = []
        """The beginning of a line that has not ended, in pieces: it may be an image, and is joined once."""
        self._rest_bytes = 0
        self._has_begun = False
        self.ended = False

    def take(self, chunk: bytes) -> list[bytes]:
        """The payloads that are complete with this chunk."""
        if self._rest_bytes > LONGEST_EVENT:
            raise Unreadable("a line of the stream is too long")
        lines, end, rest = chunk.rpartition(b"\n")
        if not end:
            self.rest.append(chunk)
            self._rest_bytes += len(chunk)
            return []
        if self.rest:
            lines = b"".join([*self.rest, lines])
        if not self._has_begun:
            self._has_begun = True
            lines = lines.removeprefix(BOM)
        # Empty data keeps a connection alive.
        found = [payload for each in _PAYLOAD.findall(lines) if (payload := each.strip())]
        self.rest, self._rest_bytes = [rest] if rest else [], len(rest)
        if _DONE in found:
            self.ended = True
            del found[found.index(_DONE) :]
        return found


class EventStream:
    """Reads the server-sent events of an answer, and gives each batch to its consumer as soon as it has
    arrived, before the event loop does anything else."""

    def __init__(self, answer: Answer, consumer: Consumer[bytes], idle_s: Patience) -> None:
        """``idle_s`` bounds the silence between two reads, not before the first."""
        self._answer = answer
        self._consumer = consumer
        self._payloads = Payloads()
        self._silence = Silence(partial(answer.fail, TimeoutError("silence")), idle_s)
        self._has_read = False
        self._waiting: Awaitable[None] | None = None
        """What has to be awaited before more of the answer is taken."""

    async def read(self) -> None:
        """Read until the answer ends or the consumer has enough. Raises the fault of the consumer."""
        answer, consumer, silence = self._answer, self._consumer, self._silence
        at_end = False
        try:
            while not at_end and not self._has_enough:
                if self._has_read:
                    silence.begins()
                try:
                    await answer.push(self._push)
                    if self._waiting is None and not self._has_enough:
                        # What was not pushed: it has arrived already, or is the end.
                        piece = await answer.read()
                        at_end = not piece
                        self._push(piece or b"\n")  # the last line need not end
                except FAILURES as error:
                    raise failure_of(error) from error
                silence.since = None
                if self._waiting is not None:
                    await self._waiting
                    self._waiting = None
                if consumer.fault is not None:
                    raise_fault(consumer)
        finally:
            silence.forget()

    @property
    def _has_enough(self) -> bool:
        return self._payloads.ended or self._consumer.has_ended

    def _push(self, piece: bytes) -> bool:
        """Give bytes of the answer to the consumer; returns whether it can take more at once."""
        # Hot path: runs once per token of every answer.
        silence, payloads, consumer = self._silence, self._payloads, self._consumer
        silence.since = silence.clock()
        if not self._has_read:
            self._has_read = True
            silence.begins()
        try:
            is_one_line = piece.find(b"\n") == len(piece) - 2 and piece.endswith(b"\n\n")
            if is_one_line and not payloads.rest and piece.startswith(b"data: {"):
                found = [piece[6:-2]]  # one event by itself: most reads of a stream that is generated
            else:
                found = payloads.take(piece)
            if found:
                self._waiting = consumer.take(found)
        except Exception as error:  # a failure of the consumer's, of whatever type, is none of the request's
            consumer.fault, consumer.has_ended = error, True
        return self._waiting is None and not payloads.ended and not consumer.has_ended
