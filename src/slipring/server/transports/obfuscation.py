"""Pads delta events to multiples of a fixed size, for requests with ``stream_options.include_obfuscation``.

An observer who sees only the sizes of encrypted frames could guess words from the lengths of their tokens.
Padding more than doubles the size of a stream, so it is off unless a request asks for it.
"""

import secrets
from collections.abc import Callable
from typing import TypeVar

from msgspec import structs

from slipring.protocol import wire
from slipring.protocol.events import PADDED, Event

STEP = 32
"""Bytes; a token is rarely longer."""
Sent = TypeVar("Sent")


def padded_send(send: Callable[[list[Event]], Sent]) -> Callable[[list[Event]], Sent]:
    """A function that pads delta events and passes them to ``send``."""
    return lambda events: send([_padded(event) for event in events])


def _padded(event: Event) -> Event:
    padded_type = PADDED.get(type(event))
    if padded_type is None:
        return event
    fields = structs.asdict(event)
    missing = -len(wire.encode(fields["delta"])) % STEP
    padded: Event = padded_type(**fields, obfuscation=secrets.token_urlsafe(missing)[:missing])
    return padded
