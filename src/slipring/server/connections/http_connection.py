"""One HTTP connection as aiohttp serves it, with what aiohttp leaves out.

It reports to ``Connections`` when a request begins and ends, when its client does not read and when a message
comes bit by bit, and answers what is not HTTP in the API's shape. This module and ``acceptor`` are the only
ones that rely on how aiohttp's ``RequestHandler`` works inside; their tests fail when that changes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage

from slipring.errors import ApiError, InvalidRequest, ServerError
from slipring.protocol.wire import encode
from slipring.server.connections.registry import Connections, Stage
from slipring.server.connections.response_headers import sign
from slipring.server.endpoints.replies import error_response

_MOST_HEAD_BYTES = 128 * 1024
"""Of a request's line and headers. aiohttp bounds each of them and their number, but not the sum."""
_TOGETHER_BYTES = 16 * 1024
_CONTROL_HEAD_BYTES = 6
"""The head of a client's control frame: two bytes and a mask."""


class RequestTimeout(InvalidRequest):
    """A request did not come within its deadline."""

    status = 408
    code = "request_timeout"


class HeadTooLarge(InvalidRequest):
    status = 431
    code = "headers_too_large"


class HttpConnection(web.RequestHandler):
    """Serves the requests of one client."""

    __slots__ = (
        "_connections",
        "_head_bytes",
        "_is_doomed",
        "_wire",
        "close_socket",
        "is_surplus",
        "queued_bytes",
        "stage",
        "tenant",
        "unfinished_bytes",
    )

    def __init__(self, server: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(server, **options)
        self.tenant: str | None = None
        self.stage = Stage.SERVED
        self.is_surplus = False
        self.unfinished_bytes = 0
        self.queued_bytes: Callable[[], int] | None = None
        """What waits to be written, where somebody keeps a queue."""
        self.close_socket: Callable[[int, str], None] | None = None
        """Closes the WebSocket that this connection has become."""
        self._connections = connections
        self._head_bytes = 0
        self._is_doomed = False
        self._wire: asyncio.Transport | None = None
        """The transport until it is really closed; aiohttp lets go of it when it only begins to close."""

    # As ``Connections`` knows it.

    @property
    def unsent_bytes(self) -> int:
        return self._wire.get_write_buffer_size() if self._wire is not None else 0

    @property
    def unread_bytes(self) -> int:
        return self.unsent_bytes + (self.queued_bytes() if self.queued_bytes is not None else 0)

    def abort(self) -> None:
        self._is_doomed = True
        if self._wire is not None:
            self._wire.abort()

    def expire(self) -> None:
        self._reject(RequestTimeout("The head of the request did not come in time."))

    def refuse_message(self, code: int, reason: str) -> None:
        if self.close_socket is not None:
            self.close_socket(code, reason)
        else:
            self.abort()

    # As its transport knows it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast(asyncio.Transport, transport)
        # Small writes of one moment go out together; what is more is unread until the client takes it.
        wire.set_write_buffer_limits(high=_TOGETHER_BYTES)
        super().connection_made(transport)
        if self._is_doomed:
            wire.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire = None
        self._connections.closed(self)
        super().connection_lost(exc)
        self.queued_bytes = self.close_socket = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.paused(self)

    def resume_writing(self) -> None:
        self._connections.resumed(self)
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.close_socket is not None:
            self.unfinished_bytes += len(data)
            self._connections.received(self)
        elif self.stage is not Stage.SERVED and data:
            self._take_head(len(data))

    def _take_head(self, size_bytes: int) -> None:
        """A part of a request's head has come, or all of it."""
        self._connections.request_begins(self)
        self._head_bytes += size_bytes
        if self._messages:
            self._head_bytes = 0  # it is complete, and about to be served
        elif self._head_bytes > _MOST_HEAD_BYTES:
            self._connections.closed(self)
            self._reject(HeadTooLarge("The headers of the request are too large."))

    # The messages of a WebSocket.

    def become_socket(
        self, queued_bytes: Callable[[], int], close_socket: Callable[[int, str], None]
    ) -> None:
        """From now on WebSocket messages come and go; ``queued_bytes`` tells how much waits to be written."""
        self.queued_bytes, self.close_socket = queued_bytes, close_socket

    def control_frame_received(self, payload_bytes: int) -> None:
        """A ping or a pong was read. One may come in the middle of a message."""
        self.unfinished_bytes -= payload_bytes + _CONTROL_HEAD_BYTES
        if self.unfinished_bytes <= 0:
            self._connections.completed(self)

    def message_received(self) -> None:
        """A whole message was read."""
        self._connections.completed(self)

    def queue_grew(self) -> None:
        """More waits to be written than should."""
        self._connections.measure(self)

    def force_close(self) -> None:
        super().force_close()
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        """An answer is over, or the connection is to be closed: nothing more will be written that would show
        whether the client reads, and closing waits until everything is sent."""
        if self.unsent_bytes:
            self._connections.watch(self)

    # Requests.

    def head_complete(self) -> None:
        """A request is about to be served."""
        self._head_bytes = 0
        self._connections.serving(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            # Raised before the application was asked, with a text that repeats what was sent.
            resp = _of_library(resp)
        if resp.status == RequestTimeout.status or "Content-Encoding" in request.headers:
            # What is left of the body does not come, or would be decompressed to be thrown away.
            self._lingering_time = 0.0
        answered = await super().finish_response(request, resp, start_time)
        self._connections.served(self)
        self._watch_unsent()
        return answered

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP. What was sent is not repeated: it may hold a key."""
        if isinstance(exc, ConnectionError) and (self._wire is None or self._wire.is_closing()):
            raise ConnectionError("the client has left") from exc
        if status == 400:
            error: ApiError = InvalidRequest("The request is not valid HTTP.", code="invalid_http")
        else:
            self.log_exception("a request failed unexpectedly", exc_info=exc)
            error = ServerError()
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has been sent already")
        answer = error_response(error)
        sign(answer.headers)
        answer.force_close()
        return answer

    def _reject(self, error: ApiError) -> None:
        """Answer a request that never came, and close."""
        transport = self._wire
        if transport is None or transport.is_closing() or not self._head_bytes or self.unsent_bytes:
            self.abort()
            return
        transport.write(_plain_answer(error))
        if self.unsent_bytes:
            self.abort()
        else:
            self.force_close()


def _of_library(refusal: web.HTTPException) -> web.Response:
    """What aiohttp itself refuses, in the API's shape."""
    error = InvalidRequest(f"The request is not valid: {refusal.reason}.", code="invalid_http")
    error.status = refusal.status
    answer = error_response(error)
    answer.force_close()
    return answer


def _plain_answer(error: ApiError) -> bytes:
    """An error as a whole HTTP answer, for a connection that has no request."""
    body = encode(
        {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}
    )
    head = (
        f"HTTP/1.1 {error.status} {error.code}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def connection_factory(
    server: web.Server, connections: Connections, **options: Any
) -> Callable[[], HttpConnection]:
    """Make connections that are served by ``server``."""
    make_request = server.request_factory

    def begin(
        message: RawRequestMessage, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        assert isinstance(protocol, HttpConnection)
        protocol.head_complete()
        return make_request(message, payload, protocol, writer, task)

    server.request_factory = begin
    loop = asyncio.get_running_loop()
    return lambda: HttpConnection(server, connections, loop=loop, **options)


def connection_of(request: web.BaseRequest) -> HttpConnection:
    """The connection that a request came on."""
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    return connection
