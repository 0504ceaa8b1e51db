"""How requests get to an endpoint and events come back: HTTP with SSE, and a WebSocket, alone or with lanes.

Each takes the fields of a create, or on a WebSocket of another event, and gives an ``Exchange``. The clock of
a turn runs from before its JSON is made; whoever has no connection yet opens it within its first turn, or
before it where that is asked for. Knows nothing of loops and modes.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, TCPConnector, WSMsgType
from multidict import MultiMapping

from slipring.bench.exchange import (
    PAUSE,
    TERMINAL,
    TIMING,
    Event,
    Exchange,
    Fields,
    Lost,
    Refused,
    encode,
    read,
    refusal,
)
from slipring.bench.sayings import Sayings
from slipring.bench.shapes import checked
from slipring.bench.sse import Events

_OK = 200
_KEEPALIVE_S = 3600.0
_CLOSE_TIMEOUT_S = 2.0
_TIMING_TIMEOUT_S = 5.0
_UNLIMITED = 0
_MASK_BYTES = 4
_FAILURES = ("error", "response.append.failed")
_ENDS = (*TERMINAL, *_FAILURES, PAUSE)
"""What ends a turn; the last only where a response stays open for the outputs of its calls."""


_Arrival = tuple[Event, int, int]
"""An event, when it came, and the bytes of its frame."""


class Access:
    """Where an endpoint is, and what every request to it says."""

    def __init__(self, url: str, key: str, *, timeout_s: float, asks_timing: bool = True) -> None:
        self.url = f"{url.rstrip('/')}/responses"
        self.timeout_s = timeout_s
        self.asks_timing = asks_timing
        """Whether the server is asked where its time goes."""
        self.timed: set[type[Transport]] = set()
        """The transports over which it is known to say so."""
        self.tell = Sayings(key)
        """What the endpoint says, as it may be kept."""
        self._key = key

    def headers(self, *betas: str) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}  # so that bytes are counted as they travel
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        named = ["slipring_timing=v1"] if self.asks_timing else []
        if named or betas:
            headers["OpenAI-Beta"] = ", ".join([*named, *betas])
        return headers


class Transport(ABC):
    """A way to an endpoint, for as long as a loop needs it."""

    def __init__(self, access: Access, *, new_connections: bool = False) -> None:
        self._access = access
        self._new_connections = new_connections
        self.tell = access.tell

    @abstractmethod
    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: Exchange | None = None
    ) -> Exchange:
        """Send a create and read its events. Raises ``Refused``, ``Lost`` and ``TimeoutError``. ``exchange``:
        one that has just been begun, for whoever watches the turn while it is under way."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether there is a connection at this moment, as far as this end knows."""

    async def open(self) -> None:  # noqa: B027 - where a connection cannot be had without a turn
        """Open the connection that all turns share, if that can be done before one. Raises as ``turn``."""

    async def __aenter__(self) -> Self:
        connector = (
            TCPConnector(limit=0, force_close=True)
            if self._new_connections
            else TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
        )
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), trace_configs=self._traces()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    def _traces(self) -> list[aiohttp.TraceConfig]:
        """Whoever wants to see what the HTTP client does."""
        return []


class Http(Transport):
    """Each turn is a POST that is answered by a stream of events."""

    is_open = False

    def _traces(self) -> list[aiohttp.TraceConfig]:
        connections = aiohttp.TraceConfig()
        connections.on_connection_create_end.append(self._connected)
        return [connections]

    async def _connected(
        self, session: aiohttp.ClientSession, context: object, end: aiohttp.TraceConnectionCreateEndParams
    ) -> None:
        self.is_open = True

    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: Exchange | None = None
    ) -> Exchange:
        assert lane is None, "there are no lanes over HTTP"
        exchange = exchange or Exchange()
        body = encode({**fields, "stream": True})
        headers = {**self._access.headers(), "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(self._access.timeout_s):
                await self._post(exchange, body, headers)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise Lost(_reason(error)) from None
        return checked(exchange)

    async def _post(self, exchange: Exchange, body: bytes, headers: dict[str, str]) -> None:
        async with self._http.post(self._access.url, data=body, headers=headers) as answer:
            exchange.sent_bytes = _request_bytes("POST", self._access.url, answer.request_info.headers) + len(
                body
            )
            exchange.received_bytes = _head_bytes(answer.raw_headers)
            exchange.server_timing = answer.headers.get("Server-Timing", "")
            if answer.status != _OK:
                raise await _refused(answer)
            events = Events()
            async for chunk in answer.content.iter_any():
                exchange.received_bytes += len(chunk)
                for data in events.feed(chunk):
                    if exchange.take(data).get("type") == "error":
                        raise refusal(exchange.events[-1])
        exchange.end()
        self.is_open = not self._new_connections


class _Opened(Transport):
    """A WebSocket that is opened by whoever needs it first."""

    def __init__(self, access: Access, *betas: str) -> None:
        super().__init__(access)
        self._betas = betas
        self._socket: ClientWebSocketResponse | None = None
        self._opening = asyncio.Lock()
        self._upgrade_bytes = (0, 0)

    async def __aexit__(self, *_: object) -> None:
        if self._socket is not None:
            await self._socket.close()
        await super().__aexit__()

    def _traces(self) -> list[aiohttp.TraceConfig]:
        upgrades = aiohttp.TraceConfig()
        upgrades.on_request_end.append(self._upgraded)
        return [upgrades]

    async def _upgraded(
        self, session: aiohttp.ClientSession, context: object, end: aiohttp.TraceRequestEndParams
    ) -> None:
        self._upgrade_bytes = (
            _request_bytes("GET", self._access.url, end.response.request_info.headers),
            _head_bytes(end.response.raw_headers),
        )

    @property
    def is_open(self) -> bool:
        return self._socket is not None and self._socket.get_extra_info("peername") is not None

    async def open(self) -> None:
        async with asyncio.timeout(self._access.timeout_s):
            await self._open(Exchange())

    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: Exchange | None = None
    ) -> Exchange:
        exchange = exchange or Exchange()
        frame = {"type": "response.create", **fields}
        if lane is not None:
            frame["stream_id"] = lane
        async with asyncio.timeout(self._access.timeout_s):
            await self._send(exchange, await self._open(exchange), frame)
            kind = ""
            while kind not in _ENDS:
                kind = (await self._next(exchange, lane)).get("type", "")
        exchange.end()
        if kind in _FAILURES:
            raise refusal(exchange.events[-1])
        if type(self) in self._access.timed and kind != PAUSE:
            async with asyncio.timeout(_TIMING_TIMEOUT_S):
                while kind != TIMING:
                    kind = (await self._next(exchange, lane)).get("type", "")
        return checked(exchange)

    @abstractmethod
    async def _next(self, exchange: Exchange, lane: str | None) -> Event:
        """The next event of a lane, noted."""

    async def _open(self, exchange: Exchange) -> ClientWebSocketResponse:
        async with self._opening:
            if self._socket is None:
                self._socket = await self._connect(exchange)
        return self._socket

    async def _connect(self, exchange: Exchange) -> ClientWebSocketResponse:
        headers = self._access.headers(*self._betas)
        try:
            socket = await self._http.ws_connect(
                self._access.url,
                headers=headers,
                max_msg_size=_UNLIMITED,
                timeout=ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(f"the upgrade to a WebSocket was answered with {error.status}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_reason(error)) from None
        sent, received = self._upgrade_bytes
        exchange.sent_bytes += sent
        exchange.received_bytes += received
        return socket

    async def _send(self, exchange: Exchange, socket: ClientWebSocketResponse, fields: Fields) -> None:
        body = encode(fields)
        exchange.sent_bytes += _frame_bytes(len(body)) + _MASK_BYTES
        try:
            await socket.send_frame(body, WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_reason(error)) from None


class Socket(_Opened):
    """One WebSocket with one turn at a time."""

    async def _next(self, exchange: Exchange, lane: str | None) -> Event:
        assert self._socket is not None
        text = await _text(self._socket)
        exchange.received_bytes += _frame_bytes(_length(text))
        return exchange.take(text)


class Lanes(_Opened):
    """One WebSocket with a turn on each of its lanes."""

    def __init__(self, access: Access, *betas: str) -> None:
        super().__init__(access, *betas)
        self._arrived: dict[str | None, asyncio.Queue[_Arrival | Lost]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: Exchange | None = None
    ) -> Exchange:
        self._arrived.setdefault(lane, asyncio.Queue())  # before anything can arrive for it
        return await super().turn(fields, lane, exchange)

    async def _connect(self, exchange: Exchange) -> ClientWebSocketResponse:
        socket = await super()._connect(exchange)
        self._reader = asyncio.create_task(self._read(socket))
        return socket

    async def _next(self, exchange: Exchange, lane: str | None) -> Event:
        arrival = await self._arrived[lane].get()
        if isinstance(arrival, Lost):
            raise arrival
        event, at_ns, size_bytes = arrival
        exchange.received_bytes += size_bytes
        return exchange.note(event, at_ns)

    async def _read(self, socket: ClientWebSocketResponse) -> None:
        """Give each lane what is its own; what names no lane concerns all."""
        try:
            while True:
                text = await _text(socket)
                at_ns = time.perf_counter_ns()
                event = read(text)
                arrival = (event, at_ns, _frame_bytes(_length(text)))
                lane = event.get("stream_id")
                is_known = isinstance(lane, str) and lane in self._arrived
                for each in [self._arrived[lane]] if is_known else self._arrived.values():
                    each.put_nowait(arrival)
        except Lost as error:
            for each in self._arrived.values():
                each.put_nowait(error)


async def _text(socket: ClientWebSocketResponse) -> str:
    message = await socket.receive()
    if message.type is not WSMsgType.TEXT:
        code = socket.close_code
        raise Lost("the server closed the connection" + (f" ({code})" if code is not None else ""))
    text: str = message.data
    return text


async def _refused(answer: aiohttp.ClientResponse) -> Refused:
    try:
        return Refused(f"{answer.status}: {refusal(read(await answer.read()))}")
    except Lost:
        return Refused(f"{answer.status} {answer.reason}")


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.os_error.strerror or error.os_error}"
    return " ".join(str(error).split()) or type(error).__name__


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _frame_bytes(payload: int) -> int:
    """A frame of a WebSocket with its header, without the mask."""
    return payload + (2 if payload < 126 else 4 if payload < 65536 else 10)


def _request_bytes(method: str, url: str, headers: Mapping[str, str] | MultiMapping[str]) -> int:
    """The request line and the headers; the line break at the end included."""
    path = "/" + url.split("/", 3)[3]
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return sum(len(line) + 2 for line in lines) + 2


def _head_bytes(headers: tuple[tuple[bytes, bytes], ...]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers) + len("HTTP/1.1 200 OK\r\n\r\n")
