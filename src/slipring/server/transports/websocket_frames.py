"""WebSocket I/O below the session: settings, text frames, and the answer to a close frame.

aiohttp implements most of RFC 6455. This module has what aiohttp leaves to its users, and what slipring does
differently.
"""

from collections.abc import Awaitable
from functools import lru_cache
from struct import Struct

from aiohttp import web

from slipring.config.settings import Config
from slipring.server.connections.http_connection import connection_of

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


def new_socket(config: Config) -> web.WebSocketResponse:
    """A WebSocket with the server's settings, not yet accepted."""
    return web.WebSocketResponse(
        autoping=False,  # the reader answers pings, and notes that the client is alive
        autoclose=False,  # would answer every close frame with 1000, even one with a code that is never sent
        compress=config.compression,
        max_msg_size=config.limits.max_frame_bytes + 1,  # aiohttp refuses messages of this size and above
        timeout=CLOSE_TIMEOUT_S,
    )


def text_frame(message: bytes) -> bytes:
    """A message as one text frame: final, uncompressed, without a mask (RFC 6455, 5.2). Frames can be
    concatenated and written at once."""
    return _header(len(message)) + message


@lru_cache(maxsize=4096)
def _header(size: int) -> bytes:
    # Cached: a stream has thousands of frames of few different sizes.
    if size < 126:
        return _short(_TEXT, size)
    if size < 65536:
        return _medium(_TEXT, 126, size)
    return _long(_TEXT, 127, size)


class FrameWriter:
    """Writes encoded frames to a socket's transport, any number with one system call."""

    __slots__ = ("_connection", "_socket", "_transport")

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._transport = request.transport
        self._connection = connection_of(request)

    def write(self, frames: bytes) -> Awaitable[None] | None:
        """Write frames. Returns None while the client keeps up, and otherwise an awaitable that waits for it.
        Raises ``ConnectionResetError`` if the connection is closing."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._socket.closed:
            raise ConnectionResetError("the connection is closing")
        transport.write(frames)
        return self._connection.when_writable()


async def answer_close(socket: web.WebSocketResponse, code: int) -> bool:
    """Answer a client's close frame with the same code, or with 1002 if a client must not send that code;
    returns whether it may."""
    is_valid = code == _NO_CODE or (1000 <= code < 5000 and code not in _NEVER_SENT)
    reply = (code or _NORMAL) if is_valid else _PROTOCOL_ERROR
    # Not drained: a client that has sent its close frame may have disconnected, and draining would raise.
    await socket.close(code=reply, drain=False)
    return is_valid
