"""An error after the head of a streaming answer ends its connection: a client never waits for what will not
come."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest
from aiohttp import web

from slipring.base.aiohttp_internals import StreamedResponse
from slipring.core.limits import Limits
from slipring.protocol import wire
from slipring.protocol.endpoints import translation
from slipring.protocol.events import Event
from slipring.protocol.responses import Response
from slipring.server.background import event_stream, runs
from slipring.server.transports import websocket
from slipring.server.transports.http import SseReply
from slipring.server.transports.websocket import WebSocketConnection
from tests.api import Api
from tests.harness import PuppetEngine, Running, serve
from tests.server.admin.watching import ANY_PORT, admin_url
from tests.server.background.test_runs import running
from tests.server.raw import gone, open_raw, open_tcp, until

KEY = {"Authorization": "Bearer test-key"}
SILENT = Limits(ping_interval_s=0)
"""No keep-alives: a connection that does not end is silent."""


def failing(_: Any, *given: Any, **more: Any) -> Any:
    raise RuntimeError("a fault")


def failing_later(works: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what it should a few times, and then raises each time."""
    left = works

    def call(*given: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("a fault")
        return real(*given, **more)

    return call


async def is_cut_off(answer: aiohttp.ClientResponse) -> bytes:
    """What was received of an answer that ends before its end."""
    received: list[bytes] = []
    assert answer.status == 200
    with pytest.raises(aiohttp.ClientPayloadError):
        await asyncio.wait_for(_read(answer, received), 300)
    return b"".join(received)


async def _read(answer: aiohttp.ClientResponse, received: list[bytes]) -> None:
    while chunk := await answer.content.readany():
        received.append(chunk)


async def test_a_stream_of_a_run_with_a_corrupted_event_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "slipring.db"
    async with running(store=f"sqlite:{path}", limits=SILENT) as (engine, api):
        begun = await api.begin()
        performance = await engine.next()
        performance.say("a", "b")
        performance.finish()
        await api.ended(begun["id"])
        await until(lambda: not api.server.server.background._runs)  # every event has been written
        with apsw.Connection(str(path)) as database:
            database.set_busy_timeout(60_000)
            database.execute("UPDATE slipring_run_events SET data = x'7b' WHERE sequence_number = 5")
            assert database.changes() == 1
        url = f"{api.server.url}/responses/{begun['id']}?stream=true"
        async with api.server.http.get(url, headers=KEY) as answer:
            received = await is_cut_off(answer)
        assert received.count(b"event: ") == 5
        async with api.server.http.get(url + "&starting_after=5", headers=KEY) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await gone(api.server)


async def test_a_stream_over_http_1_0_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(limits=SILENT) as (engine, api):
        begun = await api.begin()
        (await engine.next()).finish()
        await api.ended(begun["id"])
        monkeypatch.setattr(event_stream, "_write_all", failing)
        async with open_tcp(api.server) as raw:
            path = f"/v1/responses/{begun['id']}?stream=true"
            await raw.send(f"GET {path} HTTP/1.0\r\nAuthorization: Bearer test-key\r\n\r\n".encode())
            assert (await raw.ended()).startswith(b"HTTP/1.0 200 OK\r\n")


async def test_the_stream_of_a_background_create_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(limits=SILENT) as (engine, api):
        block = failing_later(2, translation.named_block)
        monkeypatch.setattr(translation, "named_block", block)
        body = {"input": "hello", "background": True, "stream": True}
        async with api.server.http.post(f"{api.server.url}/responses", json=body, headers=KEY) as answer:
            (await engine.next()).say("a")
            assert (await is_cut_off(answer)).count(b"event: ") == 2


async def test_a_stream_whose_head_is_ready_but_not_sent_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SILENT) as server:

        async def prepare(stream: StreamedResponse, request: web.Request) -> None:
            await web.StreamResponse.prepare(stream, request)
            raise RuntimeError("a fault")

        monkeypatch.setattr(StreamedResponse, "prepare", prepare)
        posting = server.http.post(
            f"{server.url}/responses", json={"input": "a", "stream": True}, headers=KEY
        )
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await posting
        await asyncio.wait_for((await engine.next()).stopped.wait(), 300)
        await gone(server)


@pytest.mark.parametrize("method", ["subscribe", "greeting"])
async def test_a_live_stream_is_cut_off(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async with serve(admin=ANY_PORT) as server:
        monkeypatch.setattr(server.server._admin._stream, f"_{method}", failing)
        async with server.http.get(f"{admin_url(server)}live") as answer:
            assert await is_cut_off(answer) == b""


async def socket_ends(server: Running, path: str) -> None:
    async with open_raw(server, path=path, more="Authorization: Bearer test-key\r\n") as raw:
        assert await raw.ended() == b""


@pytest.mark.parametrize("method", ["__init__", "serve"])
async def test_a_socket_is_cut_off(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async with serve() as server:
        monkeypatch.setattr(WebSocketConnection, method, failing)
        await socket_ends(server, "/v1/responses")
        assert server.service.sockets == 0


async def test_an_echo_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(echo=True) as server:
        monkeypatch.setattr(websocket, "_echo_messages", failing)
        await socket_ends(server, f"/v1{websocket.ECHO_PATH}")
        assert server.service.sockets == 0


async def test_an_error_before_the_head_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (engine, api):
        begun = await api.begin()
        (await engine.next()).finish()
        await api.ended(begun["id"])
        monkeypatch.setattr(event_stream, "_Follower", failing)
        status, error = await Api(api.server).call("GET", f"/responses/{begun['id']}?stream=true")
        assert (status, error["error"]["code"]) == (500, "server_error")


@pytest.mark.parametrize("works", [1, 2, 4])
async def test_a_stream_whose_events_cannot_be_written_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SILENT) as server:
        write = failing_later(works, SseReply._write)
        monkeypatch.setattr(SseReply, "_write", lambda reply, blocks: write(reply, blocks))
        body = {"input": "hello", "stream": True}
        async with server.http.post(f"{server.url}/responses", json=body, headers=KEY) as answer:
            performance = await engine.next()
            performance.say(*"abcd")
            performance.finish()
            assert b"response.completed" not in await is_cut_off(answer)
        await gone(server)


def break_encoder(patch: pytest.MonkeyPatch) -> None:
    """From now on, no event and no response can be encoded."""
    real = wire.encode

    def encode(value: object) -> bytes:
        if isinstance(value, Event | Response):
            raise RuntimeError("a fault")
        return real(value)

    patch.setattr(wire, "encode", encode)
    patch.setattr(runs, "encode", encode)


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_stream_of_which_no_event_can_be_encoded_ends(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SILENT) as server:
        if not is_begun:
            break_encoder(monkeypatch)
        body = {"input": "hello", "stream": True, "store": False}
        posting = asyncio.create_task(post_and_read(server, body))
        performance = await engine.next()
        performance.say("a")
        if is_begun:
            await asyncio.wait_for(performance.pulled.acquire(), 300)
            break_encoder(monkeypatch)
        performance.say("b")
        performance.finish()
        status, received = await asyncio.wait_for(posting, 300)
        assert status == (200 if is_begun else 500)
        assert b"[DONE]" not in received
        await gone(server)


async def post_and_read(server: Running, body: dict[str, Any]) -> tuple[int, bytes]:
    """The status of an answer, and what was received of it until it ended in any way."""
    received: list[bytes] = []
    async with server.http.post(f"{server.url}/responses", json=body, headers=KEY) as answer:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            await _read(answer, received)
        return answer.status, b"".join(received)


async def test_a_response_that_cannot_be_encoded_is_answered_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SILENT) as server:
        break_encoder(monkeypatch)
        posting = asyncio.create_task(post_and_read(server, {"input": "hello", "store": False}))
        (await engine.next()).finish()
        assert (await asyncio.wait_for(posting, 300))[0] == 500
        await gone(server)


async def test_a_socket_on_which_no_event_can_be_encoded_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SILENT) as server:
        break_encoder(monkeypatch)
        async with open_raw(server) as raw:
            await raw.create(input="hello", store=False)
            (await engine.next()).finish()
            assert await raw.ended() == b""
        await gone(server)


async def test_a_background_response_whose_end_cannot_be_encoded_fails() -> None:
    limits = Limits(ping_interval_s=0, run_lease_s=1.0)
    async with running(limits=limits) as (engine, api):
        body = {"input": "hello", "background": True, "stream": True}
        posting = asyncio.create_task(post_and_read(api.server, body))
        performance = await engine.next()
        performance.say("a")
        await asyncio.wait_for(performance.pulled.acquire(), 300)
        (live,) = api.server.server.background._runs.values()
        with pytest.MonkeyPatch.context() as patch:
            break_encoder(patch)
            performance.finish()
            await until(lambda: live.is_over)
        received = (await asyncio.wait_for(posting, 300))[1]
        assert b"event: response.failed" in received
        assert received.endswith(b"data: [DONE]\n\n")
