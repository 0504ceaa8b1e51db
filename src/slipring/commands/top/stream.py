"""Follows the live stream of an admin listener over HTTP: connects, reads, and connects again after a
loss.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Protocol

import aiohttp
import msgspec
from aiohttp import ClientTimeout

from slipring.base.connection_failures import reason
from slipring.commands.top.figures import visible
from slipring.commands.top.options import KEY_VARIABLE, TopOptions
from slipring.commands.top.state import State
from slipring.observation.live_messages import Greeting, Message, decode

_CONNECT_TIMEOUT_S = 10.0
_SILENCE_TIMEOUT_S = 15.0
"""A server sends updates twice a second."""
_MOST_LINE_BYTES = 256 * 2**20
_NOT_A_LISTENER = "this is not the admin listener of a slipring server"


class Unreachable(Exception):
    """The stream cannot be opened. The message names the URL and the reason."""


class StreamRefused(Unreachable):
    """The server has refused the admin key, or is not an admin listener: trying again does not help."""


class StreamLost(Exception):
    """An open stream has ended. The message is the reason."""


class LiveStream:
    """An open stream. Iterating never ends by itself: it raises ``StreamLost`` or ``StreamRefused``."""

    def __init__(self, content: aiohttp.StreamReader, url: str) -> None:
        self._content = content
        self._url = url
        self._lines: deque[bytes] = deque()
        self._pieces: list[bytes] = []
        """Of the line that has not ended yet."""
        self._length = 0

    def __aiter__(self) -> "LiveStream":
        return self

    async def __anext__(self) -> Message:
        while not self._lines:
            await self._read()
        try:
            return decode(self._lines.popleft())
        except msgspec.MsgspecError:
            problem = "the server sends no live stream that this version of slipring understands"
            raise StreamRefused(f"cannot watch {self._url}: {problem}") from None

    async def _read(self) -> None:
        """Take what has arrived. The reader's own ``readline`` refuses lines that its buffer cannot hold."""
        try:
            piece = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise StreamLost(_reason(error)) from None
        if not piece:
            raise StreamLost("the server has ended the stream")
        first, *others = piece.split(b"\n")
        self._pieces.append(first)
        self._length += len(first)
        if self._length > _MOST_LINE_BYTES:
            raise StreamLost("the server sent a line that is too long")
        if others:
            self._lines.append(b"".join(self._pieces))
            self._lines.extend(others[:-1])
            self._pieces, self._length = [others[-1]], len(others[-1])


@asynccontextmanager
async def live_stream(options: TopOptions) -> AsyncIterator[tuple[Greeting, LiveStream]]:
    """Open the stream; yield its greeting, and the stream after it.

    Raises ``Unreachable`` if it cannot be opened; ``StreamRefused`` if trying again would not help.
    """
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    timeout = ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        try:
            response = await session.get(f"{options.url}/live", allow_redirects=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"cannot reach {options.url}: {_reason(error)}") from None
        async with response:
            _check_status(response, options)
            stream = LiveStream(response.content, options.url)
            try:
                greeting = await anext(stream)
            except StreamLost as error:
                raise Unreachable(f"cannot watch {options.url}: {error}") from None
            if not isinstance(greeting, Greeting):
                raise StreamRefused(f"cannot watch {options.url}: {_NOT_A_LISTENER}")
            yield greeting, stream


def _check_status(response: aiohttp.ClientResponse, options: TopOptions) -> None:
    status = response.status
    if status == HTTPStatus.OK:
        return
    if status == HTTPStatus.UNAUTHORIZED:
        problem = "the server refused the admin key" if options.key else "the server needs its admin key"
        raise StreamRefused(f"cannot watch {options.url}: {problem}; set {KEY_VARIABLE} to it")
    problem = f"the server answered {status} {visible(response.reason or '')}".rstrip()
    if status < HTTPStatus.BAD_REQUEST or status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        raise StreamRefused(f"cannot watch {options.url}: {problem}; {_NOT_A_LISTENER}")
    raise Unreachable(f"cannot watch {options.url}: {problem}")


def _reason(error: Exception) -> str:
    """Why there is no connection, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return visible(reason(error))


_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


# --- Following the stream ---------------------------------------------------------------------------


class Output(Protocol):
    """Where what is known goes."""

    def changed(self, state: State, message: Message) -> None:
        """A message has been folded into the state."""

    def interrupted(self, trouble: str) -> None:
        """The stream was lost, or cannot be opened again. The text says so, and when it is tried again."""


async def watch(options: TopOptions, output: Output, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
    """Follow the stream for ever. Raises ``Unreachable`` if trying again does not help."""
    state = State()
    was_open = False
    pause_s = first_pause_s
    while True:
        try:
            async with live_stream(options) as (greeting, stream):
                was_open = True
                state.fold(greeting)
                output.changed(state, greeting)
                async for message in stream:
                    state.fold(message)
                    output.changed(state, message)
                    pause_s = first_pause_s
        except (StreamLost, Unreachable) as error:
            if not was_open or isinstance(error, StreamRefused):
                raise
            output.interrupted(f"reconnecting in {pause_s:g} s: {error}")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
