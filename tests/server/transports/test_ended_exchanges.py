"""What a connection or request held is freed when it ends, without a garbage collection: one turn may hold
many megabytes, and a process at rest does not look for garbage."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipring.core.turn.output.output_events import Output
from slipring.core.turn.turn import Turn
from slipring.server.background.runs import LiveRun
from slipring.server.driver import Driver
from slipring.server.transports.http import JsonReply, SseReply
from slipring.server.transports.websocket import WebSocketConnection
from tests.harness import PuppetEngine, Running, serve
from tests.server.raw import gone, until
from tests.server.transports.test_tool_output_wire import ASK, HEADER, LONG, Reader, called, output

pytestmark = pytest.mark.usefixtures("compiled_here")

HOLDERS = (Driver, JsonReply, LiveRun, Output, SseReply, Turn, WebSocketConnection, web.Request)
INVALID: list[dict[str, Any]] = [
    {"input": 5},
    {"input": "hello", "temperature": "hot"},
    {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
    {"input": "hello", "tools": [{"type": "function", "parameters": {}}]},
    {"input": "hello", "model": "unknown"},
    {"input": "hello", "previous_response_id": "resp_unknown"},
    {"input": "hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}},
    {"input": [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]},
]


def held() -> dict[int, str]:
    """The names of the classes of all holders, by their identity."""
    return {id(each): type(each).__name__ for each in gc.get_objects() if type(each) in HOLDERS}


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def nothing_is_left(server: Running, before: set[int]) -> None:
    """Require that everything of the ended exchanges is freed, at the latest some steps of the loop later."""
    await gone(server)
    await server.http.close()  # a connection that is kept open refers to its last request
    for _ in range(100):
        if held().keys() <= before:
            return
        await asyncio.sleep(0)
    left = [name for number, name in held().items() if number not in before]
    pytest.fail(f"only a garbage collection frees {left}")


@pytest.fixture
def before() -> set[int]:
    """The objects of earlier tests that still exist."""
    return set(held())


async def test_a_socket_that_its_client_closes(before: set[int]) -> None:
    async with serve() as server:
        async with server.connect() as socket:
            first = await socket.response(input="hello", store=False)
            await socket.response(input="more", previous_response_id=first["id"], store=False)
            await socket.error(input="more", previous_response_id="resp_unknown")
        await nothing_is_left(server, before)


async def test_a_socket_that_ends_during_a_turn(before: set[int]) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="hello", store=False)
            performance = await engine.next()
            performance.say("hel")
            await socket.until("response.output_text.delta")
            ended = performance.stopped
            del performance  # it refers to its job
        await ended.wait()
        await nothing_is_left(server, before)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_socket_that_has_sent_the_output_of_a_running_tool(
    before: set[int], *, goes_on: bool
) -> None:
    engine = Reader(holds=True)
    async with serve(engine) as server:
        async with server.connect(headers=HEADER) as socket:
            call = await called(socket)
            await socket.send(type="response.tool_output.delta", **call, delta=LONG)
            await until(lambda: engine.running == 1)
            if goes_on:
                asked = {**ASK, "input": output(call["call_id"])}
                await socket.response(**asked, previous_response_id=call["response_id"])
        await nothing_is_left(server, before)


async def test_a_stream_that_is_read_to_its_end(before: set[int]) -> None:
    async with serve() as server:
        await server.stream(input="hello")
        await nothing_is_left(server, before)


async def test_a_stream_that_is_refused(before: set[int]) -> None:
    async with serve() as server:
        status, _ = await server.post(input="hello", stream=True, previous_response_id="resp_unknown")
        assert status == 400
        await nothing_is_left(server, before)


async def test_a_stream_whose_client_leaves(before: set[int]) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with aiohttp.ClientSession() as http:
            body = {"input": "hello", "stream": True, "store": False}
            async with http.post(f"{server.url}/responses", json=body):
                ended = (await engine.next()).stopped
        await ended.wait()
        await nothing_is_left(server, before)


async def test_a_post_without_streaming(before: set[int]) -> None:
    async with serve() as server:
        status, _ = await server.post(input="hello", store=False)
        assert status == 200
        await nothing_is_left(server, before)


@pytest.mark.parametrize("body", INVALID)
async def test_a_post_that_is_refused(before: set[int], body: dict[str, Any]) -> None:
    async with serve() as server:
        status, _ = await server.post(**body)
        assert 400 <= status < 500
        await nothing_is_left(server, before)


@pytest.mark.parametrize("body", INVALID)
async def test_a_turn_that_is_refused(before: set[int], body: dict[str, Any]) -> None:
    async with serve() as server:
        async with server.connect() as socket:
            await socket.error(**body)
        await nothing_is_left(server, before)


async def test_a_background_run(before: set[int]) -> None:
    async with serve() as server:
        status, _ = await server.post(input="hello", background=True)
        assert status == 200
        await nothing_is_left(server, before)
