"""Text frames of a WebSocket as a server writes them: whole, plain and without a mask (RFC 6455, 5.2)."""

from collections.abc import Iterable
from struct import Struct

_TEXT = 0x81
_short = Struct("!BB").pack
_medium = Struct("!BBH").pack
_long = Struct("!BBQ").pack


def text_frames(messages: Iterable[bytes]) -> bytes:
    """Messages as frames, one after the other, to be written at once."""
    pieces: list[bytes] = []
    for message in messages:
        size = len(message)
        if size < 126:
            pieces.append(_short(_TEXT, size))
        elif size < 65536:
            pieces.append(_medium(_TEXT, 126, size))
        else:
            pieces.append(_long(_TEXT, 127, size))
        pieces.append(message)
    return b"".join(pieces)
