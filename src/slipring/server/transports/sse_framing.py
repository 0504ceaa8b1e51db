"""Server-sent events: headers and framing."""

from slipring.protocol import wire
from slipring.protocol.events import Event

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


def block(event: Event) -> bytes:
    """An event as one SSE block."""
    event_type = type(event).__struct_config__.tag
    assert isinstance(event_type, str)
    return named_block(event_type, wire.encode(event))


def named_block(event_type: str, data: bytes) -> bytes:
    """An encoded event as one SSE block. To be written at once: some clients lose a block that arrives in two
    parts."""
    return b"event: " + event_type.encode() + b"\ndata: " + data + b"\n\n"
