"""The socket of a chat: how it is opened, read while nobody asks for anything, and closed."""

import asyncio
import json
import os
from http import HTTPStatus
from socket import gaierror
from typing import Any

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType

_OPEN_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_HEARTBEAT_S = 30.0
_UNLIMITED = 0

Event = dict[str, Any]


class Unreachable(Exception):
    """No connection is to be had. The text is one line that names the URL and the reason."""


class Lost(Exception):
    """The connection ended. The text says how."""


class Connection:
    """An open socket. A task reads it all the time, so that pings are answered while the user types."""

    def __init__(self, session: aiohttp.ClientSession, socket: ClientWebSocketResponse) -> None:
        self._session = session
        self._socket = socket
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, url: str, key: str) -> "Connection":
        """Connect to the API at ``url``, or raise ``Unreachable``."""
        session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"} if key else None)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                socket = await session.ws_connect(
                    f"{url.rstrip('/')}/responses",
                    heartbeat=_HEARTBEAT_S,
                    max_msg_size=_UNLIMITED,
                    timeout=ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await session.close()
            raise Unreachable(f"cannot reach {url}: {_reason(error)}") from None
        except BaseException:
            await session.close()
            raise
        return cls(session, socket)

    @property
    def is_open(self) -> bool:
        return not self._reader.done()

    async def send(self, event: Event) -> None:
        """Send, and forget what came unasked before: its answer is what is read next."""
        if not self.is_open:
            raise self._lost()
        while not self._events.empty():
            self._events.get_nowait()
        try:
            await self._socket.send_json(event)
        except OSError:
            raise self._lost() from None

    async def receive(self) -> Event:
        event = await self._events.get()
        if event is None:
            raise self._lost()
        return event

    async def close(self) -> None:
        """Leave. The server stops what it was making for us."""
        await self._socket.close()
        await asyncio.wait([self._reader])
        await self._session.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is WSMsgType.TEXT and isinstance(event := json.loads(message.data), dict):
                    self._events.put_nowait(event)
        except ValueError:
            return  # not JSON: whoever speaks so is not spoken to
        finally:
            self._events.put_nowait(None)

    def _lost(self) -> Lost:
        code = self._socket.close_code
        return Lost("the server closed the connection" + (f" ({code})" if code is not None else ""))


def _reason(error: Exception) -> str:
    """Why a connection could not be opened, for a person."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"the server answered {error.status} {_phrase(error.status)}".rstrip()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return "not a URL of a web server"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno is not None:
        # The system's words: those of asyncio repeat the address.
        return str(cause.strerror) if isinstance(cause, gaierror) else os.strerror(cause.errno)
    return " ".join(str(cause).split())


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
