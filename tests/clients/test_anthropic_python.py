"""The official Python SDK of the Messages API, sync and async: answers, streams, tools, formats and errors.

It connects through the relay, which checks every body and event strictly against the SDK's types.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool
from pydantic import BaseModel

from tests.relay import Relay, Served

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
ASK: Json = {"model": "simulated", "max_tokens": 2000}
QUESTION: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
WEATHER: Json = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
CALL: Json = {"function_call": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


def scripted(directory: Path, *answers: list[Json]) -> str:
    """The engine that gives these answers."""
    script = directory / "script.jsonl"
    script.write_text("\n".join(map(json.dumps, answers)))
    return f"simulated:tokens_per_s=0,script={script}"


def _settings(relay: Relay) -> Json:
    return {"base_url": relay.url.removesuffix("/v1"), "api_key": "any", "max_retries": 0}


@pytest.fixture
def weather(served: Served, tmp_path: Path) -> Iterator[Relay]:
    """A model that thinks, calls the tool and then answers."""
    turns = ([{"reasoning": "I ask."}, {"text": "Let me see."}, CALL], [{"text": "It is sunny."}])
    with served(scripted(tmp_path, *turns)) as relay:
        yield relay


def test_a_loop_with_the_streaming_helper(weather: Relay) -> None:
    messages: list[Any] = list(QUESTION)
    texts = []
    with Anthropic(**_settings(weather)) as client:
        for _ in range(2):
            with client.messages.stream(
                **ASK, messages=messages, tools=[WEATHER], thinking=THINKING
            ) as stream:
                texts += list(stream.text_stream)
                message = stream.get_final_message()
            messages.append({"role": "assistant", "content": message.content})
            if message.stop_reason != "tool_use":
                break
            thought, _, call = message.content
            assert (thought.thinking, call.input) == ("I ask.", {"city": "Rome"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
            messages.append({"role": "user", "content": [result]})
    assert "".join(texts) == "Let me see.It is sunny."
    assert message.usage.cache_read_input_tokens


async def test_the_async_client(weather: Relay) -> None:
    async with AsyncAnthropic(**_settings(weather)) as client:
        first = await client.messages.create(**ASK, messages=QUESTION, tools=[WEATHER])
        assert [block.type for block in first.content] == ["text", "tool_use"]
        async with client.messages.stream(**ASK, messages=QUESTION) as stream:
            assert await stream.get_final_text() == "It is sunny."
        assert await client.messages.count_tokens(model="simulated", messages=QUESTION)
        assert [model.id async for model in client.models.list()] == ["simulated"]
        assert (await client.models.retrieve("simulated")).id == "simulated"


def test_the_tool_runner(weather: Relay) -> None:
    @beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city.

        Args:
            city: its name
        """
        return f"sunny in {city}"

    with Anthropic(**_settings(weather)) as client:
        runner = client.beta.messages.tool_runner(**ASK, messages=QUESTION, tools=[get_weather])
        assert runner.until_done().content[0].text == "It is sunny."
    result = weather.exchanges[-1].body["messages"][-1]["content"][0]
    assert (result["type"], result["content"]) == ("tool_result", "sunny in Rome")


async def test_the_async_tool_runner(weather: Relay) -> None:
    @beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather of a city."""
        return f"sunny in {city}"

    async with AsyncAnthropic(**_settings(weather)) as client:
        runner = client.beta.messages.tool_runner(**ASK, messages=QUESTION, tools=[get_weather], stream=True)
        ends = [await stream.get_final_message() async for stream in runner]
    assert ends[-1].content[0].text == "It is sunny."


def test_an_answer_in_a_format(served: Served) -> None:
    class Place(BaseModel):
        city: str
        inhabitants: int

    with served("simulated:tokens_per_s=0") as relay, Anthropic(**_settings(relay)) as client:
        answer = client.messages.parse(**ASK, messages=QUESTION, output_format=Place)
    assert isinstance(answer.parsed_output, Place)


def test_errors(served: Served, tmp_path: Path) -> None:
    answers = ([{"error": {"message": "too many", "status": 429}}], [{"error": {"message": "broken"}}])
    with served(scripted(tmp_path, *answers)) as relay, Anthropic(**_settings(relay)) as client:
        with pytest.raises(anthropic.RateLimitError, match="too many"):
            client.messages.create(**ASK, messages=QUESTION)
        with pytest.raises(anthropic.InternalServerError, match="broken"):
            client.messages.create(**ASK, messages=QUESTION)
        with pytest.raises(anthropic.NotFoundError) as refusal:
            client.messages.create(**{**ASK, "model": "other"}, messages=QUESTION)
        body: Any = refusal.value.body
        assert refusal.value.request_id == body["request_id"]
        bad: Any = [{"role": "user", "content": [{"type": "foo"}]}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.type: "):
            client.messages.create(**ASK, messages=bad)
