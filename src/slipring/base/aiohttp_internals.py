"""Every undocumented part of aiohttp that slipring depends on.

Other modules use the functions and classes below instead of reaching into aiohttp themselves.
``tests/base/test_aiohttp_internals.py`` asserts each assumption directly, so a release of aiohttp that
breaks one fails there first.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiohttp import (
    BaseConnector,
    ClientConnectionError,
    ClientPayloadError,
    ClientRequest,
    ClientSession,
    ConnectionTimeoutError,
    StreamReader,
    hdrs,
    web,
)
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.helpers import set_exception, set_result
from aiohttp.http import HttpProcessingError, RawRequestMessage, RawResponseMessage
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.http_parser import DeflateBuffer
from aiohttp.http_writer import _serialize_headers
from aiohttp.payload import Payload
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

_CLOSED_WHILE_READING = "Connection closed."
"""Text of the ``RuntimeError`` that aiohttp raises when a client disconnects while aiohttp reads the rest of
a refused body."""

_MASKED = 0x80
"""In the second byte of a frame: a mask follows."""
_MASK_BYTES = 4
_SHORT_HEAD = 2
"""Size of a frame's header without its mask."""
_HEADS = {126: 4, 127: 10}
"""The same for long frames, by the length in the second byte."""
_RESERVED_BITS = bytes((0x70, _MASKED))
"""The header of a frame that no extension allows."""
_FINAL_STATUS = 200
"""An answer with a lower status announces another one."""
_EMPTY_PONG = bytes((0x8A, _MASKED))
"""The header of a pong without a payload, before its mask."""
_EMPTY_PONG_BYTES = _SHORT_HEAD + _MASK_BYTES


class SeparateWaits(BaseProtocol):
    """A protocol whose writers wait for a slow peer independently of each other.

    In aiohttp they share one future: a writer that is cancelled while it waits cancels the future, and until
    writing resumes, every other writer of the connection gets a ``CancelledError`` too, although nothing has
    cancelled its task. Relies on aiohttp waiting by ``_drain_helper`` only, and on ``resume_writing`` and
    ``connection_lost`` ending the wait of ``_drain_waiter``.
    """

    __slots__ = ()

    async def _drain_helper(self) -> None:
        if not self._paused or self.transport is None:
            await super()._drain_helper()
            return
        if self._drain_waiter is None:
            self._drain_waiter = self._loop.create_future()
        await asyncio.shield(self._drain_waiter)


class ServerProtocol(SeparateWaits, web.RequestHandler):
    """aiohttp's server-side HTTP protocol with hooks around responses and access to its request queue.

    Relies on ``RequestHandler`` calling ``finish_response`` for every response, ``handle_error`` for every
    request that is not HTTP or that raised, ``set_parser`` with the reader of a WebSocket, which then gets
    all data, on ``_parser`` not being used afterwards, and on its attributes ``_messages``,
    ``_payload_parser``, ``_reading_paused``, ``_buffer_paused``, ``_upgraded`` and ``_lingering_time``; on
    resuming the transport by ``_resume_transport_reading`` only; and on a request's writer having the head of
    a response in ``_headers_buf`` until it sends it, and counting in ``output_size`` what it has sent.
    """

    __slots__ = ("_is_held",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_held = False

    @property
    def has_queued_request(self) -> bool:
        """Whether the head of a request has been parsed that no handler has been started for."""
        return bool(self._messages)

    def is_empty_pong(self, data: bytes) -> bool:
        """Whether data of a WebSocket is one pong without a payload, and nothing else."""
        if len(data) != _EMPTY_PONG_BYTES or not data.startswith(_EMPTY_PONG):
            return False
        check = self._payload_parser
        return isinstance(check, MaskCheck) and check.is_between_frames

    @property
    def is_reading_paused(self) -> bool:
        """Whether nothing is read from the transport: too much that was read has not been used, or the
        reading is held."""
        return self._reading_paused or self._is_held

    def hold_reading(self) -> None:
        """Read nothing from the transport until ``release_reading``, whatever aiohttp resumes meanwhile."""
        self._is_held = True
        self._pause_transport_reading()

    def release_reading(self) -> None:
        """End ``hold_reading``. Nothing is read before aiohttp can use it."""
        self._is_held = False
        if not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        if not self._is_held:
            super()._resume_transport_reading()

    def when_writable(self) -> Awaitable[None] | None:
        """An awaitable that waits until the transport is below its high-water mark; None if it is. Raises
        ``ConnectionError`` if the connection is lost meanwhile."""
        return self._drain_helper() if self._paused else None

    def stop_lingering(self) -> None:
        """Do not read the rest of the current request's body after the response has been sent."""
        self._lingering_time = 0.0

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        checked: Any = MaskCheck(parser)
        super().set_parser(checked, data_received_cb)
        if self._upgraded:
            self._parser = None  # it has read its last request, and takes 800 bytes of every idle connection

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if not resp.prepared:
            self._require_no_head(request)
        finished = await super().finish_response(request, self.prepare_response(request, resp), start_time)
        self.response_sent()
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        response = self.respond_to_error(status, exc)
        self._require_no_head(request)
        return response

    def _require_no_head(self, request: web.BaseRequest) -> None:
        """Cut the connection off, and raise ``ConnectionError``, if the request has got the head of a
        response: no other response can follow, so the client must see that this one does not end."""
        writer: Any = request.writer
        if writer.output_size > 0 or writer._headers_buf is not None:
            self.cut_off()
            raise ConnectionError("a part of the response has been sent already")

    def cut_off(self) -> None:
        """Called when a response that has begun cannot be finished: disconnects the client."""
        raise NotImplementedError

    def prepare_response(self, request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
        """Called before each response is sent; returns the response to send."""
        return response

    def response_sent(self) -> None:
        """Called after each response has been written to the transport."""

    def respond_to_error(self, status: int, exc: BaseException | None) -> web.StreamResponse:
        """Called for a malformed request (``status`` 400) and for an exception that no middleware caught;
        returns the response to send, or raises ``ConnectionError`` to send none."""
        raise NotImplementedError


class MaskCheck:
    """The reader of a server's WebSocket, which also requires that clients mask their frames (RFC 6455, 5.1).

    aiohttp accepts frames without a mask. In place of the first one, its reader is given a frame with
    reserved bits, for which it closes the socket with the code that is due: 1002.
    """

    __slots__ = ("_held", "_left", "_reader")

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._held = b""
        """The beginning of a frame's header, until it is complete."""
        self._left = 0
        """Bytes of the current frame that have not arrived."""

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte is the first of a frame."""
        return not self._left and not self._held

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take data of the client; returns whether the socket is to be closed, and what was not read."""
        if self._held:
            data = self._held + data
            self._held = b""
        size, start = len(data), self._left
        while start + _SHORT_HEAD <= size:
            flags = data[start + 1]
            if not flags & _MASKED:
                self._reader.feed_data(data[:start])
                data, start = _RESERVED_BITS, sys.maxsize
                break
            head = _HEADS.get(flags & ~_MASKED, _SHORT_HEAD)
            if start + head > size:
                break
            length = (
                flags & ~_MASKED if head == _SHORT_HEAD else int.from_bytes(data[start + 2 : start + head])
            )
            start += head + _MASK_BYTES + length
        if start < size:
            data, self._held = data[:start], data[start:]
        self._left = max(start - size, 0)
        fed: tuple[bool, bytes] = self._reader.feed_data(data)
        return fed

    def feed_eof(self) -> None:
        self._reader.feed_eof()


class _DroppedData:
    """In place of a WebSocket's reader: takes data and keeps none."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        return False, b""

    def feed_eof(self) -> None:
        self._queue.feed_eof()


def _known_encodings() -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the content encodings that aiohttp decodes here, and the messages of its errors for the others
    that it knows, which need packages that are not installed."""
    decoded, refusals = [], set()
    for encoding in ("gzip", "deflate", "br", "zstd"):
        out: Any = SimpleNamespace()
        try:
            DeflateBuffer(out, encoding)
        except ContentEncodingError as error:
            refusals.add(error.message)
        else:
            decoded.append(encoding)
    return tuple(decoded), frozenset(refusals)


DECODED, _REFUSALS = _known_encodings()
"""``DECODED``: the values of ``Content-Encoding`` whose bodies aiohttp decodes. It refuses a request whose
encoding it knows and cannot decode, and passes on bodies with other encodings as they are."""


def is_undecoded(error: BaseException | None) -> bool:
    """Whether aiohttp refused a request because of an encoding that it cannot decode here."""
    return isinstance(error, ContentEncodingError) and error.message in _REFUSALS


def is_undecodable(error: BaseException | None) -> bool:
    """Whether aiohttp refused a request because its body is not what its encoding says."""
    return isinstance(error, ContentEncodingError) and error.message not in _REFUSALS


def observe_requests(server: web.Server, on_request: Callable[[Any], None]) -> None:
    """Call ``on_request`` with the protocol instance each time a request's handler is about to start.

    Replaces ``Server.request_factory``, which ``RequestHandler`` copies when it is created.
    """
    make_request = server.request_factory

    def begin(
        message: RawRequestMessage, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        on_request(protocol)
        return make_request(message, payload, protocol, writer, task)

    server.request_factory = begin


def protocol_of(request: web.BaseRequest) -> object:
    """The protocol instance that received a request."""
    return request.protocol


def waiting_bytes_of(socket: web.WebSocketResponse) -> Callable[[], int]:
    """A function that returns the size of the messages that have arrived on an accepted socket and were not
    received yet, inflated if they were compressed.

    Relies on ``WebSocketResponse._reader``, a queue that has their size as ``_size``, and on aiohttp's reader
    parsing no further message once there are some 128 KiB: before version 3.14.4, it inflated all messages of
    a read.
    """
    queue: Any = socket._reader
    assert queue is not None, "not accepted"
    return lambda: int(queue._size)


def drop_messages(socket: web.WebSocketResponse) -> None:
    """Free what an accepted socket has of a message that is not complete, and drop all that its client sends
    from now on. Messages that are complete can still be received.

    Relies on the reader being kept by the protocol and as ``WebSocketResponse._parser`` only, and on one that
    is stalled having to live until the messages before what it has not parsed are received.
    """
    protocol: Any = socket._req.protocol if socket._req is not None else None
    queue: Any = socket._reader
    if protocol is None or protocol._payload_parser is None:
        return  # the connection is lost
    protocol._payload_parser = _DroppedData(queue)
    if queue._stalled_reader is None:
        socket._parser = None


class StreamedResponse(web.StreamResponse):
    """A response whose headers are sent together with the first part of its body, like those of
    ``web.Response``. Relies on the attribute by which aiohttp tells the two apart."""

    _send_headers_immediately = False


def fail_read(content: StreamReader, error: BaseException) -> None:
    """Make the pending read of a stream, and all later ones, raise ``error``."""
    content.set_exception(error)


class StreamProtocol(SeparateWaits, ResponseHandler):
    """aiohttp's client-side HTTP protocol, which can call a function after each read of its socket.

    A read may bring several chunks of a body; aiohttp tells of each by itself. Relies on connectors making
    protocols by their ``_factory``, and on ``set_exception`` being called if what arrives is not HTTP:
    aiohttp then closes the connection, but does not tell the task that reads the body, which would wait on.
    """

    on_read: Callable[[], None] | None = None

    @staticmethod
    def use_in(connector: BaseConnector) -> None:
        """Let a connector make protocols of this class."""
        factory: Any = partial(StreamProtocol, loop=connector._loop)
        connector._factory = factory

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.on_read is not None:
            self.on_read()

    def set_exception(self, exc: Any, *cause: Any) -> None:
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(ClientPayloadError(exc.message))


class PieceReader(StreamReader):
    """A response's ``StreamReader`` for a body that is read as it comes, by ``read_pieces`` only.

    A stream of tokens has a chunk of HTTP for each, and aiohttp keeps where every chunk ends and resumes the
    transport after every read. Neither is needed here, and both cost more than the rest of a read. ``adopt``
    turns the reader of a response, which aiohttp makes, into this class: relies on ``StreamReader`` having
    all of its attributes in ``__slots__``, and on aiohttp's parser calling ``feed_data`` and the two methods
    about chunks by name.
    """

    __slots__ = ()

    _protocol: "StreamProtocol"

    @staticmethod
    def adopt(content: StreamReader) -> "PieceReader":
        content.__class__ = PieceReader
        assert isinstance(content, PieceReader)
        content._http_chunk_splits = None
        return content

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        self._size += len(data)
        self._buffer.append(data)
        self.total_bytes += len(data)
        waiter = self._waiter
        if waiter is not None and self._protocol.on_read is None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        if self._size > self._high_water:
            self._protocol.pause_reading()
        return False

    def begin_http_chunk_receiving(self) -> None:
        """A chunk begins."""

    def end_http_chunk_receiving(self) -> None:
        """A chunk ends."""

    async def read_pieces(self) -> bytes:
        """Wait for more of the body and return all that has arrived; empty at its end."""
        buffer = self._buffer
        while not buffer and not self._eof:
            if self._exception is not None:
                raise self._exception
            if not self._protocol.connected:
                raise ClientConnectionError("the connection is closed")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._exception is not None:
            raise self._exception
        data = self._take()
        if self._protocol._reading_paused:
            self._protocol.resume_reading()
        return data

    def _take(self) -> bytes:
        """All that has arrived and was not read."""
        buffer = self._buffer
        data = buffer.popleft() if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._cursor += self._size
        self._size = 0
        return data

    async def push_pieces(self, take: Callable[[bytes], bool]) -> None:
        """Call ``take`` with what arrives, from within each read of the socket, until it returns False, the
        body ends or the read fails. All that had arrived before must have been read.

        No task is resumed for a piece: that takes longer than most of what is done with a token. Raises what
        ``take`` raises. What arrives after the last call is left to ``read_pieces``. ``take`` may cancel the
        task that waits here: aiohttp's helpers leave a future alone that is done already.
        """
        if self._buffer or self._eof or self._exception is not None:
            return
        ended = self._waiter = self._loop.create_future()

        protocol, is_taking = self._protocol, False

        def on_read() -> None:
            nonlocal is_taking
            if is_taking:
                return  # called by ``resume_reading``; the loop below goes on with what that has brought
            is_taking = True
            try:
                while self._buffer and not ended.done():
                    if not take(self._take()):
                        protocol.on_read = None
                        set_result(ended, None)
                    elif protocol._reading_paused:
                        protocol.resume_reading()
            except Exception as error:
                protocol.on_read = None
                set_exception(ended, error)
            is_taking = False

        protocol.on_read = on_read
        try:
            await ended
        finally:
            self._waiter = None
            if protocol.on_read is on_read:  # the connection may be another answer's by now
                protocol.on_read = None


def is_no_http(error: BaseException) -> bool:
    """Whether an exception says that a server did not answer in HTTP."""
    return isinstance(error, HttpProcessingError)


def is_client_fault(error: BaseException | None) -> bool:
    """Whether an exception that aiohttp logs was caused by what a client sent, or by its disconnect."""
    if isinstance(error, RuntimeError) and str(error) == _CLOSED_WHILE_READING:
        return True
    return isinstance(error, HttpProcessingError | web.RequestPayloadError)


class MemoryPayload(Payload):
    """A request body in memory: of known size, sent again on a retry, with nothing to close.

    Without ``_autoclose`` aiohttp warns about an unclosed payload.
    """

    _autoclose = True

    def __init__(self, value: Any, *, size_bytes: int, content_type: str) -> None:
        super().__init__(value, content_type=content_type)
        self._size = size_bytes


class PostedAnswer:
    """The answer to a request of ``JsonPosts``, with the part of ``ClientResponse``'s interface that reading
    it takes. Owns its connection, which returns to the pool at the end of the body."""

    __slots__ = ("_connection", "content", "headers", "reason", "status")

    def __init__(self, connection: Connection, message: RawResponseMessage, content: StreamReader) -> None:
        self._connection = connection
        self.status = message.code
        self.reason: str | None = message.reason
        self.headers: CIMultiDictProxy[str] = message.headers
        self.content = content
        # Not a method: a body that never ends keeps its callbacks, and so would keep this object.
        content.on_eof(partial(_release, connection))

    def release(self) -> None:
        """Return the connection to the pool, or close it if the body has not ended. May be called twice."""
        _release(self._connection)


def _release(connection: Connection) -> None:
    transport = connection.transport
    if transport is not None and transport.get_write_buffer_size():
        connection.close()  # the server has answered before it read the whole request
    else:
        connection.release()


class JsonPosts:
    """Posts JSON to one URL over the pooled connections of a session.

    ``ClientSession.post`` takes three times as long for a request over a kept connection: it prepares
    redirects, cookies, authentication, proxies, timers and traces. Here is none of these, so a redirect is an
    answer like any other. Relies on ``BaseConnector.connect`` using only a request's address, on the protocol
    of a connection reading a response after ``set_response_params``, and on ``_serialize_headers``. The
    headers are those that ``ClientRequest`` would send.
    """

    def __init__(self, session: ClientSession, url: str) -> None:
        self._session = session
        address = ClientRequest("POST", URL(url), headers=session.headers, loop=session._loop)
        self._address = address
        self._start_line = f"POST {address.url.raw_path_qs} HTTP/1.1"
        address.headers[hdrs.CONTENT_TYPE] = "application/json"

    async def send(self, pieces: Sequence[bytes], headers: Mapping[str, str] | None) -> PostedAnswer:
        """Send a body, all of it at once, and wait for the head of the answer."""
        sent = CIMultiDict(self._address.headers)
        sent[hdrs.CONTENT_LENGTH] = str(sum(map(len, pieces)))
        sent.update(headers or {})
        head = _serialize_headers(self._start_line, sent)
        session = self._session
        assert session.connector is not None
        try:
            connection = await session.connector.connect(self._address, traces=[], timeout=session.timeout)
        except TimeoutError as error:
            raise ConnectionTimeoutError("connecting timed out") from error
        try:
            return await self._exchange(connection, [head, *pieces])
        except HttpProcessingError as error:
            connection.close()
            raise ClientPayloadError(error.message) from error
        except BaseException:
            connection.close()
            raise

    async def _exchange(self, connection: Connection, pieces: list[bytes]) -> PostedAnswer:
        session, protocol, transport = self._session, connection.protocol, connection.transport
        assert protocol is not None
        if transport is None:
            raise ClientConnectionError("the connection is closed")
        protocol.set_response_params(
            read_until_eof=True,
            read_timeout=session.timeout.sock_read,
            read_bufsize=session._read_bufsize,
            max_line_size=session._max_line_size,
            max_field_size=session._max_field_size,
        )
        transport.writelines(pieces)
        protocol.start_timeout()
        while True:
            message, content = await protocol.read()
            if message.code >= _FINAL_STATUS:
                return PostedAnswer(connection, message, content)
