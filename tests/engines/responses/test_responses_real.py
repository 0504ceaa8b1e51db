"""The responses engine in front of real servers: another slipring, and llama.cpp's own Responses API."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallStarted, ThoughtSummary
from slipring.core.limits import Limits
from slipring.engines.base import Engine
from slipring.engines.responses.engine import ResponsesEngine
from slipring.engines.responses.options import ResponsesOptions
from tests.harness import WEATHER, PuppetEngine, Running, Socket, serve
from tests.model import SharedModel

GREEDY = {"temperature": 0, "max_output_tokens": 16, "store": False}
KEY = "SLIPRING_TEST_RESPONSES_KEY"


@asynccontextmanager
async def two(
    engine: Engine | str, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Running, Running]]:
    """A server in front of another one."""
    async with serve(engine, limits=limits) as behind:
        front = ResponsesEngine(ResponsesOptions(**{"url": behind.url, "retries": 0, **options}))
        async with serve(front) as before:
            yield before, behind


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


async def converse(socket: Socket) -> list[str]:
    """Three turns of a chain and a fork; the texts of their answers."""
    first = await socket.response(input="Name a river in Italy.", instructions="Be brief.", **GREEDY)
    asked = {"instructions": "Be brief.", **GREEDY}
    second = await socket.response(input="And one in France?", previous_response_id=first["id"], **asked)
    fork = await socket.response(
        input="And a lake?", previous_response_id=first["id"], stream_id="fork", **asked
    )
    third = await socket.response(input="Which is longer?", previous_response_id=second["id"], **asked)
    return [text_of(response) for response in (first, second, fork, third)]


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_model_gives_the_same_answer_through_another_slipring(
    tiny_model: SharedModel, transport: str
) -> None:
    engine = tiny_model.engine(slots=3, context=512)
    async with two(engine, transport=transport) as (before, behind):
        async with behind.connect() as socket:
            expected = await converse(socket)
        async with before.connect() as socket:
            assert await converse(socket) == expected
            cached = [response["usage"]["input_tokens_details"] for response in socket.order.responses]
            assert cached[-1]["cached_tokens"] > 0


async def test_an_agent_loop_through_another_slipring() -> None:
    async with (
        two("simulated:tokens_per_s=0,output_tokens=5,tool_calls=3,parallel_calls=2") as (
            before,
            behind,
        ),
        before.connect() as socket,
    ):
        asked = {"tools": [WEATHER], "store": False}
        response = await socket.response(input="Weather?", **asked)
        turns = 1
        while calls := [item for item in response["output"] if item["type"] == "function_call"]:
            outputs = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
                for call in calls
            ]
            response = await socket.response(input=outputs, previous_response_id=response["id"], **asked)
            turns += 1
        assert (turns, bool(text_of(response))) == (3, True)
        assert behind.service.sockets == 1


async def test_every_kind_of_delta_is_passed_on() -> None:
    puppet = PuppetEngine()
    async with two(puppet, transport="websocket") as (before, _), before.connect() as socket:
        await socket.create(input="hello", tools=[WEATHER, {"type": "custom", "name": "sh"}], store=False)
        performance = await puppet.next()
        performance.emit(ThoughtSummary("one", 0), ThoughtSummary("two", 1))
        performance.say("Hel", "lo")
        performance.emit(CallStarted("custom", "sh"), CallArguments("ls"))
        performance.emit(CallStarted("function", "get_weather"), CallArguments("{}"))
        performance.finish(input_tokens=11, cached_tokens=4, output_tokens=6)
        response = (await socket.until("response.completed"))[-1]["response"]
        reasoning, message, custom, call = response["output"]
        assert [part["text"] for part in reasoning["summary"]] == ["one", "two"]
        assert text_of({"output": [message]}) == "Hello"
        assert (custom["input"], call["name"], call["arguments"]) == ("ls", "get_weather", "{}")
        assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
        kinds = {"custom_tool_call": "custom_tool_call_output", "function_call": "function_call_output"}
        outputs = [
            {"type": kinds[item["type"]], "call_id": item["call_id"], "output": "x"}
            for item in (call, custom)
        ]
        await socket.create(input=outputs, previous_response_id=response["id"], store=False)
        performance = await puppet.next()
        assert performance.job.parent is not None
        theirs = [item.call_id for item in performance.job.parent.output if item.call_id is not None]
        assert [item.call_id for item in performance.job.input] == theirs[::-1]
        performance.finish()
        await socket.until("response.completed")


async def test_a_client_that_leaves_stops_the_model_behind_both() -> None:
    puppet = PuppetEngine()
    async with two(puppet) as (before, _):
        async with before.connect(abandoned=True) as socket:
            await socket.create(input="hello", store=False)
            performance = await puppet.next()
            performance.say("one")
            await socket.until("response.output_text.delta")
        await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_the_age_limit_of_the_server_behind_is_hidden_from_clients() -> None:
    limits = Limits(max_age_s=0.5, age_grace_s=60)
    engine = "simulated:tokens_per_s=0,output_tokens=3"
    async with two(engine, limits=limits) as (before, _), before.connect() as socket:
        response = await socket.response(input="hello", store=False)
        for _ in range(4):
            await asyncio.sleep(0.4)
            response = await socket.response(input="x", previous_response_id=response["id"], store=False)
            assert response["status"] == "completed", response["error"]


async def test_a_warmup_reaches_the_model_behind_both() -> None:
    puppet = PuppetEngine()
    async with two(puppet) as (before, _), before.connect() as socket:
        await socket.create(input="hello", store=False, generate=False)
        performance = await puppet.next()
        assert not performance.job.generate
        performance.finish(output_tokens=0)
        warm = (await socket.until("response.completed"))[-1]["response"]
        await socket.create(input="go", previous_response_id=warm["id"], store=False)
        performance = await puppet.next()
        assert performance.job.parent is not None
        assert json.loads(performance.job.input[0].raw)["content"] == "go"
        performance.say("there")
        performance.finish()
        await socket.until("response.completed")


async def test_llama_server_is_served_by_its_own_responses_api(
    tiny_model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, tiny_model.key)
    engine = ResponsesEngine(ResponsesOptions(url=f"{tiny_model.url}/v1", key_env=KEY))
    async with serve(engine) as server, server.connect() as socket:
        first = await socket.response(input="Name a river in Italy.", **GREEDY)
        assert (first["status"], bool(text_of(first))) == ("completed", True)
        second = await socket.response(input="Another?", previous_response_id=first["id"], **GREEDY)
        assert text_of(second)
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
        assert engine._pool._posts
