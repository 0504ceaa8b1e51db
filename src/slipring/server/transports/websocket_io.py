"""A WebSocket as this server has them: its settings, how frames are written, how a goodbye is answered.

aiohttp does most of RFC 6455. Here is what it leaves to its users, and what it would do otherwise.
"""

from collections.abc import Awaitable

from aiohttp import web

from slipring.config import Config

_NORMAL = 1000
_PROTOCOL_ERROR = 1002
_NEVER_SENT = frozenset({1004, 1005, 1006, 1015})
"""Codes that have a meaning, but none that a frame may tell (RFC 6455, 7.4.1)."""
_NO_CODE = 0
"""What aiohttp makes of a close frame that gives no code."""


def new_socket(config: Config, close_timeout_s: float) -> web.WebSocketResponse:
    return web.WebSocketResponse(
        autoping=False,  # pings are answered by the reader, which notes that the client lives
        autoclose=False,  # it would answer every code, those that nobody may send included, with 1000
        compress=config.compression,
        max_msg_size=config.limits.max_frame_bytes + 1,  # aiohttp's bound is the first size that it refuses
        timeout=close_timeout_s,
    )


class FrameWriter:
    """Writes frames to a socket as they are, however many at once: one by one, each costs a system call."""

    __slots__ = ("_drain", "_socket", "_transport")

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._transport = request.transport
        self._drain = request.writer.drain

    def write(self, frames: bytes) -> Awaitable[None] | None:
        """Returns what to wait for; nothing where the system took all, as it does while a client keeps up."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._socket.closed:
            raise ConnectionResetError("the connection is closing")
        transport.write(frames)
        return self._drain() if transport.get_write_buffer_size() else None


async def answer_close(socket: web.WebSocketResponse, code: int) -> bool:
    """Answer a client's close frame with its own code; whether it was one that a client may send."""
    is_valid = code == _NO_CODE or (1000 <= code < 5000 and code not in _NEVER_SENT)
    reply = (code or _NORMAL) if is_valid else _PROTOCOL_ERROR
    # Not drained: who says goodbye may be gone, and what is still to be written would break on that.
    await socket.close(code=reply, drain=False)
    return is_valid
