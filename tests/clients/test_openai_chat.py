"""The official Python SDK's chat completions, with the sync and the async client.

They connect through the relay, which checks every body and every chunk strictly against the SDK's types.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.relay import Served

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
Scripted = Callable[..., str]
MODEL = "simulated"
USER: Json = {"role": "user", "content": "hello"}
CALLS = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=2,parallel_calls=2"


class GetWeather(BaseModel):
    """Weather of a city"""

    city: str


class Sdk:
    """A client of the SDK."""

    def __init__(self, client: OpenAI | AsyncOpenAI) -> None:
        self._client = client

    async def call(self, method: str, **fields: Any) -> Any:
        call = getattr(self._client.chat.completions, method)
        if isinstance(self._client, OpenAI):
            return await asyncio.to_thread(call, model=MODEL, **fields)
        return await call(model=MODEL, **fields)

    async def chunks(self, **fields: Any) -> list[Any]:
        found = await self.call("create", stream=True, **fields)
        if isinstance(self._client, OpenAI):
            return await asyncio.to_thread(list, found)
        return [chunk async for chunk in found]

    async def helped(self, **fields: Any) -> tuple[list[Any], Any]:
        """The events of the streaming helper, and the completion that it has put together."""
        manager = self._client.chat.completions.stream(model=MODEL, **fields)
        if isinstance(self._client, OpenAI):
            return await asyncio.to_thread(_helped, manager)
        async with manager as stream:
            events = [event async for event in stream]
            return events, await stream.get_final_completion()


def _helped(manager: Any) -> tuple[list[Any], Any]:
    with manager as stream:
        return list(stream), stream.get_final_completion()


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, served: Served) -> Callable[..., Any]:
    """``async with client(engine) as sdk`` runs a server and connects a client to it."""

    @asynccontextmanager
    async def connect(engine: str = "simulated:tokens_per_s=0,output_tokens=5") -> AsyncIterator[Sdk]:
        with served(engine) as relay:
            if request.param == "sync":
                with OpenAI(base_url=relay.url, api_key="test-key", max_retries=0) as sync:
                    yield Sdk(sync)
            else:
                async with AsyncOpenAI(base_url=relay.url, api_key="test-key", max_retries=0) as client:
                    yield Sdk(client)

    return connect


async def test_create(client: Any) -> None:
    async with client() as sdk:
        found = await sdk.call("create", messages=[USER])
        assert found.choices[0].message.content
        assert found.usage.completion_tokens == 5


async def test_stream(client: Any) -> None:
    async with client() as sdk:
        *chunks, last = await sdk.chunks(messages=[USER], stream_options={"include_usage": True})
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert last.usage.completion_tokens == 5


async def test_a_loop_of_parallel_calls_ends_with_an_answer(client: Any) -> None:
    async with client(CALLS) as sdk:
        messages: list[Any] = [USER]
        tools = [pydantic_function_tool(GetWeather)]
        for _ in range(3):
            found = (await sdk.call("create", messages=messages, tools=tools)).choices[0]
            messages.append(found.message)
            if found.finish_reason != "tool_calls":
                break
            for call in found.message.tool_calls:
                assert json.loads(call.function.arguments).keys() == {"city"}
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        assert found.finish_reason == "stop"
        assert sum(isinstance(message, dict) and message["role"] == "tool" for message in messages) == 2


async def test_the_helper_puts_a_stream_together(client: Any) -> None:
    async with client(CALLS) as sdk:
        events, final = await sdk.helped(messages=[USER], tools=[pydantic_function_tool(GetWeather)])
        kinds = [event.type for event in events]
        assert "tool_calls.function.arguments.delta" in kinds
        assert kinds.count("tool_calls.function.arguments.done") == 2
        calls = final.choices[0].message.tool_calls
        assert [type(call.function.parsed_arguments) for call in calls] == [GetWeather, GetWeather]
        assert final.choices[0].finish_reason == "tool_calls"


async def test_the_helper_puts_a_text_together(client: Any) -> None:
    async with client() as sdk:
        events, final = await sdk.helped(messages=[USER], stream_options={"include_usage": True})
        done = next(event for event in events if event.type == "content.done")
        assert done.content == final.choices[0].message.content
        assert final.usage.total_tokens > 5


async def test_parse(client: Any) -> None:
    async with client() as sdk:
        found = await sdk.call("parse", messages=[USER], response_format=GetWeather)
        assert isinstance(found.choices[0].message.parsed, GetWeather)
        found = await sdk.call("parse", messages=[USER], tools=[pydantic_function_tool(GetWeather)])
        (call,) = found.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, GetWeather)


async def test_the_helper_parses_a_stream(client: Any) -> None:
    async with client() as sdk:
        _, final = await sdk.helped(messages=[USER], response_format=GetWeather)
        assert isinstance(final.choices[0].message.parsed, GetWeather)


async def test_thoughts_and_refusals_reach_the_client(client: Any, scripted: Scripted) -> None:
    step = [{"reasoning": "hm"}, {"refusal": "no"}]
    async with client(scripted(step, step)) as sdk:
        message = (await sdk.call("create", messages=[USER])).choices[0].message
        assert (message.refusal, message.content) == ("no", None)
        assert message.reasoning_content == "hm"
        _, final = await sdk.helped(messages=[USER])
        assert final.choices[0].message.refusal == "no"


async def test_custom_tools_are_called(client: Any) -> None:
    tool = {"type": "custom", "custom": {"name": "run", "description": "Runs"}}
    async with client() as sdk:
        (call,) = (await sdk.call("create", messages=[USER], tools=[tool])).choices[0].message.tool_calls
        assert (call.type, call.custom.name) == ("custom", "run")
        assert call.custom.input


async def test_errors_are_exceptions_of_the_sdk(client: Any) -> None:
    async with client() as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.call("create", messages=[{"role": "user"}])
        assert (caught.value.param, caught.value.code) == (
            "messages[0].content",
            "missing_required_parameter",
        )
        with pytest.raises(openai.BadRequestError):
            await sdk.chunks(messages=[USER], temperature=9)


async def test_an_error_within_a_stream_is_an_exception_too(client: Any, scripted: Scripted) -> None:
    async with client(scripted([{"text": "one two"}, {"error": {"message": "Gone."}}])) as sdk:
        with pytest.raises(openai.APIError):
            await sdk.chunks(messages=[USER])
