"""Text frames of a WebSocket as a server writes them: whole, plain and without a mask (RFC 6455, 5.2)."""

from functools import lru_cache
from struct import Struct

_TEXT = 0x81
_short = Struct("!BB").pack
_medium = Struct("!BBH").pack
_long = Struct("!BBQ").pack


def text_frame(message: bytes) -> bytes:
    """A message as a frame. Frames that follow each other may be written at once."""
    return _header(len(message)) + message


@lru_cache(maxsize=4096)
def _header(size: int) -> bytes:
    # Tokens are of few sizes, and come by the thousand.
    if size < 126:
        return _short(_TEXT, size)
    if size < 65536:
        return _medium(_TEXT, 126, size)
    return _long(_TEXT, 127, size)
