"""A pytest plugin that records what clients receive in each test:
``python -m pytest -p tests.wire_recording.plugin --record-wire DIRECTORY``.

It sees the frames, SSE blocks and bodies that tests read with aiohttp, httpx2, websockets and raw sockets,
and the events of sessions without a server (tests/core). Of what a server sends, only what a client reads
counts: how much a server has sent when its client leaves depends on luck. For the same reason a background
response that is polled counts only once it has ended.
"""

import json
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any, Self, cast

import aiohttp
import httpx2
import pytest
from aiohttp.client_reqrep import ClientResponse
from websockets.asyncio.connection import Connection as WebsocketsConnection

from tests import wire
from tests.client_sessions import creator_of_session
from tests.server.raw import CLOSE, TEXT, RawSocket
from tests.wire_recording.normal_form import NormalForm
from tests.wire_recording.recordings import Lane, Writer

_OF_TEST_CODE = "tests."
_API = ("/v1/", "/health", "/ready")
"""What the recorded paths begin with. Others are of the admin listener, and of servers that tests run."""
_RUNNING = ('"status":"queued"', '"status":"in_progress","output"')
_DONE = "data: [DONE]"
_FOLLOWED = ("content-type", "retry-after", "allow", "x-should-retry", "openai-processing-ms")


class Recorder:
    """What clients receive in the test that is running."""

    def __init__(self, of_sessions: bool) -> None:
        self._of_sessions = of_sessions
        self._bodies: list[tuple[str, bytearray]] = []
        self._sockets: dict[int, tuple[object, list[str]]] = {}

    def body(self, what: str) -> bytearray:
        """The body of an HTTP response, to which its reader adds what it has read."""
        body = bytearray()
        self._bodies.append((what, body))
        return body

    def message(self, socket: object, text: str) -> None:
        """A message of a WebSocket connection, or its end."""
        # The object is kept: another one must not get its id.
        self._sockets.setdefault(id(socket), (socket, []))[1].append(text)

    def event(self, order: wire.Order, event: wire.Json) -> None:
        """An event of a session that no server has."""
        if self._of_sessions:
            self.message(order, json.dumps(event))

    def lanes(self) -> list[Lane]:
        of_sockets = [lane for _, messages in self._sockets.values() for lane in _lanes_of(messages)]
        of_bodies = [_normal(what, _blocks(bytes(body))) for what, body in self._bodies]
        return [lane for lane in of_bodies if not _is_polled(lane)] + of_sockets


def _normal(what: str, documents: list[str]) -> Lane:
    form = NormalForm()
    return (form.of(what), *(form.of(document) for document in documents))


def _is_polled(lane: Lane) -> bool:
    """Whether it is a response as it was while it ran."""
    return lane[0].startswith("GET ") and any(status in lane[1] for status in _RUNNING)


def _lanes_of(messages: list[str]) -> list[Lane]:
    lanes: dict[str, list[str]] = {}
    for message in messages:
        try:
            event = json.loads(message)
        except ValueError:
            event = None
        lane = event.get("stream_id") if isinstance(event, dict) else None
        lanes.setdefault(f"lane {lane}", []).append(message)
    return [_normal(what, documents) for what, documents in lanes.items()]


def _blocks(body: bytes) -> list[str]:
    """The events of an SSE body; of another body, all of it, if it is JSON."""
    text = body.decode(errors="backslashreplace")
    if text.startswith(("event: ", ": ", _DONE)):
        blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
        return [part for block in blocks for part in block.split("\ndata: ", 1)]
    return [text] if text.startswith(("{", "[")) else ["<no JSON>" if text else ""]


class _Plugin:
    def __init__(self, directory: Path) -> None:
        self._writer = Writer(directory)
        self.recorder = Recorder(of_sessions=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        with pytest.MonkeyPatch.context() as patch:
            _observe(patch, self)
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        is_generated = hasattr(getattr(item, "obj", None), "hypothesis")
        of_sessions = item.nodeid.startswith("tests/core/") and not is_generated
        self.recorder = Recorder(of_sessions=of_sessions)
        outcome = "failed"
        try:
            result = yield
            outcome = "passed"
            return result
        finally:
            lanes = [] if is_generated else self.recorder.lanes()
            if lanes or is_generated:
                self._writer.write(item.nodeid, "generated" if is_generated else outcome, lanes)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-wire", metavar="DIRECTORY", help="record what clients receive in each test")


def pytest_configure(config: pytest.Config) -> None:
    directory = config.getoption("--record-wire")
    if directory is not None:
        config.pluginmanager.register(_Plugin(Path(directory)))


# Where clients read ------------------------------------------------------------------------------


def _observe(patch: pytest.MonkeyPatch, plugin: _Plugin) -> None:
    _observe_aiohttp(patch, plugin)
    _observe_raw_sockets(patch, plugin)
    _observe_openai_clients(patch, plugin)
    see = wire.Order.see

    def observed_see(order: wire.Order, event: wire.Json) -> None:
        plugin.recorder.event(order, event)
        see(order, event)

    patch.setattr(wire.Order, "see", observed_see)


def _observe_aiohttp(patch: pytest.MonkeyPatch, plugin: _Plugin) -> None:
    class Response(ClientResponse):
        async def start(self, connection: Any) -> Self:
            await super().start(connection)
            if not self.url.path.startswith(_API):
                return self
            head = [f"{name}: {self.headers[name]}" for name in _FOLLOWED if name in self.headers]
            what = " ".join([self.method, self.url.path_qs, str(self.status), *head])
            self.content = cast(aiohttp.StreamReader, _Tee(self.content, plugin.recorder.body(what)))
            return self

    class Socket(aiohttp.ClientWebSocketResponse):
        async def receive(self, *args: Any, **options: Any) -> Any:
            message = await super().receive(*args, **options)
            if not self._response.url.path.startswith(_API):
                return message
            if message.type is aiohttp.WSMsgType.TEXT:
                plugin.recorder.message(self, message.data)
            elif message.type is aiohttp.WSMsgType.CLOSE:
                plugin.recorder.message(self, f"close {message.data} {message.extra}")
            return message

    init = aiohttp.ClientSession.__init__

    def observed_init(session: aiohttp.ClientSession, *args: Any, **options: Any) -> None:
        """The clients of slipring itself, such as engines, are not clients of the tested server."""
        if str(creator_of_session().f_globals.get("__name__")).startswith(_OF_TEST_CODE):
            options = {"response_class": Response, "ws_response_class": Socket, **options}
        init(session, *args, **options)

    patch.setattr(aiohttp.ClientSession, "__init__", observed_init)


class _Tee:
    """The body of a response, of which every byte that is read is kept."""

    def __init__(self, stream: aiohttp.StreamReader, read: bytearray) -> None:
        self._stream = stream
        self._kept = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, n: int = -1) -> bytes:
        return self._keep(await self._stream.read(n))

    async def readany(self) -> bytes:
        return self._keep(await self._stream.readany())

    async def readexactly(self, n: int) -> bytes:
        return self._keep(await self._stream.readexactly(n))

    async def readline(self, **options: Any) -> bytes:
        return self._keep(await self._stream.readline(**options))

    async def readuntil(self, *args: Any, **options: Any) -> bytes:
        return self._keep(await self._stream.readuntil(*args, **options))

    async def readchunk(self) -> tuple[bytes, bool]:
        chunk, is_end = await self._stream.readchunk()
        return self._keep(chunk), is_end

    async def iter_any(self) -> AsyncIterator[bytes]:
        while chunk := await self.readany():
            yield chunk

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        while chunk := await self.read(n):
            yield chunk

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        while (chunk := await self.readchunk()) != (b"", False):
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line

    def _keep(self, data: bytes) -> bytes:
        self._kept += data
        return data


def _observe_raw_sockets(patch: pytest.MonkeyPatch, plugin: _Plugin) -> None:
    receive_frame, read_head, ended = RawSocket.receive_frame, RawSocket.read_head, RawSocket.ended

    async def observed_frame(raw: RawSocket) -> tuple[int, bytes]:
        opcode, payload = await receive_frame(raw)
        if opcode == TEXT:
            is_json = payload.startswith(b"{")  # else it is compressed
            plugin.recorder.message(raw, payload.decode() if is_json else "<no JSON>")
        elif opcode == CLOSE:
            plugin.recorder.message(raw, f"close {payload!r}")
        return opcode, payload

    async def observed_head(raw: RawSocket) -> bytes:
        head = await read_head(raw)
        plugin.recorder.message(raw, head.split(b"\r\n")[0].decode(errors="backslashreplace"))
        return head

    async def observed_end(raw: RawSocket) -> bytes:
        data = await ended(raw)
        head, _, body = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/"):
            plugin.recorder.body(head.split(b"\r\n")[0].decode()).extend(body)
        return data

    patch.setattr(RawSocket, "receive_frame", observed_frame)
    patch.setattr(RawSocket, "read_head", observed_head)
    patch.setattr(RawSocket, "ended", observed_end)


class _HttpxTee(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, read: bytearray) -> None:
        self._stream = stream
        self._kept = read

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._kept += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _observe_openai_clients(patch: pytest.MonkeyPatch, plugin: _Plugin) -> None:
    handle = httpx2.AsyncHTTPTransport.handle_async_request
    recv = WebsocketsConnection.recv

    async def observed_handle(
        transport: httpx2.AsyncHTTPTransport, request: httpx2.Request
    ) -> httpx2.Response:
        response = await handle(transport, request)
        head = [f"{name}: {response.headers[name]}" for name in _FOLLOWED if name in response.headers]
        what = " ".join([request.method, request.url.raw_path.decode(), str(response.status_code), *head])
        stream = cast(httpx2.AsyncByteStream, response.stream)
        response.stream = _HttpxTee(stream, plugin.recorder.body(what))
        return response

    async def observed_recv(socket: WebsocketsConnection, decode: bool | None = None) -> Any:
        message = await recv(socket, decode)
        plugin.recorder.message(socket, message if isinstance(message, str) else bytes(message).decode())
        return message

    patch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", observed_handle)
    patch.setattr(WebsocketsConnection, "recv", observed_recv)
