"""One HTTP connection: aiohttp's protocol, with limits and with errors in the API's shape.

It reports to ``Connections`` when a request begins and ends, when its client does not read, and how much of a
WebSocket message has arrived. Malformed HTTP gets an error in the API's shape.
"""

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from slipring.base.aiohttp_internals import ServerProtocol, is_client_fault, observe_requests, protocol_of
from slipring.base.errors import ApiError, InvalidRequest, ServerError
from slipring.protocol.wire import encode
from slipring.server.connections.fair_reading import LARGE_READ_BYTES, FairReading
from slipring.server.connections.open_connections import Connections
from slipring.server.connections.request_bodies import RequestTimeout, refusal_of
from slipring.server.connections.slow_clients import ConnectionState
from slipring.server.endpoints.replies import LargeBody, add_standard_headers, error_response

_MAX_HEAD_BYTES = 128 * 1024
"""Limit for a request's line and headers together. aiohttp limits each of them and their number only."""
_WRITE_BUFFER_BYTES = 16 * 1024
_Int = struct.Struct("i")
_CONTROL_HEAD_BYTES = 6
"""Size of the header of a client's control frame: two bytes and a mask."""


class HeadTooLarge(InvalidRequest):
    """The line and headers of a request exceed the limit."""

    status = 431
    code = "headers_too_large"


class HttpConnection(ServerProtocol):
    """Serves the requests of one client."""

    __slots__ = (
        "_connections",
        "_drained",
        "_head_bytes",
        "_is_aborted",
        "_is_refused",
        "_turns",
        "_waiting_bytes",
        "_wire",
        "close_socket",
        "heard_at",
        "is_paused",
        "is_surplus",
        "queued_bytes",
        "state",
        "tenant",
        "unfinished_bytes",
    )

    def __init__(
        self, server: web.Server, connections: Connections, turns: FairReading, **options: Any
    ) -> None:
        super().__init__(server, **options)
        self.tenant: str | None = None
        self.state = ConnectionState.SERVING
        self.is_surplus = False
        self.unfinished_bytes = 0
        self.queued_bytes: Callable[[], int] | None = None
        """Returns the size of the transport's outgoing queue above this connection, if there is one."""
        self._waiting_bytes: Callable[[], int] | None = None
        self.close_socket: Callable[[int, str], None] | None = None
        """Closes the WebSocket, once the connection has been upgraded to one, and drops the message that is
        being received."""
        self.heard_at = 0.0
        """When the client of a WebSocket last sent anything, on the event loop's clock."""
        self._connections = connections
        self._turns = turns
        self._head_bytes = 0
        self.is_paused = False
        """Whether more waits to be sent than the client reads."""
        self._drained: asyncio.Future[None] | None = None
        """Done when that changes, or the connection is lost; None if nothing waits for it."""
        self._is_aborted = self._is_refused = False
        self._wire: asyncio.Transport | None = None
        """The transport until the connection is lost; aiohttp drops its own when it begins to close."""

    # The interface of ``slow_clients.TrackedConnection``.

    @property
    def unsent_bytes(self) -> int:
        return self._wire.get_write_buffer_size() if self._wire is not None else 0

    @property
    def undelivered_bytes(self) -> int:
        if self._wire is None or (sock := self._wire.get_extra_info("socket")) is None:
            return self.unsent_bytes
        return self.unsent_bytes + unacknowledged_bytes(sock.fileno())

    @property
    def unread_bytes(self) -> int:
        return self.unsent_bytes + (self.queued_bytes() if self.queued_bytes is not None else 0)

    def abort(self) -> None:
        self._is_aborted = True
        if self._wire is not None:
            self._wire.abort()

    def expire(self) -> None:
        self._reject(RequestTimeout("The head of the request did not arrive in time."))

    def refuse_message(self, code: int, reason: str) -> None:
        self._is_refused = True
        if self.close_socket is not None:
            self.close_socket(code, reason)
        else:
            self.abort()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast(asyncio.Transport, transport)
        # Above this mark the client counts as one that does not read.
        wire.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        super().connection_made(transport)
        if self._is_aborted:
            wire.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire = None
        self._end_pause()
        self._connections.closed(self)
        super().connection_lost(exc)
        self.queued_bytes = self.close_socket = self._waiting_bytes = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_paused = True
        self._connections.slow_clients.paused(self)

    def resume_writing(self) -> None:
        self._connections.slow_clients.resumed(self)
        self._end_pause()
        super().resume_writing()

    def _end_pause(self) -> None:
        self.is_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def data_received(self, data: bytes) -> None:
        if self.close_socket is not None:
            self._frames_received(data)
        else:
            super().data_received(data)
            if self.state is not ConnectionState.SERVING and data:
                self._head_received(len(data))
        if len(data) >= LARGE_READ_BYTES:
            self._turns.read(self, len(data))

    def _frames_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if self.is_empty_pong(data):
            return  # the answer to a ping; waking the reader for it would take most of what a ping costs
        super().data_received(data)
        if self._is_refused:
            return  # nothing of it is kept
        self.unfinished_bytes += len(data)
        if self._waiting_bytes is not None:
            # Messages that were deflated are counted as they are in memory.
            self.unfinished_bytes = max(self.unfinished_bytes, self._waiting_bytes())
        self._connections.unfinished.received(self)

    def _head_received(self, size_bytes: int) -> None:
        """Count the bytes of a request's head, and refuse one that is too large."""
        self._connections.request_begins(self)
        self._head_bytes += size_bytes
        if self.has_queued_request:
            self._head_bytes = 0  # the head is complete, and its handler is about to start
        elif self._head_bytes > _MAX_HEAD_BYTES:
            self._connections.closed(self)
            self._reject(HeadTooLarge("The headers of the request are too large."))

    # The messages of a WebSocket.

    def become_socket(
        self,
        queued_bytes: Callable[[], int],
        close_socket: Callable[[int, str], None],
        waiting_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Count received bytes as WebSocket messages from now on. ``queued_bytes`` returns the size of the
        outgoing queue; ``close_socket`` closes the WebSocket with a code and a reason, and drops the message
        that is being received. ``waiting_bytes``, of a socket with compression, returns the inflated size of
        the messages that wait to be read."""
        self.queued_bytes, self.close_socket = queued_bytes, close_socket
        self._waiting_bytes = waiting_bytes
        self.heard_at = asyncio.get_running_loop().time()

    def control_frame_received(self, payload_bytes: int) -> None:
        """A ping or a pong was read: its bytes are not part of the message that is being received."""
        self.unfinished_bytes -= payload_bytes + _CONTROL_HEAD_BYTES
        if self.unfinished_bytes <= 0:
            self._connections.unfinished.completed(self)

    def message_received(self) -> None:
        """A whole message was read."""
        self._connections.unfinished.completed(self)
        if self._is_refused:
            return
        if self._waiting_bytes is not None and (waiting := self._waiting_bytes()):
            self.unfinished_bytes = waiting  # those behind it may have been inflated just now
            self._connections.unfinished.received(self)

    def queue_grew(self) -> None:
        """The outgoing queue has exceeded its limit."""
        self._connections.slow_clients.measure(self)

    def force_close(self) -> None:
        super().force_close()
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        """Have the registry check whether the client reads the rest: no later write will show it, and closing
        waits until everything has been sent."""
        if self.unsent_bytes:
            self._connections.slow_clients.watch(self)

    # Writing past aiohttp: what an outbox sends.

    def write(self, data: bytes) -> Awaitable[None] | None:
        """Write to the transport. Returns None while the client keeps up, and otherwise an awaitable that
        waits for it. Raises ``ConnectionResetError`` if the connection is closing."""
        if self._wire is None or self._wire.is_closing():
            raise ConnectionResetError("the connection is closing")
        self._wire.write(data)
        return self.drained() if self.is_paused else None

    async def drained(self) -> None:
        """Wait until the client has read enough. Raises ``ConnectionResetError`` if the connection is lost.
        One task may wait at a time."""
        if self.is_paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._wire is None:
            raise ConnectionResetError("the connection is lost")

    # Requests.

    def head_complete(self) -> None:
        """The handler of a request is about to start."""
        self._head_bytes = 0
        self._connections.serving(self)

    def prepare_response(self, request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
        if isinstance(response, web.HTTPException):
            # Raised before the application was called, with a text that repeats what the client sent.
            response = _library_error_response(response)
        if response.status == RequestTimeout.status or "Content-Encoding" in request.headers:
            # The rest of the body does not arrive, or would be decompressed only to be dropped.
            self.stop_lingering()
            if not request.content.is_eof():
                # aiohttp closes the connection then. A client that does not know would use it once more.
                response.force_close()
        if isinstance(response, web.Response) and isinstance(response.body, LargeBody):
            response.body.connection = self
        return response

    def cut_off(self) -> None:
        self.abort()  # closing would wait for a client that does not read

    def response_sent(self) -> None:
        self._connections.served(self)
        self._watch_unsent()

    def respond_to_error(self, status: int, exc: BaseException | None) -> web.StreamResponse:
        """The response to malformed HTTP. It does not repeat what was sent, which may contain a key."""
        if isinstance(exc, ConnectionError) and (self._wire is None or self._wire.is_closing()):
            raise ConnectionError("the client has disconnected") from exc
        if status != 400:
            self.log_exception("a request failed unexpectedly", exc_info=exc)
            error: ApiError = ServerError()
        elif (refusal := refusal_of(exc)) is not None:
            error = refusal
        else:
            error = InvalidRequest("The request is not valid HTTP.", code="invalid_http")
        response = error_response(error)
        add_standard_headers(response.headers)
        response.force_close()
        return response

    def _reject(self, error: ApiError) -> None:
        """Send an error for a request whose head is not complete, and close; abort if it cannot be sent at
        once."""
        transport = self._wire
        if transport is None or transport.is_closing() or not self._head_bytes or self.unsent_bytes:
            self.abort()
            return
        transport.write(_raw_response(error))
        if self.unsent_bytes:
            self.abort()
        else:
            self.force_close()


def unacknowledged_bytes(descriptor: int) -> int:
    """Bytes in the kernel's send queue: written to a TCP socket, and not acknowledged by the other side. 0
    where the system does not report them: Linux does."""
    try:
        answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_Int.size))
    except OSError:
        return 0
    (size,) = _Int.unpack(answer)
    return int(size)


def _library_error_response(refusal: web.HTTPException) -> web.Response:
    """An error that aiohttp raised itself, in the API's shape."""
    error = InvalidRequest(f"The request is not valid: {refusal.reason}.", code="invalid_http")
    error.status = refusal.status
    response = error_response(error)
    response.force_close()
    return response


def _raw_response(error: ApiError) -> bytes:
    """An error as the bytes of an HTTP response, for a connection without a parsed request."""
    body = encode(
        {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}
    )
    head = (
        f"HTTP/1.1 {error.status} {error.code}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def http_logger() -> logging.Logger:
    """The logger for aiohttp, which drops errors that clients cause.

    Malformed HTTP would otherwise fill the log with tracebacks and with text chosen by the client.
    """
    logger = logging.getLogger("slipring.http")
    logger.addFilter(_is_our_fault)
    return logger


def _is_our_fault(record: logging.LogRecord) -> bool:
    return not is_client_fault(record.exc_info[1] if record.exc_info else None)


def connection_factory(
    server: web.Server, connections: Connections, **options: Any
) -> Callable[[], HttpConnection]:
    """A function that creates connections whose requests ``server`` handles; ``options`` are aiohttp's."""
    observe_requests(server, HttpConnection.head_complete)
    loop = asyncio.get_running_loop()
    turns = FairReading(loop)
    return lambda: HttpConnection(server, connections, turns, loop=loop, **options)


def connection_of(request: web.BaseRequest) -> HttpConnection:
    """The connection that a request arrived on."""
    connection = protocol_of(request)
    assert isinstance(connection, HttpConnection)
    return connection
