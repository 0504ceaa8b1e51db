"""Server-sent events: headers, framing, and chunks of a streamed HTTP/1.1 body (RFC 9112, 7.1)."""

from aiohttp import hdrs, web

from slipring.protocol import wire
from slipring.protocol.events import Event

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


def no_head(_: int) -> bytes:
    """What is written before a block: nothing."""
    return b""


def chunk(data: bytes) -> bytes:
    """Data, which must not be empty, as one chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
