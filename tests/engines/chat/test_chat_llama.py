"""The chat engine in front of a real server: llama.cpp's own Chat Completions, with an embedded model."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import jsonschema
import pytest
from msgspec import structs

from slipring.engines.chat.engine import ChatEngine
from slipring.engines.chat.options import read_options
from slipring.engines.llama.child_process import ChildSettings
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.served_model import locate
from tests.engines.llama.test_llama_engine import ASK, GREEDY, cached, text_of
from tests.harness import WEATHER, Running, serve
from tests.prompts.template_texts import CHATML

KEY = "SLIPRING_TEST_CHAT_KEY"


HERMES = CHATML.replace("        {%- generation %}\n", "").replace("        {%- endgeneration %}\n", "")
"""A template with tools: the embedded model's own has none."""
COPY = 'Repeat this: <tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}
CHILD = """
import sys
import xllamacpp
from slipring.engines.llama import child_program

original = xllamacpp.CommonParams


def with_template():
    params = original()
    params.chat_template = sys.argv[1]
    return params


xllamacpp.CommonParams = with_template
child_program.main()
"""


@asynccontextmanager
async def in_front(monkeypatch: pytest.MonkeyPatch, path: str, more: str = "") -> AsyncIterator[Running]:
    """A server in front of a llama-server that slipring did not start. ``path`` is the model's file."""
    settings = ChildSettings(path, context=1024, slots=1, threads=1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, HERMES),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({**structs.asdict(settings), "key": "sk-1"}).encode() + b"\n")
        url = json.loads(await process.stdout.readline())["url"]
        await until_ready(url)
        monkeypatch.setenv(KEY, "sk-1")
        options = read_options(f"{url},key_env={KEY},logprobs=true{more}")
        async with serve(ChatEngine(options)) as server:
            yield server
    finally:
        process.stdin.close()
        await process.wait()


async def until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def test_turns_formats_and_logprobs_with_a_real_server(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(monkeypatch, tiny_path) as server, server.connect() as socket:
        first = await socket.response(input=ASK, **GREEDY)
        assert text_of(first)
        assert first["model"].endswith(".gguf")
        assert 0 < first["usage"]["output_tokens"] <= 12
        second = await socket.response(
            input="And of Italy?", previous_response_id=first["id"], top_logprobs=2, **GREEDY
        )
        assert second["status"] in ("completed", "incomplete")
        assert cached(second) >= 0.8 * first["usage"]["total_tokens"]
        logprobs = second["output"][0]["content"][0]["logprobs"]
        assert "".join(each["token"] for each in logprobs) == text_of(second)
        assert len(logprobs[0]["top_logprobs"]) == 2

        schema = {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
        format = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
        asked: dict[str, Any] = {**GREEDY, "max_output_tokens": 80}
        formed = await socket.response(input=ASK, text={"format": format}, **asked)
        jsonschema.validate(json.loads(text_of(formed)), schema)


async def test_a_call_and_its_output_with_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = locate(LlamaOptions())
    async with in_front(monkeypatch, path) as server, server.connect() as socket:
        # The server makes sure of a call before the end, and lets the model talk first.
        asked: dict[str, Any] = {**GREEDY, "max_output_tokens": 80}
        named = {"type": "function", "name": "get_weather"}
        called = await socket.response(input=COPY, tools=[WEATHER, OTHER], tool_choice=named, **asked)
        call = called["output"][-1]
        assert (call["type"], call["name"]) == ("function_call", "get_weather")
        jsonschema.validate(json.loads(call["arguments"]), WEATHER["parameters"])
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        asked["max_output_tokens"] = 2
        answered = await socket.response(
            input=[output], tools=[WEATHER], previous_response_id=called["id"], **asked
        )
        # The server shows the model only the tool that it was to call, so this prompt begins like the first.
        assert cached(answered) >= called["usage"]["input_tokens"] - 1
        assert answered["status"] in ("completed", "incomplete")


async def test_cancels_warmups_and_refusals_with_a_real_server(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(monkeypatch, tiny_path, ",warmup=true") as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="Count to a thousand.", temperature=0, store=False)
            await socket.until("response.output_text.delta")
        async with server.connect() as socket:
            # There is one slot: this is answered because the other has let go.
            warm = await socket.response(input=ASK, generate=False, store=False)
            assert warm["usage"]["input_tokens"] > 5
            answer = await socket.response(input=[], previous_response_id=warm["id"], **GREEDY)
            assert cached(answer) >= 0.8 * warm["usage"]["input_tokens"]
            refused = await socket.response(input="word " * 2000, **GREEDY)
            assert (refused["status"], refused["error"]["code"]) == ("failed", "context_length_exceeded")
