"""The providers of `tests/engines/fakes/providers.py`: all give the same answers, calls and errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slipring.engines.chat.engine import ChatEngine
from slipring.engines.chat.options import ChatOptions
from tests.engines.fakes.providers import CALLS, PROVIDERS, TEXT, Failure, Provider, ProviderServer
from tests.harness import serve

EVERY = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
FAILURES = [
    pytest.param(provider, failure, id=f"{provider.name}: {failure.name}")
    for provider in PROVIDERS
    for failure in provider.failures
]
TOOLS = [
    {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": {key: {"type": "string"}}},
    }
    for name, arguments in CALLS
    for key in arguments
]
STATUSES = {
    "context_length_exceeded": 400,
    "insufficient_quota": 429,
    "invalid_prompt": 400,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
}


def engine_of(provider: Provider, url: str) -> ChatEngine:
    return ChatEngine(ChatOptions(url=url, model="m", retries=0, **provider.options))


@EVERY
async def test_a_text_and_a_tool_loop(provider: Provider) -> None:
    async with (
        ProviderServer() as fake,
        serve(engine_of(provider, fake.url)) as server,
        server.connect() as socket,
    ):
        fake.status = provider.status
        fake.answers = [provider.text, provider.calls, provider.text]
        said = await socket.response(input="hello", store=False)
        *thoughts, message = said["output"]
        assert (said["status"], message["content"][0]["text"]) == ("completed", TEXT)
        assert "".join(part["text"] for each in thoughts for part in each["content"]) == provider.thought
        called = await socket.response(input="go", tools=TOOLS, store=False)
        calls = called["output"]
        assert [(each["name"], json.loads(each["arguments"])) for each in calls] == CALLS
        outputs = [
            {"type": "function_call_output", "call_id": each["call_id"], "output": "fine"} for each in calls
        ]
        last = await socket.response(
            input=outputs, tools=TOOLS, previous_response_id=called["id"], store=False
        )
        assert last["status"] == "completed"
        sent = fake.requests[-1]["messages"][1]["tool_calls"]
        assert [
            (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in sent
        ] == CALLS
        assert len({each["id"] for each in sent}) == len(CALLS)


@pytest.mark.parametrize(("provider", "failure"), FAILURES)
async def test_a_failure_has_its_code_and_its_reason(
    provider: Provider, failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ProviderServer() as fake,
        serve(engine_of(provider, fake.url)) as server,
        server.connect() as socket,
    ):
        fake.answers = [failure, failure]
        failed = await socket.response(input="hello", store=False)
        assert (failed["status"], failed["error"]["code"]) == ("failed", failure.code)
        assert failure.says in failed["error"]["message"]
        assert failure.logs in caplog.text
        if failure.logs and not failure.says:
            assert failure.logs.rpartition(": ")[2] not in json.dumps(failed)
        status, body = await server.post(input="hello", store=False)
        expected = STATUSES.get(failure.code, status)
        assert (status, body["error"]["code"]) in [
            (expected, failure.code),
            (503, "service_unavailable"),
        ]


def test_every_provider_is_on_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "providers.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE))
    assert {provider.name for provider in PROVIDERS} <= {row.lower() for row in rows}


def test_provider_names_are_unique() -> None:
    names: list[Any] = [provider.name for provider in PROVIDERS]
    assert len(set(names)) == len(names)
