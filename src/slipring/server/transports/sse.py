"""Server-sent events: how they are framed."""

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
    kind = type(event).__struct_config__.tag
    assert isinstance(kind, str)
    return named_block(kind, wire.encode(event))


def named_block(kind: str, data: bytes) -> bytes:
    """An event that is JSON already. Written at once: there are clients that lose one that comes in two."""
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
