"""``/slipring/echo``: a WebSocket that sends back every message, for conformance suites.

Suites such as Autobahn's ``wstest`` need an echo server. This one uses the settings, framing and closing
handshake of ``/v1/responses``, so that their results hold for both. It exists only if the setting ``echo`` is
on.
"""

from aiohttp import WSMsgType, web

from slipring.server.access.auth import Caller
from slipring.server.connections.client_connection import connection_of
from slipring.server.service import Service
from slipring.server.transports.websocket import answer_close, new_socket, text_head
from slipring.server.transports.websocket_upgrade import require_upgrade

PATH = "/slipring/echo"


async def echo(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    """Send back every message until the client disconnects."""
    require_upgrade(request)
    socket = new_socket(service.config)
    service.sockets += 1
    try:
        await socket.prepare(request)
        connection_of(request).become_socket(lambda: 0, lambda code, reason: connection_of(request).abort())
        await _repeat(request, socket)
    except OSError:
        pass  # the client disconnected without reading what it was sent
    finally:
        service.sockets -= 1
    return socket


async def _repeat(request: web.Request, socket: web.WebSocketResponse) -> None:
    while True:
        message = await socket.receive()
        connection_of(request).message_received()
        if message.type is WSMsgType.TEXT and not socket.compress:
            data = message.data.encode()
            if (waiting := connection_of(request).write(text_head(len(data)) + data)) is not None:
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
