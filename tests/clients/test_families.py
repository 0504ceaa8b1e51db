"""Clients run tool loops with a model of each family: over a WebSocket, in front of a server of token ids.

The server emits thoughts and calls in the family's format. Clients must get the calls and the thoughts, and
each prompt must be the one before, the emitted ids and what the new items add.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from slipring.prompts.parsing.answer_writer import Call
from tests import late
from tests.clients.family_server import ASKED_TO_THINK, MOVING, family_server, require_appended
from tests.engines.fakes.families import Answer, FakeFamilyServer
from tests.harness import Running, serve
from tests.prompts.templates.family_templates import NAMES

FIRST = Answer(thoughts="I need the weather.", calls=(Call("get_weather", {"city": "Rome", "days": 2}),))
SECOND = Answer(
    thoughts="Now add.",
    calls=(Call("note", {"text": 'It is "sunny":\n  21', "tags": ["1", "x"], "final": True}, index=1),),
)
LAST = Answer(thoughts="Done.", text="It is sunny.")


@pytest.fixture(autouse=True)
def _no_traces() -> None:
    late.agents.set_tracing_disabled(True)  # otherwise it tries to send traces to OpenAI


@asynccontextmanager
async def serving(path: Path, family: str) -> AsyncIterator[tuple[FakeFamilyServer, Running]]:
    """A slipring in front of a server that has a model of this family."""
    async with (
        family_server(path, family, FIRST, SECOND, LAST) as fake,
        # Without structural tags, for which the server would first be asked what they do to thoughts.
        serve(fake.engine(retries=0, structural_tags=False)) as server,
    ):
        yield fake, server
        assert len(fake.prompts) == 3


def thoughts_of(fake: FakeFamilyServer, *answers: Answer) -> list[str]:
    has_thoughts = fake.format.think_close or fake.format.is_harmony
    return [answer.thoughts for answer in answers] if has_thoughts else []


@pytest.mark.parametrize("family", NAMES)
async def test_the_agents_sdk_runs_a_loop_of_two_tools(family: str, tmp_path: Path) -> None:
    called: list[Any] = []

    @late.agents.function_tool
    def get_weather(city: str, days: int) -> str:
        """Weather of a city."""
        called.append((city, days))
        return "Sunny, 21 degrees."

    @late.agents.function_tool
    def note(text: str, tags: list[str], final: bool) -> str:
        """Takes a note."""
        called.append((text, tags, final))
        return "Noted."

    settings = late.agents.ModelSettings(reasoning=ASKED_TO_THINK.get(family))
    agent = late.agents.Agent(
        name="a",
        model="smollm2",
        instructions="Use tools.",
        tools=[get_weather, note],
        model_settings=settings,
    )
    async with serving(tmp_path, family) as (fake, server):
        provider = late.agents.OpenAIProvider(
            base_url=server.url, api_key="any", use_responses_websocket=True
        )
        async with aclosing(provider):
            result = await late.agents.Runner.run(
                agent,
                "weather in Rome?",
                run_config=late.agents.RunConfig(model_provider=provider),
                auto_previous_response_id=True,
            )
        assert result.final_output == LAST.text
        assert called == [("Rome", 2), tuple(SECOND.calls[0].values.values())]
        if family not in MOVING:
            require_appended(fake)
        found = [
            content.text
            for response in result.raw_responses
            for item in response.output
            if item.type == "reasoning"
            for content in item.content or ()
        ]
        assert found == thoughts_of(fake, FIRST, SECOND, LAST)


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
    {
        "type": "function",
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "final": {"type": "boolean"},
            },
        },
    },
]


@pytest.mark.parametrize("family", NAMES)
async def test_the_openai_client_runs_a_loop_of_two_tools(family: str, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, family) as (fake, server),
        AsyncOpenAI(base_url=server.url, api_key="any") as client,
        client.responses.connect() as connection,
    ):
        fields: dict[str, Any] = {"model": "smollm2", "input": "weather in Rome?", "tools": TOOLS}
        if family in ASKED_TO_THINK:
            fields["reasoning"] = ASKED_TO_THINK[family]
        for answer in (FIRST, SECOND, LAST):
            await connection.response.create(**fields, store=False)
            response: Any = None
            while response is None:
                event: Any = await connection.recv()
                assert event.type != "error", event
                response = event.response if event.type == "response.completed" else None
            assert response.output_text == answer.text
            calls = [item for item in response.output if item.type == "function_call"]
            assert [(call.name, json.loads(call.arguments)) for call in calls] == [
                (call.name, call.values) for call in answer.calls
            ]
            fields |= {
                "previous_response_id": response.id,
                "input": [
                    {"type": "function_call_output", "call_id": call.call_id, "output": "Done."}
                    for call in calls
                ],
            }
        if family not in MOVING:
            require_appended(fake)
