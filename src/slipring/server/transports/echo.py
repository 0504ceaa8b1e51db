"""``/slipring/echo``: a WebSocket that says what it hears, for suites that test servers from outside.

Such suites (Autobahn's ``wstest``) need nothing but that. The socket has the settings, the framing and the
goodbyes of ``/v1/responses``, so that what they find is true of both. It is there only where the setting
``echo`` asks for it.
"""

from aiohttp import WSMsgType, web

from slipring.server.access.auth import Caller
from slipring.server.connections.http_connection import connection_of
from slipring.server.service import Service
from slipring.server.transports.framing import text_frame
from slipring.server.transports.websocket_io import FrameWriter, answer_close, new_socket

PATH = "/slipring/echo"
_CLOSE_TIMEOUT_S = 5.0


async def echo(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send every message back until the client is gone."""
    socket = new_socket(service.config, _CLOSE_TIMEOUT_S)
    service.sockets += 1
    try:
        await socket.prepare(request)
        connection_of(request).become_socket(lambda: 0, lambda code, reason: connection_of(request).abort())
        await _repeat(request, socket)
    except OSError:
        pass  # the client left without reading what it had sent
    finally:
        service.sockets -= 1
    return socket


async def _repeat(request: web.Request, socket: web.WebSocketResponse) -> None:
    writer = FrameWriter(request, socket)
    while True:
        message = await socket.receive()
        connection_of(request).message_received()
        if message.type is WSMsgType.TEXT and not socket.compress:
            if (waiting := writer.write(text_frame(message.data.encode()))) is not None:
                await waiting
        elif message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
        elif message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is WSMsgType.CLOSE:
            await answer_close(socket, message.data)
            return
        elif message.type is not WSMsgType.PONG:
            return
