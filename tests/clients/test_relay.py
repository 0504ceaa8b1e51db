"""The relay between real clients and the server reports faults that the clients do not notice."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tests.clients.real.disturbances import Cutting, Forgetting, Refusing
from tests.relay import relay_to, relayed

MALFORMED = '{"type": "response.created", "sequence_number": 0}'


@asynccontextmanager
async def server_of(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/v1/responses", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def send_malformed_frame(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.send_str(MALFORMED)
    await socket.close(code=1013, message=b"enough")
    return socket


async def answer_malformed_body(request: web.Request) -> web.StreamResponse:
    return web.json_response({"id": "resp_1"})


async def test_a_malformed_frame_reaches_the_client_and_fails_the_test() -> None:
    async def listen(url: str) -> None:
        async with (
            aiohttp.ClientSession() as http,
            relay_to(url) as relay,
            http.ws_connect(f"{relay.url}/responses") as socket,
        ):
            assert await socket.receive_str() == MALFORMED
            closed = await socket.receive()
            assert (closed.type, closed.data, closed.extra) == (WSMsgType.CLOSE, 1013, "enough")

    async with server_of(send_malformed_frame) as url:
        with pytest.raises(AssertionError, match="not a valid ResponseWsCreated"):
            await listen(url)


async def test_a_malformed_body_reaches_the_client_and_fails_the_test() -> None:
    async def ask(url: str) -> None:
        async with (
            aiohttp.ClientSession() as http,
            relay_to(url) as relay,
            http.post(f"{relay.url}/responses", json={}) as answer,
        ):
            assert await answer.json() == {"id": "resp_1"}

    async with server_of(answer_malformed_body) as url:
        with pytest.raises(AssertionError, match="not a valid Response"):
            await ask(url)


async def test_a_response_that_never_ends_fails_the_test() -> None:
    async def leave_early() -> None:
        async with (
            aiohttp.ClientSession() as http,
            relayed("simulated:ttft_ms=3600000") as relay,
            http.ws_connect(f"{relay.url}/responses") as socket,
        ):
            await socket.send_json({"type": "response.create", "model": "simulated", "input": "hello"})
            await socket.receive_str()

    with pytest.raises(AssertionError, match="without a terminal event"):
        await leave_early()


async def test_a_client_that_waits_forever_is_disconnected() -> None:
    async def wait_for_nothing() -> None:
        async with aiohttp.ClientSession() as http, relayed(patience_s=0.1) as relay:
            with suppress(aiohttp.ClientError):
                async with http.ws_connect(f"{relay.url}/responses") as socket:
                    await socket.receive()

    with pytest.raises(AssertionError, match="the client was not done"):
        await wait_for_nothing()


async def test_a_disturbed_upgrade_is_refused_and_counted() -> None:
    async with aiohttp.ClientSession() as http, relayed(disturbance=Refusing(426)) as relay:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await http.ws_connect(f"{relay.url}/responses")
        assert refusal.value.status == 426
        assert (relay.refusals, relay.sockets) == (1, [])


async def test_an_unknown_parent_is_answered_with_the_servers_error() -> None:
    async with (
        aiohttp.ClientSession() as http,
        relayed(disturbance=Forgetting(2)) as relay,
        http.ws_connect(f"{relay.url}/responses") as socket,
    ):
        create = {"type": "response.create", "model": "simulated", "input": "hello"}
        await socket.send_json(create)
        while (event := await socket.receive_json())["type"] != "response.completed":
            pass
        await socket.send_json({**create, "previous_response_id": event["response"]["id"]})
        error = await socket.receive_json()
        assert error["error"]["code"] == "previous_response_not_found"
        assert relay.socket.sent[1]["previous_response_id"] == event["response"]["id"]


async def test_a_connection_is_cut_during_an_answer() -> None:
    async with (
        aiohttp.ClientSession() as http,
        relayed(disturbance=Cutting(2), abandoned=True) as relay,
        http.ws_connect(f"{relay.url}/responses") as socket,
    ):
        await socket.send_json({"type": "response.create", "model": "simulated", "input": "hello"})
        kinds = [message.json()["type"] async for message in socket if message.type is WSMsgType.TEXT]
        assert kinds[-2:] == ["response.output_text.delta"] * 2
        assert socket.close_code == 1006
        assert [event["type"] for event in relay.socket.received] == kinds
