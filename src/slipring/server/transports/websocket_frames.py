"""WebSocket I/O below the session: settings, text frames, and the answer to a close frame.

aiohttp implements most of RFC 6455. This module has what aiohttp leaves to its users, and what slipring does
differently.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

from aiohttp import WSCloseCode, web

from slipring.config.settings import Config

CLOSE_TIMEOUT_S = 5.0
"""How long the closing handshake may take, everything that is queued included."""
_NORMAL = 1000
_PROTOCOL_ERROR = 1002
_NEVER_SENT = frozenset({1004, 1005, 1006, 1015})
"""Codes that are reserved and must not appear in a close frame (RFC 6455, 7.4.1)."""
_NO_CODE = 0
"""What aiohttp reports for a close frame without a code."""
_TEXT = 0x81
"""First byte of a text frame that is final, i.e. a whole message."""
_short = Struct("!BB").pack
_medium = Struct("!BBH").pack
_long = Struct("!BBQ").pack


class ServerSocket(web.WebSocketResponse):
    """A WebSocket that reports when it begins to close, for whatever reason: no message may follow its close
    frame."""

    before_close: Callable[[], None] | None = None

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if self.before_close is not None:
            self.before_close()
            self.before_close = None
        return await super().close(code=code, message=message, drain=drain)


def new_socket(config: Config) -> ServerSocket:
    """A WebSocket with the server's settings, not yet accepted."""
    return ServerSocket(
        autoping=False,  # the reader answers pings, and notes that the client is alive
        autoclose=False,  # would answer every close frame with 1000, even one with a code that is never sent
        compress=config.compression,
        max_msg_size=config.limits.max_frame_bytes + 1,  # aiohttp refuses messages of this size and above
        timeout=CLOSE_TIMEOUT_S,
    )


@lru_cache(maxsize=4096)
def text_head(size: int) -> bytes:
    """The header of a message of this size as one text frame: final, uncompressed, without a mask (RFC 6455,
    5.2)."""
    # Cached: a stream has thousands of frames of few different sizes.
    if size < 126:
        return _short(_TEXT, size)
    if size < 65536:
        return _medium(_TEXT, 126, size)
    return _long(_TEXT, 127, size)


async def answer_close(socket: web.WebSocketResponse, code: int) -> bool:
    """Answer a client's close frame with the same code, or with 1002 if a client must not send that code;
    returns whether it may."""
    is_valid = code == _NO_CODE or (1000 <= code < 5000 and code not in _NEVER_SENT)
    reply = (code or _NORMAL) if is_valid else _PROTOCOL_ERROR
    # Not drained: a client that has sent its close frame may have disconnected, and draining would raise.
    await socket.close(code=reply, drain=False)
    return is_valid
