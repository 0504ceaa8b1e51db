"""Deltas of one length: random characters beside each, for clients that ask for them.

Whoever sees only the sizes of encrypted frames could guess words from the lengths of their tokens. With
padding these lengths are told in steps. Only for those who ask: it more than doubles what a stream takes.
"""

import secrets
from collections.abc import Callable

from msgspec import structs

from slipring.protocol import wire
from slipring.protocol.events import PADDED, Event
from slipring.protocol.requests import CreateRequest

STEP = 32
"""Bytes; a token rarely takes more."""
Tell = Callable[[list[Event]], None]


def telling(request: CreateRequest, tell: Tell) -> Tell:
    """How the events of a turn are told: as they are, by ``tell`` itself, or padded."""
    options = request.stream_options
    if options is None or options.include_obfuscation is not True:
        return tell
    return lambda events: tell([_padded(event) for event in events])


def _padded(event: Event) -> Event:
    kind = PADDED.get(type(event))
    if kind is None:
        return event
    fields = structs.asdict(event)
    missing = -len(wire.encode(fields["delta"])) % STEP
    padded: Event = kind(**fields, obfuscation=secrets.token_urlsafe(missing)[:missing])
    return padded
