"""Real servers by token ids: what a stand-in cannot vouch for.

``SLIPRING_TEST_VLLM`` and ``SLIPRING_TEST_SGLANG`` hold what would stand behind ``vllm:`` and ``sglang:``, as
in ``http://127.0.0.1:8000,tokenizer=/models/qwen2.5-0.5b``. Run by ``make test-vllm``, ``make test-sglang``.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.engines.catalog import open_engine
from slipring.engines.tokens.token_server import TokenServer
from slipring.protocol.definitions import Grammar
from tests.engines.fitting import fits
from tests.engines.test_contract import text_of
from tests.harness import WEATHER, Running, serve

BLOCK = 128
"""Servers count what they found in blocks: vLLM 0.32 on a CPU in steps of 128 tokens."""
EVERY = pytest.mark.parametrize(
    "kind", [pytest.param("vllm", marks=pytest.mark.vllm), pytest.param("sglang", marks=pytest.mark.sglang)]
)
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24, "store": False}
LONG = "Remember these words: " + " ".join(f"word{number}" for number in range(300))


@asynccontextmanager
async def running(kind: str, **settings: Any) -> AsyncIterator[Running]:
    variable = f"SLIPRING_TEST_{kind.upper()}"
    where = os.environ.get(variable)
    if not where:
        pytest.fail(f"{variable} is not set: it names a server, as in http://127.0.0.1:8000", pytrace=False)
    async with serve(open_engine(f"{kind}:{where}"), **settings) as server:
        yield server


def cached(response: dict[str, Any]) -> int:
    tokens: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return tokens


@EVERY
async def test_text_is_streamed_and_counted(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        events = await socket.turn(input="Tell a very long story.", **GREEDY)
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert len(deltas) > 5
        response = events[-1]["response"]
        assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 24)


@EVERY
async def test_a_continuation_is_found_in_the_servers_cache(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        first = await socket.response(input=LONG, **GREEDY)
        second = await socket.response(input="Go on.", previous_response_id=first["id"], **GREEDY)
        # Caches go by whole blocks; the last is not full.
        assert cached(second) >= first["usage"]["input_tokens"] - BLOCK


@EVERY
async def test_a_warmup_fills_the_cache(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        said = f"{os.urandom(8).hex()} {LONG}"
        warm = await socket.response(input=said, generate=False, store=False)
        assert (warm["output"], cached(warm) < BLOCK) == ([], True)
        response = await socket.response(input="Go on.", previous_response_id=warm["id"], **GREEDY)
        assert cached(response) >= warm["usage"]["input_tokens"] - BLOCK


@EVERY
async def test_no_tenant_finds_what_another_has_sent(kind: str) -> None:
    async with running(kind, api_key=("one:k1", "two:k2")) as server:
        said = f"{os.urandom(8).hex()} {LONG}"
        _, first = await server.post(key="k1", input=said, **GREEDY)
        _, again = await server.post(key="k1", input=said, **GREEDY)
        _, other = await server.post(key="k2", input=said, **GREEDY)
        assert cached(again) > 0
        assert cached(first) < BLOCK
        assert cached(other) == 0


@EVERY
async def test_a_required_call_is_made_and_its_output_goes_back(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        asked = {**GREEDY, "max_output_tokens": 200, "tools": [WEATHER]}
        first = await socket.response(input="The weather in Rome?", tool_choice="required", **asked)
        (call,) = (item for item in first["output"] if item["type"] == "function_call")
        assert call["name"] == "get_weather"
        assert "city" in json.loads(call["arguments"])
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny, 21 degrees"}
        second = await socket.response(input=[output], previous_response_id=first["id"], **asked)
        assert text_of(second)


@EVERY
async def test_a_lark_grammar_is_kept(kind: str) -> None:
    definition = 'start: (DATE ": " /[a-z ]{1,20}/ "\\n"){1,2}\nDATE: /\\d{4}-\\d{2}/'
    format = {"type": "grammar", "syntax": "lark", "definition": definition}
    tool = {"type": "custom", "name": "diary", "format": format}
    async with running(kind) as server, server.connect() as socket:
        asked = {**GREEDY, "max_output_tokens": 200, "tools": [tool], "tool_choice": "required"}
        response = await socket.response(input="Write into the diary.", **asked)
        (call,) = response["output"]
        assert fits(Grammar("lark", definition), call["input"])


@EVERY
async def test_a_format_is_kept(kind: str) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "name": "person", "schema": schema, "strict": True}
    async with running(kind) as server, server.connect() as socket:
        asked = {**GREEDY, "max_output_tokens": 100, "text": {"format": format}}
        response = await socket.response(input="Ada is 36 years old.", **asked)
        assert isinstance(json.loads(text_of(response))["age"], int)


@EVERY
async def test_the_longest_prompt_is_taken_and_none_that_is_longer(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        (engine,) = server.service.catalog.engines
        assert isinstance(engine, TokenServer)
        longest = engine.served.context - engine.spared - 1
        one = await socket.response(input="a", generate=False, store=False)
        opened = await socket.response(input="a", max_output_tokens=1, store=False)
        around = opened["usage"]["input_tokens"] - one["usage"]["input_tokens"]
        fits = "a" + " a" * (longest - one["usage"]["input_tokens"] - around)
        response = await socket.response(input=fits, max_output_tokens=16, store=False)
        assert response["usage"]["input_tokens"] == longest, response["error"]
        refused = await socket.error(input=fits + " a", store=False)
        assert refused["error"]["code"] == "context_length_exceeded"


@EVERY
async def test_logprobs_say_what_was_said(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        include = ["message.output_text.logprobs"]
        response = await socket.response(input="Say hello.", include=include, top_logprobs=2, **GREEDY)
        part = response["output"][-1]["content"][0]
        said = b"".join(bytes(each["bytes"]) for each in part["logprobs"])
        assert said.decode("utf-8", "replace") == part["text"]
        assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])


@EVERY
async def test_characters_of_several_tokens_come_whole(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        response = await socket.response(input="Repeat exactly: 👩‍👩‍👧 東京 🦉🦉", **GREEDY)
        # The last one may have been cut off.
        assert "\ufffd" not in text_of(response).rstrip("\ufffd")


@EVERY
async def test_a_client_that_leaves_leaves_nothing_behind(kind: str) -> None:
    async with running(kind) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="Tell a very long story.", store=False)
            await socket.until("response.output_text.delta")
        async with server.connect() as socket:
            response = await socket.response(input="Hello.", **GREEDY)
            assert response["status"] in ("completed", "incomplete")
