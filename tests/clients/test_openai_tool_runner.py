"""``AsyncResponsesToolRunner`` of the OpenAI SDK, unchanged: it stops at any item whose fields are not those
that OpenAI sends, and at any that it could not send back."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.lib.responses_tool_runner import (
    AsyncRegisteredFunction,
    AsyncResponsesToolLedger,
    AsyncResponsesToolRunner,
)

from tests.harness import serve
from tests.mcp.fakes import FakeServer, serving

Json = dict[str, Any]

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ANSWERS: list[list[Json]] = [
    [
        {"reasoning_summary": "A look first."},
        {"text": "Let me look."},
        {"function_call": {"name": "get_weather", "arguments": {"city": "Rome"}}},
    ],
    [
        {"reasoning": "A sum then."},
        {"function_call": {"name": "add", "namespace": "fake", "arguments": {"a": 1, "b": 2}}},
    ],
    [{"text": "Sunny, and 3."}],
]


async def _weather(arguments: Json) -> str:
    return f"sunny in {arguments['city']}"


@pytest.mark.parametrize("approval", ["never", "always"])
@pytest.mark.parametrize(("stream", "eager"), [(False, False), (True, False), (True, True)])
async def test_a_run_with_functions_and_mcp_tools_reaches_its_end(
    scripted: Callable[..., str], stream: bool, eager: bool, approval: str
) -> None:
    saved: list[Any] = []
    asked: list[tuple[str, str]] = []

    async def save(checkpoint: Any) -> None:
        saved.append(checkpoint)

    async def approve(request: Any) -> bool:
        asked.append((request.name, request.arguments))
        return True

    runner = AsyncResponsesToolRunner(functions=[AsyncRegisteredFunction(WEATHER, _weather)])
    async with (
        serving(FakeServer(modern=True)) as fake,
        serve(scripted(*ANSWERS), mcp_urls="any") as server,
        AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        sums: Any = {
            "type": "mcp",
            "server_label": "fake",
            "server_url": fake.url,
            "require_approval": approval,
        }
        response = await runner.run(
            client,
            {"model": "simulated", "input": "Weather in Rome, and 1 + 2?", "tools": [sums]},
            stream=stream,
            eager=eager,
            approve_mcp=approve,
            ledger=AsyncResponsesToolLedger("run", save),
        )
        assert fake.count("tools/call") == 1
    assert response.output_text == "Sunny, and 3."
    assert [(name, json.loads(arguments)) for name, arguments in asked] == (
        [("add", {"a": 1, "b": 2})] if approval == "always" else []
    )
    assert saved[-1]["phase"] == "final"
