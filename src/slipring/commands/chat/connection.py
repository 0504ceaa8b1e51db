"""The WebSocket connection of a chat: opens it, reads events in the background, closes it."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import ClientTimeout, ClientWebSocketResponse, ClientWSTimeout, WSMsgType

from slipring.base.connection_failures import reason
from slipring.commands.argument_parser import CommandFailed
from slipring.commands.chat.options import ChatOptions

_OPEN_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_MODELS_TIMEOUT_S = 5.0
_HEARTBEAT_S = 30.0
_UNLIMITED = 0

Event = dict[str, Any]


class Unreachable(CommandFailed):
    """A connection cannot be opened. The message names the URL and the reason."""


class ConnectionLost(Exception):
    """The connection ended while it was needed. The message contains the close code, if there is one."""


class Connection:
    """An open WebSocket. A task reads it all the time, so that pings are answered while the user types."""

    def __init__(self, url: str, session: aiohttp.ClientSession, socket: ClientWebSocketResponse) -> None:
        self._url = url
        self._session = session
        self._socket = socket
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, options: ChatOptions) -> "Connection":
        """Connect to the server, or raise ``Unreachable``."""
        url = options.url.rstrip("/")
        headers = {"Authorization": f"Bearer {options.key}"} if options.key else None
        session = aiohttp.ClientSession(headers=headers)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                socket = await session.ws_connect(
                    f"{url}/responses",
                    heartbeat=_HEARTBEAT_S,
                    max_msg_size=_UNLIMITED,
                    timeout=ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await session.close()
            raise _unreachable(error, options) from None
        except BaseException:
            await session.close()
            raise
        return cls(url, session, socket)

    @property
    def is_open(self) -> bool:
        return not self._reader.done()

    @property
    def has_events(self) -> bool:
        """Whether ``receive`` would return at once."""
        return not self._events.empty()

    async def models(self) -> list[str]:
        """Return the names of the server's models, in its order; empty if it does not list them."""
        try:
            async with self._session.get(
                f"{self._url}/models", timeout=ClientTimeout(_MODELS_TIMEOUT_S)
            ) as response:
                listed = (await response.json())["data"] if response.ok else []
                return [str(model["id"]) for model in listed]
        except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):
            return []

    async def send(self, event: Event) -> None:
        """Send an event and drop events received before: the next one received answers this one."""
        if not self.is_open:
            raise self._lost()
        while not self._events.empty():
            self._events.get_nowait()
        try:
            await self._socket.send_json(event)
        except OSError:
            raise self._lost() from None

    async def receive(self) -> Event:
        """Return the next event; raise ``ConnectionLost`` after the last one."""
        event = await self._events.get()
        if event is None:
            raise self._lost()
        return event

    async def close(self) -> None:
        """Close the connection. The server then cancels a response that is still running."""
        try:
            await self._socket.close()
            await asyncio.wait([self._reader])
        finally:  # the user may interrupt the waiting
            await self._session.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is WSMsgType.TEXT and isinstance(event := json.loads(message.data), dict):
                    self._events.put_nowait(event)
        except ValueError:
            return  # not JSON, so not a Responses server: stop reading
        finally:
            self._events.put_nowait(None)

    def _lost(self) -> ConnectionLost:
        code = self._socket.close_code
        return ConnectionLost("the server closed the connection" + (f" ({code})" if code is not None else ""))


def refused_key(options: ChatOptions) -> str:
    """Explain a 401: which key the server refused and how to pass another one."""
    variable = options.key_variable
    problem = (
        f"the server refused the API key in {variable}" if options.key else "the server needs an API key"
    )
    return f"{problem}; set {variable} to a valid key, or name another variable with --api-key-env"


def _unreachable(error: Exception, options: ChatOptions) -> Unreachable:
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == HTTPStatus.UNAUTHORIZED:
        return Unreachable(f"cannot use {options.url}: {refused_key(options)}")
    return Unreachable(f"cannot reach {options.url}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return why a connection could not be opened, in a few words."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"the server answered {error.status} {_phrase(error.status)}".rstrip()
    if isinstance(error, TimeoutError):
        return f"no answer within {_OPEN_TIMEOUT_S:g} s"
    return reason(error)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
