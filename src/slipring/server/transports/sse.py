"""Server-sent events: headers, framing, and chunks of a streamed HTTP/1.1 body (RFC 9112, 7.1)."""

from collections.abc import Awaitable

from aiohttp import hdrs, web

from slipring.protocol import wire
from slipring.protocol.events import Event
from slipring.server.connections.http_connection import connection_of

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


_openings: dict[type[Event], bytes] = {}
"""The bytes before the JSON of an event, by its class: a stream has thousands of events of few classes."""


def block(event: Event) -> bytes:
    """An event as one SSE block. To be written at once: some clients lose a block that arrives in two
    parts."""
    kind = type(event)
    opening = _openings.get(kind)
    if opening is None:
        event_type = kind.__struct_config__.tag
        assert isinstance(event_type, str)
        opening = _openings[kind] = _opening(event_type)
    return b"%b%b\n\n" % (opening, wire.encode(event))


def named_block(event_type: str, data: bytes) -> bytes:
    """An encoded event as one SSE block."""
    return b"%b%b\n\n" % (_opening(event_type), data)


def _opening(event_type: str) -> bytes:
    return b"event: %b\ndata: " % event_type.encode()


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
