"""WebSockets with lanes, and connections that send anything."""

import asyncio
import base64
import itertools
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import ClientWebSocketResponse, WSMsgType

from slipring.commands.bench.client.exchange import PAUSE, TERMINAL, decode, encode
from tests.soak.chains import Json, Wrong

PATIENCE_S = 60.0
"""How long a client waits for an event of a lane. No client is so slow that a lane of its own has to wait for
this long behind the others: four lanes with 24 events each, of which three are large, and a pause of 0.4 s
after every 25 events take 2 s and the time to transfer 9 MB, whatever the order in which they come."""
_CLOSED = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
_SMALL_BUFFER = 64 * 1024
_PAUSED_EVENTS = 25


class Closed(Exception):
    """The server closed the connection."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Refused(Exception):
    """The server answered a request with an error."""

    def __init__(self, error: Json, status: int) -> None:
        super().__init__(f"{status} {error}")
        self.code = error["code"]
        self.status = status


class Socket:
    """One WebSocket. Events are read by a task of its own and wait in the queue of their lane."""

    def __init__(self, ws: ClientWebSocketResponse, *, pause_s: float = 0.0) -> None:
        """``pause_s``: how long this client reads nothing, at first and after every few events."""
        self._ws = ws
        self._pause_s = pause_s
        self._queues: dict[str | None, asyncio.Queue[Json | None]] = {}
        """By lane. None is the last: the connection has ended."""
        self._code: int | None = None
        self._events = 0
        """Events that were read, of all lanes."""
        self._ended = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def send(self, fields: Json) -> None:
        await self.send_text(encode(fields))

    async def send_text(self, text: bytes) -> None:
        """Send a text frame with any content. Raises ``Closed``."""
        try:
            await self._ws.send_frame(text, WSMsgType.TEXT)
        except (aiohttp.ClientError, ConnectionError):
            await self._ended.wait()
            raise Closed(self._code) from None

    async def create(self, fields: Json, lane: str | None = None) -> None:
        named = {} if lane is None else {"stream_id": lane}
        await self.send({"type": "response.create", **fields, **named})

    async def event(self, lane: str | None = None) -> Json:
        """The next event of a lane. Raises ``Closed``, and ``Wrong`` if none comes in time."""
        queue, read = self._queue(lane), self._events
        try:
            async with asyncio.timeout(PATIENCE_S):
                event = await queue.get()
        except TimeoutError:
            others = f"{self._events - read} of other lanes, {self._events} since the beginning"
            raise Wrong(f"no event of lane {lane} within {PATIENCE_S:.0f} s ({others})") from None
        if event is None:
            queue.put_nowait(None)
            raise Closed(self._code)
        return event

    async def answer(self, lane: str | None = None) -> list[Json]:
        """The events up to the end of a response, or the pause of a rollout. Raises ``Refused``."""
        events = []
        while True:
            events.append(event := await self.event(lane))
            if event["type"] == "error":
                raise Refused(event["error"], event["status"])
            if event["type"] in (*TERMINAL, PAUSE):
                return events

    async def turn(self, fields: Json, lane: str | None = None) -> list[Json]:
        await self.create(fields, lane)
        return await self.answer(lane)

    async def closed(self) -> int | None:
        """Wait until the server has closed the connection; return its close code."""
        async with asyncio.timeout(PATIENCE_S):
            await self._ended.wait()
        return self._code

    async def close(self) -> None:
        await self._ws.close()
        await self._stop()

    async def drop(self) -> None:
        """End the connection without a close frame, as a lost network does."""
        if (connection := self._ws._conn) is not None and connection.transport is not None:
            connection.transport.abort()
        await self._stop()

    async def _stop(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])

    def _queue(self, lane: str | None) -> "asyncio.Queue[Json | None]":
        if (queue := self._queues.get(lane)) is None:
            queue = self._queues[lane] = asyncio.Queue()
            if self._ended.is_set():
                queue.put_nowait(None)
        return queue

    async def _read(self) -> None:
        for number in itertools.count():
            if self._pause_s and not number % _PAUSED_EVENTS:
                await asyncio.sleep(self._pause_s)
            received = await self._ws.receive()
            if received.type in _CLOSED:
                self._code = self._ws.close_code
                self._ended.set()
                for queue in self._queues.values():
                    queue.put_nowait(None)
                return
            event = decode(received.data)
            self._events += 1
            self._queue(event.get("stream_id")).put_nowait(event)


@asynccontextmanager
async def connected(
    url: str, headers: Mapping[str, str], *, pause_s: float = 0.0, **options: Any
) -> AsyncIterator[Socket]:
    """A WebSocket, closed in order at the end of the block. With a pause, its receive buffer is small too."""
    connector = aiohttp.TCPConnector(socket_factory=_small_socket if pause_s else None)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        ws = await http.ws_connect(f"{url}/responses", max_msg_size=0, **options)
        opened = Socket(ws, pause_s=pause_s)
        try:
            yield opened
        finally:
            await opened.close()


def _small_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    return made


class RawConnection:
    """A TCP connection that sends bytes of any kind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def head(self) -> str:
        """The head of an HTTP answer, or what came of it before the connection ended."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except (asyncio.IncompleteReadError, ConnectionError):
                return ""

    async def rest(self) -> bytes:
        """Everything until the server ends the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def upgrade(self, key: str) -> str:
        """Ask for a WebSocket; return the head of the answer."""
        nonce = base64.b64encode(b"0123456789abcdef").decode()
        await self.send(
            f"GET /v1/responses HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {key}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {nonce}\r\n\r\n".encode()
        )
        return await self.head()


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    """A connection to the host and port of a URL; aborted at the end of the block."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
