"""Streams of server-sent events: headers, and chunks of a streamed HTTP/1.1 body (RFC 9112, 7.1)."""

from collections.abc import Awaitable

from aiohttp import hdrs, web

from slipring.server.connections.http_connection import connection_of

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def is_chunked(response: web.StreamResponse) -> bool:
    """Whether the body of a response whose headers have been sent is chunked: not for HTTP/1.0."""
    return response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"


class ChunkWriter:
    """Writes chunks of a body to its connection's transport. aiohttp still writes the headers and the end.

    A stream has one small write per token. Through aiohttp each runs two coroutines and two more calls; here
    it is one call.
    """

    __slots__ = ("_connection", "_transport")

    def __init__(self, request: web.Request) -> None:
        self._transport = request.transport
        self._connection = connection_of(request)

    def write(self, data: bytes) -> Awaitable[None] | None:
        """Write data, which must not be empty, as one chunk. Returns None while the client keeps up, and
        otherwise an awaitable that waits for it. Raises ``ConnectionResetError`` if the connection
        is closing."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closing")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return self._connection.when_writable()
