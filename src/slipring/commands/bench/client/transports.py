"""Transports: HTTP with server-sent events, and a WebSocket with or without lanes.

Each takes the fields of a ``response.create`` (on a WebSocket also of a ``response.append``), or of a request
of another API, and returns a ``TurnExchange``. The clock of a turn starts before its JSON is encoded. A
transport opens its connection in its first turn, unless ``open`` was called before.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal, Self

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, TCPConnector, WSMsgType
from multidict import MultiMapping

from slipring.base.connection_failures import reason
from slipring.commands.bench.client.exchange import (
    PAUSE,
    TERMINAL,
    TIMING,
    CannotConnect,
    ConnectionLost,
    Event,
    Fields,
    MalformedAnswer,
    RefusedByServer,
    TurnExchange,
    TurnFailed,
    decode,
    encode,
    refusal,
    validated,
)
from slipring.commands.bench.client.redaction import Redactor
from slipring.commands.bench.client.translated_apis import AnswerReader

Api = Literal["responses", "messages", "chat"]
_PATHS: dict[Api, str] = {"responses": "/responses", "messages": "/messages", "chat": "/chat/completions"}
_VERSION = "2023-06-01"
"""Of the Messages API."""


class SseParser:
    """Takes a body chunk by chunk and returns the data of every complete event."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *blocks, self._rest = (self._rest + chunk.replace(b"\r", b"")).split(b"\n\n")
        return [data for block in blocks if (data := _data(block)) is not None]


def _data(block: bytes) -> bytes | None:
    """None for comments and for ``[DONE]``."""
    lines = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    data = b"\n".join(lines)
    return data if lines and data != b"[DONE]" else None


_OK = 200
_KEEPALIVE_S = 3600.0
_CLOSE_TIMEOUT_S = 2.0
_TIMING_TIMEOUT_S = 5.0
_UNLIMITED = 0
_MASK_BYTES = 4
_FAILURES = ("error", "response.append.failed")
_ENDS = (*TERMINAL, *_FAILURES, PAUSE)
"""Events that end a turn."""

_Arrival = tuple[Event, int, int]
"""An event, its arrival time in ns, and the size of its frame in bytes."""


class Access:
    """URL of an endpoint, and the headers of every request to it."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_s: float,
        asks_timing: bool = True,
        short_events: bool = False,
        name: str | None = None,
        api: Api = "responses",
    ) -> None:
        """``short_events``: ask for first events without instructions and tools. ``name``: the URL to show in
        messages, if it differs from ``url``. ``api``: that of the requests."""
        self.base_url = url.rstrip("/")
        self.path = _PATHS[api]
        self.url = f"{self.base_url}{self.path}"
        self._api = api
        self.name = (name or url).rstrip("/")
        self.timeout_s = timeout_s
        self.asks_timing = asks_timing
        """Whether requests ask for the server's stage times."""
        self._betas = ["slipring_short_events=v1"] if short_events else []
        self.timed: set[type[Transport]] = set()
        """The transports over which the server is known to send ``slipring.timing``."""
        self.redact = Redactor(key)
        """Makes a text of the endpoint safe to show and to store."""
        self._key = key

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    def headers(self, *betas: str) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}  # compression would distort the byte counts
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        if self._api == "messages":
            headers |= {"anthropic-version": _VERSION} | ({"x-api-key": self._key} if self._key else {})
        if self._api != "responses":
            return headers
        named = [*(["slipring_timing=v1"] if self.asks_timing else ()), *self._betas, *betas]
        if named:
            headers["OpenAI-Beta"] = ", ".join(named)
        return headers


class Transport(ABC):
    """Connection of one loop to an endpoint; an async context manager."""

    def __init__(self, access: Access, *, new_connections: bool = False) -> None:
        self._access = access
        self._new_connections = new_connections
        self.redact = access.redact

    @abstractmethod
    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: TurnExchange | None = None
    ) -> TurnExchange:
        """Send a request and receive its events. Raises ``TurnFailed`` and ``TimeoutError``.

        ``exchange``: a new exchange to record into, for a caller that observes the turn while it runs.
        """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether a connection is open at this moment, as far as the client knows."""

    async def open(self) -> None:  # noqa: B027 - HTTP opens its connection in the first turn
        """Open the connection that all turns share, if it can be opened before a turn. Raises as ``turn``."""

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
        """Hooks into the HTTP client."""
        return []


class HttpTransport(Transport):
    """Sends each turn as a POST; the answer is a stream of server-sent events."""

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
        self, fields: Fields, lane: str | None = None, exchange: TurnExchange | None = None
    ) -> TurnExchange:
        assert lane is None, "HTTP has no lanes"
        exchange = exchange or TurnExchange()
        body = encode({**fields, "stream": True})
        headers = {**self._access.headers(), "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(self._access.timeout_s):
                await self._post(exchange, body, headers)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise connection_error(error) from None
        return validated(exchange)

    async def _post(self, exchange: TurnExchange, body: bytes, headers: dict[str, str]) -> None:
        async with self._http.post(self._access.url, data=body, headers=headers) as answer:
            exchange.sent_bytes = _request_bytes("POST", self._access.url, answer.request_info.headers) + len(
                body
            )
            exchange.received_bytes = _head_bytes(answer.raw_headers)
            exchange.server_timing = answer.headers.get("Server-Timing", "")
            if answer.status != _OK:
                raise await refused(answer)
            parser = SseParser()
            async for chunk in answer.content.iter_any():
                exchange.received_bytes += len(chunk)
                for data in parser.feed(chunk):
                    self._receive(exchange, data)
        self._end(exchange)
        if not exchange.events:
            raise MalformedAnswer(f"no events, content type {answer.content_type}")
        exchange.end()
        self.is_open = not self._new_connections

    def _receive(self, exchange: TurnExchange, data: bytes) -> None:
        """Record what has arrived. Raises ``TurnFailed`` for an error."""
        if exchange.receive(data).get("type") == "error":
            raise refusal(exchange.events[-1])

    def _end(self, exchange: TurnExchange) -> None:
        """The stream has ended."""


class TranslatedTransport(HttpTransport):
    """Sends each turn as a POST of another API. Its exchanges have the events that a response would have."""

    def __init__(
        self, access: Access, reader: Callable[[], AnswerReader], *, new_connections: bool = False
    ) -> None:
        super().__init__(access, new_connections=new_connections)
        self._new_reader = reader
        self._reader = reader()

    async def _post(self, exchange: TurnExchange, body: bytes, headers: dict[str, str]) -> None:
        self._reader = self._new_reader()
        await super()._post(exchange, body, headers)

    def _receive(self, exchange: TurnExchange, data: bytes) -> None:
        at_ns = time.perf_counter_ns()
        try:
            self._reader.see(decode(data))
        except (KeyError, TypeError) as error:
            raise MalformedAnswer(f"{type(error).__name__} {error} in {data[:80]!r}") from None
        self._record(exchange, at_ns)

    def _end(self, exchange: TurnExchange) -> None:
        self._reader.finish()
        self._record(exchange, time.perf_counter_ns())

    def _record(self, exchange: TurnExchange, at_ns: int) -> None:
        for event in self._reader.take():
            exchange.record(event, at_ns)


class _WebSocketTransport(Transport):
    """Sends turns as frames of one WebSocket, which the first turn opens."""

    def __init__(self, access: Access, *betas: str) -> None:
        super().__init__(access)
        self._betas = betas
        self._socket: ClientWebSocketResponse | None = None
        self._opening = asyncio.Lock()
        self._upgrade_bytes = (0, 0)

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._socket is not None:
                await self._socket.close()
        finally:  # a user that ends may be stopped meanwhile
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
            await self._open(TurnExchange())

    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: TurnExchange | None = None
    ) -> TurnExchange:
        exchange = exchange or TurnExchange()
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
        return validated(exchange)

    @abstractmethod
    async def _next(self, exchange: TurnExchange, lane: str | None) -> Event:
        """Record and return the next event of a lane."""

    async def _open(self, exchange: TurnExchange) -> ClientWebSocketResponse:
        async with self._opening:
            if self._socket is None:
                self._socket = await self._connect(exchange)
        return self._socket

    async def _connect(self, exchange: TurnExchange) -> ClientWebSocketResponse:
        headers = self._access.headers(*self._betas)
        try:
            socket = await self._http.ws_connect(
                self._access.url,
                headers=headers,
                max_msg_size=_UNLIMITED,
                timeout=ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
            )
        except aiohttp.WSServerHandshakeError as error:
            reason = f"the WebSocket upgrade was answered with {error.status}"
            raise RefusedByServer(reason, error.status) from None
        except (aiohttp.ClientError, OSError) as error:
            raise connection_error(error) from None
        sent, received = self._upgrade_bytes
        exchange.sent_bytes += sent
        exchange.received_bytes += received
        return socket

    async def _send(self, exchange: TurnExchange, socket: ClientWebSocketResponse, fields: Fields) -> None:
        body = encode(fields)
        exchange.sent_bytes += _frame_bytes(len(body)) + _MASK_BYTES
        try:
            await socket.send_frame(body, WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            raise connection_error(error) from None


class SocketTransport(_WebSocketTransport):
    """One WebSocket with one turn at a time."""

    async def _next(self, exchange: TurnExchange, lane: str | None) -> Event:
        assert self._socket is not None
        text = await _text(self._socket)
        exchange.received_bytes += _frame_bytes(_length(text))
        return exchange.receive(text)


class LanesTransport(_WebSocketTransport):
    """One WebSocket that runs one turn at a time on each of its lanes."""

    def __init__(self, access: Access, *betas: str) -> None:
        super().__init__(access, *betas)
        self._arrived: dict[str | None, asyncio.Queue[_Arrival | TurnFailed]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def __aexit__(self, *_: object) -> None:
        try:
            await super().__aexit__()
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader])

    async def turn(
        self, fields: Fields, lane: str | None = None, exchange: TurnExchange | None = None
    ) -> TurnExchange:
        self._arrived.setdefault(lane, asyncio.Queue())  # before an event for it can arrive
        return await super().turn(fields, lane, exchange)

    async def _connect(self, exchange: TurnExchange) -> ClientWebSocketResponse:
        socket = await super()._connect(exchange)
        self._reader = asyncio.create_task(self._read(socket))
        return socket

    async def _next(self, exchange: TurnExchange, lane: str | None) -> Event:
        arrival = await self._arrived[lane].get()
        if isinstance(arrival, TurnFailed):
            raise arrival
        event, at_ns, size_bytes = arrival
        exchange.received_bytes += size_bytes
        return exchange.record(event, at_ns)

    async def _read(self, socket: ClientWebSocketResponse) -> None:
        """Pass each event to its lane; an event without a known lane goes to all lanes."""
        try:
            while True:
                text = await _text(socket)
                at_ns = time.perf_counter_ns()
                event = decode(text)
                arrival = (event, at_ns, _frame_bytes(_length(text)))
                lane = event.get("stream_id")
                is_known = isinstance(lane, str) and lane in self._arrived
                for each in [self._arrived[lane]] if is_known else self._arrived.values():
                    each.put_nowait(arrival)
        except TurnFailed as error:
            for each in self._arrived.values():
                each.put_nowait(error)


async def _text(socket: ClientWebSocketResponse) -> str:
    message = await socket.receive()
    if message.type is not WSMsgType.TEXT:
        code = socket.close_code
        raise ConnectionLost("the server closed the connection" + (f" ({code})" if code is not None else ""))
    text: str = message.data
    return text


async def refused(answer: aiohttp.ClientResponse) -> RefusedByServer:
    """The exception for an HTTP answer with an error status."""
    try:
        reason = f"{answer.status}: {refusal(decode(await answer.read()))}"
    except MalformedAnswer:
        reason = f"{answer.status} {answer.reason}"
    return RefusedByServer(reason, answer.status)


def connection_error(error: Exception) -> ConnectionLost:
    """The exception for an error of the HTTP client, with a one-line reason."""
    is_refused = isinstance(error, aiohttp.ClientConnectorError)
    return (CannotConnect if is_refused else ConnectionLost)(reason(error))


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _frame_bytes(payload: int) -> int:
    """Size of a WebSocket frame with its header, without the mask."""
    return payload + (2 if payload < 126 else 4 if payload < 65536 else 10)


def _request_bytes(method: str, url: str, headers: Mapping[str, str] | MultiMapping[str]) -> int:
    """Size of the request line and the headers, with the blank line after them."""
    path = "/" + url.split("/", 3)[3]
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return sum(len(line) + 2 for line in lines) + 2


def _head_bytes(headers: tuple[tuple[bytes, bytes], ...]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers) + len("HTTP/1.1 200 OK\r\n\r\n")
