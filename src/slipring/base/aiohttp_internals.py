"""Every undocumented part of aiohttp that slipring depends on.

Other modules use the functions and classes below instead of reaching into aiohttp themselves.
``tests/base/test_aiohttp_internals.py`` asserts each assumption directly, so a release of aiohttp that
breaks one fails there first.
"""

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from aiohttp import ClientWebSocketResponse, web
from aiohttp.http import HttpProcessingError, RawRequestMessage
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.http_parser import DeflateBuffer

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
_EMPTY_PONG = bytes((0x8A, _MASKED))
"""The header of a pong without a payload, before its mask."""
_EMPTY_PONG_BYTES = _SHORT_HEAD + _MASK_BYTES


class ServerProtocol(web.RequestHandler):
    """aiohttp's server-side HTTP protocol with hooks around responses and control of reading.

    What it uses of ``RequestHandler`` that is not documented, and why:

    - ``finish_response``, called for every response: no documented hook runs once a response has been sent,
      from when on its client has to send the next request in time.
    - ``handle_error``, called for every request that is not HTTP or that raised: aiohttp's answer is not in
      the API's shape, and may repeat what the client sent.
    - ``_headers_buf`` and ``output_size`` of a request's writer, the head of a response until it is sent and
      the bytes that were sent: behind the head of one response, no other may follow.
    - ``_messages``, requests whose handler has not started: the limit on the size of a head must not count a
      body that arrives with it.
    - ``_lingering_time``: a constructor's option, here decided for a single request.
    - ``_reading_paused``, ``_buffer_paused`` and ``_resume_transport_reading``, by which alone aiohttp
      resumes a transport: it would otherwise resume one that ``fair_reading`` holds.
    - ``set_parser``, called with the reader of a WebSocket, which then gets all data as ``_payload_parser``:
      ``MaskCheck`` must see every frame, those included that arrive with the request for the upgrade.
    - ``_upgraded`` and ``_parser``, not used after an upgrade: 800 bytes of an idle socket's 20 KiB.
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


def transport_of(ws: ClientWebSocketResponse) -> asyncio.Transport | None:
    """The transport of a client's WebSocket; None if it is lost. Closing the WebSocket leaves it open until
    the peer has read all that was sent."""
    connection = ws._response.connection
    return None if connection is None else connection.transport


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


def is_no_http(error: BaseException) -> bool:
    """Whether an exception says that a server did not answer in HTTP."""
    return isinstance(error, HttpProcessingError)


def is_client_fault(error: BaseException | None) -> bool:
    """Whether an exception that aiohttp logs was caused by what a client sent, or by its disconnect."""
    if isinstance(error, RuntimeError) and str(error) == _CLOSED_WHILE_READING:
        return True
    return isinstance(error, HttpProcessingError | web.RequestPayloadError)
