"""HTTP responses with a JSON body: how they are encoded and written, errors in the API's shape, and the
headers that every response carries.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Protocol

from aiohttp import Payload, web
from aiohttp.abc import AbstractStreamWriter

from slipring.base.errors import ApiError
from slipring.protocol import wire
from slipring.protocol.endpoints.translation import RESPONSES, ErrorReply, Translation
from slipring.protocol.events import Error
from slipring.server.random_ids import mint

_REQUEST_ID = web.RequestKey("request_id", str)
_PIECE_BYTES = 256 * 1024
"""Larger bodies are written in pieces of this size."""


class Sending(Protocol):
    """The connection that a body is sent on."""

    queued_bytes: Callable[[], int] | None


class LargeBody(Payload):
    """The body of a response that is written piece by piece, as the client reads it.

    Written at once, the event loop would copy all of it twice before it does anything else. What was not
    written yet counts as unread, like what the transport has.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._body = body
        self._left = len(body)
        self.connection: Sending | None = None
        """Set before it is written."""

    @property
    def size(self) -> int:
        return len(self._body)

    def left(self) -> int:
        return self._left

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        connection, pieces = self.connection, memoryview(self._body)
        assert connection is not None
        connection.queued_bytes = self.left
        try:
            for start in range(0, len(pieces), _PIECE_BYTES):
                piece = pieces[start : start + _PIECE_BYTES]
                self._left -= len(piece)
                await writer.write(piece)
                await asyncio.sleep(0)  # it has not waited if the client keeps up
            # A connection whose request has ended may be closed, with what it has not sent.
            await writer.drain()
        finally:
            connection.queued_bytes = None


def body_of(data: bytes) -> bytes | LargeBody:
    """Data as the body of a response."""
    return LargeBody(data) if len(data) > _PIECE_BYTES else data


def json_response(body: object, status: int = 200) -> web.Response:
    return encoded_response(wire.encode(body), status)


def encoded_response(body: bytes, status: int = 200) -> web.Response:
    """JSON as an HTTP response."""
    return web.Response(body=body_of(body), status=status, content_type="application/json")


def error_response(error: ApiError, translation: Translation = RESPONSES) -> web.Response:
    """An error as an HTTP response in the shape of the client's API."""
    return error_reply(translation.error(Error.of(error)))


def error_reply(reply: ErrorReply) -> web.Response:
    return web.Response(
        status=reply.status,
        body=wire.encode(reply.body),
        content_type="application/json",
        headers=reply.headers,
    )


def add_standard_headers(headers: MutableMapping[str, str], request_id: str | None = None) -> None:
    """Set ``Server``, without a version that would help to look up known faults, and ``X-Request-Id``."""
    headers["Server"] = "slipring"
    headers["X-Request-Id"] = request_id or mint("req")


def request_id_of(request: web.Request) -> str:
    """The id of a request, for its client and for logs."""
    request_id = request.get(_REQUEST_ID)
    if request_id is None:
        request_id = request[_REQUEST_ID] = mint("req")
    return request_id
