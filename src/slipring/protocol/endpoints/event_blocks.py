"""Server-sent events: an event as one block of a stream."""

from slipring.protocol import wire
from slipring.protocol.events import Event

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
