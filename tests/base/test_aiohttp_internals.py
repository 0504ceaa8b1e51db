"""The assumptions about undocumented parts of aiohttp. A release that breaks one of them fails here."""

import ast
import asyncio
import inspect
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, StreamReader, WSMsgType, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError
from aiohttp.test_utils import TestServer

from slipring.base.aiohttp_internals import (
    DECODED,
    MaskCheck,
    ServerProtocol,
    StreamedResponse,
    is_client_fault,
    is_undecodable,
    is_undecoded,
    observe_requests,
    protocol_of,
    waiting_bytes_of,
)
from tests.server.raw import frame, until

SRC = Path(__file__).parents[2] / "src" / "slipring"
REQUEST_INTERNALS = {"writer", "protocol", "request_factory"}
PRIVATE_NAMES = {"_lingering_time", "_autoclose", "_payload_writer", "_request_factory", "_task_handler"}


class Recording(ServerProtocol):
    """Records which hooks aiohttp calls."""

    __slots__ = ("calls", "errors", "queued")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: list[str] = []
        self.queued: list[bool] = []
        self.errors: list[BaseException | None] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.queued.append(self.has_queued_request)

    def prepare_response(self, request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
        self.calls.append(f"prepare {response.status}")
        return response

    def cut_off(self) -> None:
        self.calls.append("cut off")

    def response_sent(self) -> None:
        self.calls.append("sent")

    def respond_to_error(self, status: int, exc: BaseException | None) -> web.StreamResponse:
        self.calls.append(f"error {status} {type(exc).__name__}")
        self.errors.append(exc)
        return web.Response(status=status)


class Served:
    """A listening server whose connections are ``Recording``."""

    def __init__(self, server: web.Server, port: int) -> None:
        self.server = server
        self.port = port
        self.protocols: list[Recording] = []
        self.begun: list[object] = []

    async def exchange(self, request: bytes) -> bytes:
        """Send bytes on a new connection and return everything until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 300)
        writer.close()
        return answer


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[Served]:
    server = web.Server(handler)
    loop = asyncio.get_running_loop()
    served = Served(server, 0)
    observe_requests(server, served.begun.append)

    def connect() -> Recording:
        protocol = Recording(server, loop=loop, access_log=None)
        served.protocols.append(protocol)
        return protocol

    listener = await loop.create_server(connect, "127.0.0.1", 0)
    served.port = listener.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        listener.close()
        await server.shutdown()


GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def test_hooks_are_called_around_every_response() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        assert protocol_of(request) is served.protocols[0]
        return web.Response(text="hello")

    async with serving(handler) as served:
        assert (await served.exchange(GET)).endswith(b"hello")
        (protocol,) = served.protocols
        assert served.begun == [protocol]
        assert protocol.calls == ["prepare 200", "sent"]


async def test_a_request_is_queued_from_the_end_of_its_head_to_the_start_of_its_handler() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        assert not served.protocols[0].has_queued_request
        return web.Response()

    async with serving(handler) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(GET[:10])
        await until(lambda: bool(served.protocols and served.protocols[0].queued))
        writer.write(GET[10:])
        await asyncio.wait_for(reader.read(), 300)
        writer.close()
        assert served.protocols[0].queued[0] is False
        assert served.protocols[0].queued[-1] is True


async def test_errors_about_encodings_are_told_apart() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    def post(encoding: str, body: bytes) -> bytes:
        head = f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return f"POST / HTTP/1.1\r\nHost: a\r\n{head}".encode() + body

    assert {"gzip", "deflate"} <= {*DECODED}
    async with serving(handler) as served:
        for encoding in {"br", "zstd"} - {*DECODED}:
            await served.exchange(post(encoding, b"{}"))
            (error,) = served.protocols[-1].errors
            assert is_undecoded(error)
            assert not is_undecodable(error)
        await served.exchange(post("deflate", zlib.compress(b"{}")[:-3]))
        (error,) = served.protocols[-1].errors
        assert is_undecodable(error)
        assert not is_undecoded(error)
        assert (await served.exchange(post("unheard-of", b"as it is"))).endswith(b"as it is")


async def test_malformed_requests_and_exceptions_reach_the_error_hook() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        raise KeyError("a fault")

    async with serving(handler) as served:
        await served.exchange(b"no HTTP at all\r\n\r\n")
        await served.exchange(GET)
        malformed, failed = (protocol.calls for protocol in served.protocols)
    assert malformed[0].startswith("error 400 ")
    assert failed[:2] == ["error 500 KeyError", "prepare 500"]


@pytest.mark.parametrize("kind", [web.StreamResponse, StreamedResponse])
@pytest.mark.parametrize("part", [b"", b"a part"])
@pytest.mark.parametrize("raises", [True, False])
async def test_no_other_response_is_sent_after_the_head_of_one(
    kind: type[web.StreamResponse], part: bytes, raises: bool
) -> None:
    """Nor if the head has not been sent yet: the writer has been set up for the first response."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = kind()
        await response.prepare(request)
        await response.write(part)
        if raises:
            raise KeyError("a fault")
        return web.Response(text="another")

    async with serving(handler) as served:
        answer = await served.exchange(GET)
        calls = served.protocols[0].calls
    assert calls == ["error 500 KeyError", "cut off"] if raises else ["cut off"]
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert part in answer
    assert b"another" not in answer


async def test_a_response_that_was_begun_by_its_handler_is_finished() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a part")
        return response

    async with serving(handler) as served:
        answer = await served.exchange(GET)
        assert served.protocols[0].calls == ["prepare 200", "sent"]
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("lingers", [True, False])
async def test_the_rest_of_a_body_is_read_only_while_lingering(lingers: bool) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        if not lingers:
            served.protocols[0].stop_lingering()
        return web.Response()

    async with serving(handler) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")
        await reader.readuntil(b"\r\n\r\n")
        if lingers:
            writer.write(b" more" + GET)  # completes the body, so the connection stays open
            assert b"200 OK" in await asyncio.wait_for(reader.read(), 300)
        else:
            assert await asyncio.wait_for(reader.read(), 300) == b""
        writer.close()


async def test_headers_are_sent_with_the_first_part_of_a_streamed_body() -> None:
    sizes: list[int] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        response = StreamedResponse()
        await response.prepare(request)
        sizes.append(request.writer.output_size)
        await response.write(b"first")
        sizes.append(request.writer.output_size)
        return response

    async with serving(handler) as served:
        answer = await served.exchange(b"GET / HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert sizes == [0, len(answer)]


class Fed:
    """A reader that records what it is given."""

    def __init__(self) -> None:
        self.data = b""
        self.has_ended = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return self.data.endswith(RESERVED_BITS), b""

    def feed_eof(self) -> None:
        self.has_ended = True


RESERVED_BITS = b"\x70\x80"
MASKED = [frame(1, b"x" * size, mask=b"\x01\x00\x81\xff") for size in (0, 1, 125, 126, 300, 65535, 65536)]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000, 10**6])
@pytest.mark.parametrize("violation", [b"", frame(1, b"ab", mask=None), frame(9, b"", mask=None)])
def test_frames_pass_the_mask_check_up_to_the_first_without_a_mask(piece: int, violation: bytes) -> None:
    reader, sent = Fed(), b"".join(MASKED) + violation
    check = MaskCheck(reader)
    ended = [check.feed_data(sent[start : start + piece])[0] for start in range(0, len(sent), piece)]
    assert any(ended) is bool(violation)
    whole = b"".join(MASKED)
    assert reader.data.startswith(whole + RESERVED_BITS if violation else whole)
    assert violation or reader.data == whole
    check.feed_eof()
    assert reader.has_ended


@pytest.mark.parametrize("split", range(1, 10))
def test_the_mask_check_knows_where_frames_end(split: int) -> None:
    sent, check = frame(1, b"abc"), MaskCheck(Fed())
    assert check.is_between_frames
    check.feed_data(sent[:split])
    assert check.is_between_frames is (split == len(sent))
    check.feed_data(sent[split:])
    assert check.is_between_frames


async def test_messages_that_wait_are_inflated_one_at_a_time_and_have_a_size() -> None:
    """However many deflated messages one read brings."""
    sizes: list[int] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=True)
        await socket.prepare(request)
        waiting_bytes = waiting_bytes_of(socket)
        await until(lambda: waiting_bytes() > 0)
        while waiting_bytes():
            sizes.append(waiting_bytes())
            await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get("/", handle)
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    sent = frame(1, packed.removesuffix(b"\x00\x00\xff\xff"), reserved=0b100) * 20
    async with (
        TestServer(app) as server,
        ClientSession() as session,
        session.ws_connect(server.make_url("/"), compress=15) as client,
    ):
        transport = client._conn.transport
        transport.write(sent)
        await until(lambda: len(sizes) >= 20)
    assert all(2**20 <= size < 2**21 for size in sizes)


async def test_an_upgraded_connection_recognizes_pongs_and_keeps_no_parser_of_requests() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
        return socket

    async with (
        serving(handler) as served,
        ClientSession() as http,
        http.ws_connect(f"http://127.0.0.1:{served.port}/") as socket,
    ):
        (protocol,) = served.protocols
        assert protocol._parser is None
        pong = frame(10, b"")
        assert protocol.is_empty_pong(pong)
        for other in (frame(10, b"a"), frame(9, b""), pong + pong, pong[:-1], frame(10, b"", mask=None)):
            assert not protocol.is_empty_pong(other)
        await socket.send_str("a" * 2**20)  # more than the buffer, so reading is paused and resumed
        assert await socket.receive_str(timeout=300) == "a" * 2**20
    assert not Recording(served.server, loop=asyncio.get_running_loop()).is_empty_pong(pong)


async def test_errors_that_clients_cause_are_recognized() -> None:
    assert is_client_fault(HttpProcessingError())
    assert is_client_fault(web.RequestPayloadError())
    loop = asyncio.get_running_loop()
    with pytest.raises(RuntimeError) as disconnected:
        await StreamReader(BaseProtocol(loop), 2**16, loop=loop).readany()
    assert is_client_fault(disconnected.value)
    assert not is_client_fault(RuntimeError("another"))
    assert not is_client_fault(None)


async def test_overridden_methods_have_the_signatures_of_aiohttp() -> None:
    names = ("finish_response", "handle_error", "set_parser", "_resume_transport_reading")
    for name in names:
        ours = inspect.signature(getattr(ServerProtocol, name))
        theirs = inspect.signature(getattr(web.RequestHandler, name))
        assert list(ours.parameters) == list(theirs.parameters), name
    factory = inspect.signature(web.Server(lambda request: None).request_factory)  # type: ignore[arg-type,return-value]
    assert len(factory.parameters) == 5


def test_no_other_module_uses_internals_of_aiohttp() -> None:
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        if ("import aiohttp" in text or "from aiohttp" in text) and path.name != "aiohttp_internals.py":
            found = used_internals(ast.parse(text))
            assert not found, f"{path.relative_to(SRC)} uses {found}"


def used_internals(tree: ast.Module) -> list[str]:
    """The internals of aiohttp that a module uses."""
    nodes = list(ast.walk(tree))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    internal = {name for name in imported if name.startswith("aiohttp.")}
    found = sorted(internal - {"aiohttp.typedefs", "aiohttp.abc"})
    for node in nodes:
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            is_internal = (
                (owner in ("request", "server") and node.attr in REQUEST_INTERNALS)
                or (owner == "web" and node.attr == "RequestHandler")
                or node.attr in PRIVATE_NAMES
            )
            found += [node.attr] if is_internal else []
    return found
