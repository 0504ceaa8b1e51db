"""The llama engine with the real embedded model: small contexts, greedy answers."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from slipring.core.generation import Capabilities, Job, Model, Settings
from slipring.core.head import Head
from slipring.engines.llama import LlamaEngine, choose_dialect, make_tokenizer, read_file
from slipring.engines.llama.options import Options, read_options
from slipring.engines.llama.requests import completion_body
from slipring.engines.llama.slots import Slot
from slipring.errors import StartupError
from slipring.prompts.dialect import Block
from slipring.prompts.rendering import EMPTY, Rendered
from slipring.protocol.tools import Offer
from tests.harness import WEATHER, Running, serve
from tests.prompts.corpus import CORPUS
from tests.server.raw import until

GREEDY = {"temperature": 0, "max_output_tokens": 12, "store": False}
ASK = "What is the capital of France?"


@asynccontextmanager
async def llama(slots: int = 2, context: int = 1024, **settings: Any) -> AsyncIterator[Running]:
    async with serve(LlamaEngine(Options(slots=slots, context=context)), **settings) as server:
        yield server


def process_of(server: Running) -> Any:
    return server.service.catalog.engine._process


def key_of(server: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {process_of(server).key}"}


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


async def test_a_continuation_is_prefilled_from_where_its_parent_ended() -> None:
    async with llama() as server, server.connect() as socket:
        first = await socket.response(input=ASK, **GREEDY)
        assert cached(first) == 0
        second = await socket.response(input="And of Italy?", previous_response_id=first["id"], **GREEDY)
        # The last token of an answer has been chosen, but only the next turn makes the engine read it.
        assert cached(second) >= first["usage"]["total_tokens"] - 1
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]


async def test_a_warmup_really_prefills() -> None:
    system = [{"role": "system", "content": "You are a helpful assistant who answers briefly. " * 5}]
    async with llama() as server, server.connect() as socket:
        warm = await socket.response(input=system, generate=False, store=False)
        assert warm["usage"]["output_tokens"] == 0
        turn = await socket.response(input=ASK, previous_response_id=warm["id"], **GREEDY)
        assert cached(turn) >= warm["usage"]["input_tokens"] - 1


async def test_the_same_words_follow_a_continuation_and_a_full_history() -> None:
    async with llama() as server, server.connect() as socket:
        first = await socket.response(input=ASK, **GREEDY)
        second = await socket.response(input="Go on.", previous_response_id=first["id"], **GREEDY)
        history = [{"role": "user", "content": ASK}, *first["output"], {"role": "user", "content": "Go on."}]
        _, whole = await server.post(input=history, **GREEDY)
        assert text_of(whole) == text_of(second)
        assert whole["usage"]["input_tokens"] == second["usage"]["input_tokens"]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_required_call_fits_its_schema() -> None:
    async with llama() as server, server.connect() as socket:
        response = await socket.response(
            input="Weather in Rome?", tools=[WEATHER], tool_choice="required", temperature=0, store=False
        )
        (call,) = response["output"]
        assert (call["type"], call["name"]) == ("function_call", "get_weather")
        jsonschema.validate(json.loads(call["arguments"]), WEATHER["parameters"])
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        answer = await socket.response(
            input=[output], previous_response_id=response["id"], tools=[WEATHER], **GREEDY
        )
        assert cached(answer) >= response["usage"]["total_tokens"] - 1


async def test_a_format_is_a_constraint() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    async with llama() as server:
        _, response = await server.post(input="A person as JSON.", text=asked, temperature=0)
        jsonschema.validate(json.loads(text_of(response)), schema)


async def test_logprobs_cover_every_token_of_the_answer() -> None:
    async with llama(slots=1) as server, server.connect() as socket:
        response = await socket.response(input=ASK, top_logprobs=2, **GREEDY)
        (part,) = response["output"][0]["content"]
        assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
        assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])


def test_a_job_is_asked_for_as_the_client_meant_it() -> None:
    rendered = Rendered("w", Head(), (1, 2), EMPTY.then((3,), Block.NONE).then((4, 5), Block.ASSISTANT))
    settings = Settings(
        temperature=0.5, top_p=0.9, seed=7, logprobs=True, top_logprobs=3, presence_penalty=1.5
    )
    model = Model(name="m", owner="tests", capabilities=Capabilities())
    job = Job("resp_1", "alice", model, Head(), None, (), Offer(), settings)
    slot = Slot(1)
    body = json.loads(completion_body(job, rendered, slot, 20))
    assert body["prompt"] == [1, 2, 3, 4, 5]
    assert (body["n_predict"], body["id_slot"], body["seed"], body["n_probs"]) == (20, 1, 7, 3)
    assert (body["temperature"], body["top_p"], body["presence_penalty"]) == (0.5, 0.9, 1.5)
    assert body["cache_prompt"] is False
    assert "json_schema" not in body
    slot.hold(rendered.body, "alice")
    assert json.loads(completion_body(job, rendered, slot, 20))["cache_prompt"] is True
    slot.hold(rendered.body, "bob")
    assert json.loads(completion_body(job, rendered, slot, 20))["cache_prompt"] is False


async def test_more_chains_than_slots_all_go_on() -> None:
    async with llama(slots=2) as server, server.connect() as socket:
        latest = {}
        for lane in ("a", "b", "c"):
            latest[lane] = await socket.response(input=f"{ASK} ({lane})", stream_id=lane, **GREEDY)
        for lane, parent in latest.items():
            child = await socket.response(
                input="And?", previous_response_id=parent["id"], stream_id=lane, **GREEDY
            )
            assert child["usage"]["input_tokens"] > parent["usage"]["total_tokens"]


async def test_a_client_that_leaves_frees_its_slot() -> None:
    endless = {"input": "Count to a million.", "temperature": 0, "store": False}
    async with llama(slots=1) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(**endless)
            await socket.until("response.output_text.delta")
        async with server.connect() as socket:
            assert (await socket.response(input=ASK, **GREEDY))["status"] in ("completed", "incomplete")


async def test_no_tenant_finds_its_words_in_another_ones_slot() -> None:
    async with llama(slots=1, api_key=("a:key-a", "b:key-b")) as server:
        for key in ("key-a", "key-b", "key-a"):
            _, response = await server.post(key=key, input=ASK, **GREEDY)
            assert cached(response) == 0


async def test_a_context_that_is_too_long_fails_with_a_clear_error() -> None:
    async with llama(context=64) as server:
        status, body = await server.post(input="word " * 200)
        assert status == 400
        assert "longer than the model can read (64)" in body["error"]["message"]


async def test_a_killed_child_fails_one_turn_and_comes_back() -> None:
    async with llama() as server, server.connect() as socket:
        process = process_of(server)
        await socket.create(input="Count to a million.", temperature=0, store=False)
        await socket.until("response.output_text.delta")
        os.kill(process.pid, signal.SIGKILL)
        last = (await socket.until("response.failed"))[-1]
        assert last["response"]["error"]["code"] == "server_error"
        await until(lambda: process.restarts)
        assert (await socket.response(input=ASK, **GREEDY))["output"]


async def test_no_child_outlives_a_parent_that_was_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slipring", "serve", "--port", "0"),
        *("--engine", "llama:slots=1,context=256", "--log-level", "error"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert b"serves" in await asyncio.wait_for(parent.stdout.readline(), 60)
    children = children_of(parent.pid)
    assert children
    parent.kill()
    await parent.wait()
    await until(lambda: not any(map(is_alive, children)))
    parent._transport.close()  # type: ignore[attr-defined]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_our_tokenizer_and_the_engines_own_agree_id_for_id() -> None:
    engine = LlamaEngine(Options(slots=1, context=256))
    async with serve(engine) as server, aiohttp.ClientSession() as http:
        url = process_of(server).url
        for text in CORPUS:
            asked = {"content": text, "add_special": False, "parse_special": False}
            async with http.post(f"{url}/tokenize", json=asked, headers=key_of(server)) as answer:
                theirs = (await answer.json(content_type=None))["tokens"]
            assert engine._renderer.tokenizer.encode(text) == theirs


async def test_the_child_answers_nobody_else() -> None:
    async with (
        llama(slots=1, context=256) as server,
        aiohttp.ClientSession() as http,
        http.post(f"{process_of(server).url}/completion", json={"prompt": "hi"}) as answer,
    ):
        assert answer.status == 401


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("slots=0", "option 'slots' must be a number >= 1, not '0'"),
        ("colour=red", "unknown option 'colour'"),
        ("http://127.0.0.1:1", "cannot be used yet"),
    ],
)
def test_options_that_cannot_be_used_are_named(text: str, complaint: str) -> None:
    with pytest.raises(StartupError, match=complaint):
        read_options(text)


def test_options_follow_a_path_or_stand_alone() -> None:
    assert read_options("/m.gguf,slots=3") == Options(model="/m.gguf", slots=3)
    assert read_options("slots=3,context=99") == Options(slots=3, context=99)
    assert read_options("") == Options()


def test_models_that_cannot_be_served_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot read"):
        read_file(str(tmp_path / "missing.gguf"))
    (tmp_path / "not.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(StartupError, match="not a GGUF file"):
        read_file(str(tmp_path / "not.gguf"))
    with pytest.raises(StartupError, match="vocabulary"):
        make_tokenizer("m.gguf", {"tokenizer.ggml.model": "llama"})
    with pytest.raises(StartupError, match="no known dialect"):
        choose_dialect("", {"tokenizer.chat_template": "?"})
    with pytest.raises(StartupError, match="unknown dialect"):
        choose_dialect("latin", {})
