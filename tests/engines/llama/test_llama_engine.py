"""The llama engine with an embedded model: small contexts, greedy sampling."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from msgspec import Raw

from slipring.base.errors import StartupError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Finished, Settings, Text
from slipring.core.limits import Limits
from slipring.engines.llama.api import completion_body, read_chunk
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions, read_options
from slipring.engines.llama.served_model import read_file
from slipring.engines.tokens.model_files import ModelInfo
from slipring.engines.tokens.sampling import Sampling
from slipring.engines.tokens.template_choice import make_renderer
from slipring.prompts.rendering import Preface, Rendered, empty
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.protocol.requests import TEXT
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.engines.emitting import deltas_of
from tests.engines.fakes.server import started as running
from tests.engines.test_counts import job_of
from tests.harness import TERMINAL, WEATHER, Running, serve
from tests.model import ServeModel, SharedModel
from tests.prompts.corpus import CORPUS
from tests.prompts.vocabulary import smollm2
from tests.server.raw import until

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12, "store": False}
ASK = "What is the capital of France?"
LONG = "Tell me about the weather, in short words, as if I were five years old. " * 3
SHORT_CITY = {
    **WEATHER,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
"""A tool whose calls end, whichever model writes them."""
FAMILY = "👩‍👩‍👧 東京"
SAY_FAMILY = {"format": {"type": "json_schema", "name": "said", "schema": {"enum": [FAMILY]}, "strict": True}}
"""A format that any model fills with characters of several tokens."""


@asynccontextmanager
async def own_child(**options: Any) -> AsyncIterator[Running]:
    """A server whose engine starts its own llama.cpp, for tests of that child."""
    async with serve(LlamaEngine(LlamaOptions(threads=1, **options))) as server:
        yield server


def process_of(server: Running) -> Any:
    return server.service.catalog.engines[0]._host


def key_of(server: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {process_of(server).key}"}


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


async def test_a_continuation_prefills_only_its_new_tokens(tiny: ServeModel) -> None:
    async with tiny() as server, server.connect() as socket:
        first = await socket.response(input=ASK, **GREEDY)
        assert cached(first) == 0
        second = await socket.response(input="And of Italy?", previous_response_id=first["id"], **GREEDY)
        assert cached(second) >= first["usage"]["total_tokens"]
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]


async def test_a_warmup_prefills_its_context(tiny: ServeModel) -> None:
    system = [{"role": "system", "content": "You are a helpful assistant who answers briefly. " * 5}]
    async with tiny() as server, server.connect() as socket:
        warm = await socket.response(input=system, generate=False, store=False)
        assert warm["usage"]["output_tokens"] == 0
        turn = await socket.response(input=ASK, previous_response_id=warm["id"], **GREEDY)
        assert cached(turn) >= warm["usage"]["input_tokens"]


@pytest.mark.parametrize("recognised_s", [0, 600])
async def test_a_continuation_and_a_full_history_get_the_same_answer(
    tiny: ServeModel, recognised_s: float
) -> None:
    async with tiny(limits=Limits(recognised_s=recognised_s)) as server, server.connect() as socket:
        first = await socket.response(input=ASK, **GREEDY)
        second = await socket.response(input="Go on.", previous_response_id=first["id"], **GREEDY)
        history = [{"role": "user", "content": ASK}, *first["output"], {"role": "user", "content": "Go on."}]
        _, whole = await server.post(input=history, **GREEDY)
        assert text_of(whole) == text_of(second)
        assert whole["usage"]["input_tokens"] == second["usage"]["input_tokens"]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_chain_of_the_models_own_template_renders_only_new_items(tiny_model: SharedModel) -> None:
    engine = tiny_model.engine(slots=1, context=512, dialect="template")
    assert isinstance(engine.renderer, TemplateRenderer)
    timed = {"OpenAI-Beta": "slipring_timing=v1"}
    async with serve(engine) as server, server.connect(headers=timed) as socket:
        first = await socket.response(input=ASK, instructions="Be brief.", **GREEDY)
        assert "fallback" not in (await socket.receive())["timing"]
        second = await socket.response(
            input="And of Italy?", instructions="Be brief.", previous_response_id=first["id"], **GREEDY
        )
        timing = (await socket.receive())["timing"]
        assert "fallback" not in timing
        assert timing["tokens"]["rendered"] < timing["tokens"]["input"] / 2
        assert cached(second) >= first["usage"]["total_tokens"]


async def test_a_required_call_fits_its_schema(tiny: ServeModel) -> None:
    cities = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "name": "get_weather", "parameters": cities, "strict": True}
    async with tiny() as server, server.connect() as socket:
        response = await socket.response(
            input="Weather in Rome?",
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,
            **{**GREEDY, "max_output_tokens": 60},
        )
        (call,) = response["output"]
        assert (call["type"], call["name"]) == ("function_call", "get_weather")
        jsonschema.validate(json.loads(call["arguments"]), cities)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        answer = await socket.response(
            input=[output],
            previous_response_id=response["id"],
            tools=[tool],
            **{**GREEDY, "max_output_tokens": 2},
        )
        assert cached(answer) >= response["usage"]["total_tokens"]


async def test_a_call_ends_before_the_tokens_that_follow_it(tiny_model: SharedModel) -> None:
    tools = Toolset.read(Raw(json.dumps([SHORT_CITY]).encode()))
    job = job_of(
        "Rome?",
        head=Head(tools=tools),
        offer=Offer(tools.callables, required=True),
        settings=Settings(temperature=0, max_output_tokens=100),
    )
    async with running(tiny_model.engine(slots=1, context=1024)) as engine:
        deltas = await deltas_of(engine, job)

    def places(kind: type[Delta]) -> list[int]:
        return [at for at, delta in enumerate(deltas) if isinstance(delta, kind)]

    (started,), (ended,), (finished,) = places(CallStarted), places(CallEnded), places(Finished)
    assert started < ended < finished
    assert not [at for at in places(CallArguments) + places(Text) if at > ended]


async def test_a_json_schema_format_is_enforced(tiny: ServeModel) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    async with tiny() as server:
        _, response = await server.post(input="A person as JSON.", text=asked, temperature=0)
        jsonschema.validate(json.loads(text_of(response)), schema)


async def test_logprobs_cover_every_token_of_the_answer(tiny: ServeModel) -> None:
    async with tiny(slots=1) as server, server.connect() as socket:
        response = await socket.response(input=ASK, top_logprobs=2, **GREEDY)
        (part,) = response["output"][0]["content"]
        assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
        assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])


def test_the_request_body_has_the_tokens_and_the_sampling_settings() -> None:
    body = empty(None).then((1, 2, 3), None).then((4, 5), None)
    rendered = Rendered("w", Preface(Head(), TEXT), body)
    settings = Settings(
        temperature=0.5, top_p=0.9, seed=7, logprobs=True, top_logprobs=3, presence_penalty=1.5
    )
    sent = json.loads(completion_body(rendered.json(), settings, Sampling(top_k=40), n_predict=20, id_slot=1))
    assert sent["prompt"] == [1, 2, 3, 4, 5]
    assert (sent["n_predict"], sent["id_slot"], sent["seed"], sent["n_probs"]) == (20, 1, 7, 3)
    assert (sent["temperature"], sent["top_p"], sent["presence_penalty"]) == (0.5, 0.9, 1.5)
    assert (sent["top_k"], sent["min_p"], sent["repeat_penalty"]) == (40, 0.0, 1.0)
    assert "repeat_last_n" not in sent
    sampling = Sampling(repetition_penalty=1.1, penalty_window=256)
    sent = json.loads(completion_body(rendered.json(), settings, sampling))
    assert (sent["repeat_penalty"], sent["repeat_last_n"]) == (1.1, 256)


async def test_a_fork_reuses_its_parents_kv_and_leaves_its_slot_intact(tiny: ServeModel) -> None:
    async with tiny(slots=2) as server, server.connect() as socket:
        parent = await socket.response(input=LONG, **GREEDY)
        total = parent["usage"]["total_tokens"]
        fork = await socket.response(
            input="In Rome?", previous_response_id=parent["id"], stream_id="fork", **GREEDY
        )
        assert cached(fork) >= 0.9 * total
        child = await socket.response(input="In Oslo?", previous_response_id=parent["id"], **GREEDY)
        assert cached(child) >= total, "the parent's slot is intact"
        again = await socket.response(
            input="And?", previous_response_id=fork["id"], stream_id="fork", **GREEDY
        )
        assert cached(again) >= fork["usage"]["total_tokens"]


async def test_simultaneous_forks_all_reuse_their_parents_kv(tiny: ServeModel) -> None:
    async with tiny(slots=2) as server, server.connect() as socket:
        parent = await socket.response(input=LONG, **GREEDY)
        lanes = ("a", "b", None)
        for lane in lanes:
            named = {} if lane is None else {"stream_id": lane}
            await socket.create(input="Why?", previous_response_id=parent["id"], **named, **GREEDY)
        ended = []
        while len(ended) < len(lanes):
            event = await socket.receive(60)
            if event["type"] in TERMINAL:
                ended.append(event["response"])
        assert [cached(each) >= 0.9 * parent["usage"]["total_tokens"] for each in ended] == [True] * 3


async def three_chains(server: Running) -> list[bool]:
    """Run three chains in turn on two slots; returns whether each continuation found its parent's KV."""
    async with server.connect() as socket:
        latest = {}
        for lane in ("a", "b", "c"):
            latest[lane] = await socket.response(
                input=LONG, instructions=f"{lane}.", stream_id=lane, **GREEDY
            )
        found = []
        for lane, parent in latest.items():
            child = await socket.response(
                input="And?",
                instructions=f"{lane}.",
                previous_response_id=parent["id"],
                stream_id=lane,
                **GREEDY,
            )
            found.append(cached(child) >= parent["usage"]["total_tokens"])
        return found


async def test_more_chains_than_slots_all_keep_their_kv(tiny: ServeModel) -> None:
    async with tiny(slots=2) as server:
        assert await three_chains(server) == [True, True, True]


async def test_nothing_is_saved_if_saved_mib_is_zero(tiny_model: SharedModel) -> None:
    async with serve(tiny_model.engine(slots=2, context=1024, saved_mib=0)) as server:
        assert await three_chains(server) == [False, False, False]


async def test_the_directory_of_saved_contexts_is_private_and_removed_at_the_end(tiny_path: str) -> None:
    engine = LlamaEngine(LlamaOptions(model=tiny_path, slots=1, context=512))
    process: Any = engine._host
    directory = process._directory
    async with serve(engine) as server, server.connect() as socket:
        for lane in ("a", "b"):
            await socket.response(input=f"{lane}: {LONG}", stream_id=lane, **GREEDY)
        assert len(list(directory.iterdir())) == 1
        assert directory.stat().st_mode & 0o077 == 0
    assert not directory.exists()


async def test_a_history_sent_again_reuses_its_slot(tiny: ServeModel) -> None:
    async with tiny(slots=2) as server:
        history: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
        _, first = await server.post(input=history, **GREEDY)
        history += [*first["output"], {"role": "user", "content": "And?"}]
        _, second = await server.post(input=history, **GREEDY)
        assert cached(second) >= first["usage"]["input_tokens"]


async def test_characters_of_several_tokens_are_sent_whole_and_keep_their_ids(tiny: ServeModel) -> None:
    asked = {**GREEDY, "max_output_tokens": 60}
    async with tiny(slots=1) as server, server.connect() as socket:
        first = await socket.response(input=ASK, text=SAY_FAMILY, **asked)
        assert (first["status"], json.loads(text_of(first))) == ("completed", FAMILY)
        assert first["usage"]["output_tokens"] > len(FAMILY)
        again = {"input": "More.", "text": SAY_FAMILY, **GREEDY}
        second = await socket.response(previous_response_id=first["id"], **again)
        assert cached(second) >= first["usage"]["total_tokens"]
        cut = await socket.response(input=ASK, text=SAY_FAMILY, **{**GREEDY, "max_output_tokens": 6})
        assert "👩" in text_of(cut)
        assert "\N{REPLACEMENT CHARACTER}" not in text_of(cut)[:-1]
        more = await socket.response(previous_response_id=cut["id"], **again)
        assert cached(more) >= cut["usage"]["total_tokens"] - 3  # except a character that was cut


async def test_a_disconnected_clients_slot_is_released(tiny: ServeModel) -> None:
    endless = {"input": "Count to a million.", "temperature": 0, "store": False}
    async with tiny(slots=1) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(**endless)
            await socket.until("response.output_text.delta")
        async with server.connect() as socket:
            assert (await socket.response(input=ASK, **GREEDY))["status"] in ("completed", "incomplete")


async def test_a_tenant_does_not_reuse_another_tenants_slot(tiny: ServeModel) -> None:
    async with tiny(slots=1, api_key=("a:key-a", "b:key-b")) as server:
        for key in ("key-a", "key-b", "key-a"):
            # Too short for a saved copy of its own.
            _, response = await server.post(key=key, input=ASK, instructions="Brief.", **GREEDY)
            assert cached(response) == 0


async def test_a_context_that_is_too_long_is_refused_before_its_response_is_created(tiny: ServeModel) -> None:
    async with tiny(context=64) as server, server.connect() as socket:
        refused = await socket.error(input="word " * 200)
        assert (refused["status"], refused["error"]["code"]) == (400, "context_length_exceeded")
        assert (refused["error"]["param"], "64 tokens" in refused["error"]["message"]) == ("input", True)
        status, body = await server.post(input="word " * 200)
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert (await socket.response(input="Hi", **GREEDY))["output"], "the connection still works"


async def test_truncation_drops_the_oldest_items_and_keeps_the_head(tiny: ServeModel) -> None:
    asked = {**GREEDY, "max_output_tokens": 8, "instructions": "Be brief.", "truncation": "auto"}
    timed = {"OpenAI-Beta": "slipring_timing=v1"}
    async with tiny(context=128, slots=1) as server, server.connect(headers=timed) as socket:
        response: dict[str, Any] = {"id": None}
        dropped = []
        for number in range(8):
            response = await socket.response(
                input=f"{number} " + "word " * 6, previous_response_id=response["id"], **asked
            )
            assert response["usage"]["total_tokens"] <= 128
            timing = (await socket.receive())["timing"]
            dropped.append(timing.get("dropped_items", 0))
            assert timing["tokens"]["cached"] == 0 or not dropped[-1] or timing["tokens"]["cached"] < 30
        assert any(dropped)
        assert not all(dropped[3:]), "truncation frees more than it needs, so that most turns only append"
        unfit = await socket.error(input="word " * 300, **asked)
        assert unfit["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("is_warmup", [False, True])
@pytest.mark.parametrize("place", ["input", "instructions", "tools"])
async def test_a_cancelled_prefill_stays_in_the_slot(
    tiny_path: str, slots: int, is_warmup: bool, place: str
) -> None:
    # In hundreds of batches, so that the prefill takes far longer than its cancellation.
    engine = LlamaEngine(LlamaOptions(model=tiny_path, slots=slots, context=4096, threads=1, chunk=4))
    words = "one two three four five six seven " * 400
    tool = {"type": "function", "name": "f", "description": words, "parameters": {"type": "object"}}
    asked = {"input": "go", place: [tool] if place == "tools" else words}
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            progress = watch_progress(engine)
            await socket.create(**asked, temperature=0, store=False, generate=not is_warmup)
            await progress.wait()
        async with server.connect() as socket:
            response = await socket.response(**asked, **GREEDY)
        assert cached(response) > 1, "the prefilled tokens were kept"


def watch_progress(engine: LlamaEngine) -> asyncio.Event:
    """An event that is set when the engine has prefilled its first chunk."""
    seen = asyncio.Event()
    complete = engine._api.complete

    async def watched(body: bytes, consumer: Any) -> None:
        take = consumer.take

        def watch(payloads: list[bytes]) -> Awaitable[None] | None:
            progress = [read_chunk(payload).prompt_progress for payload in payloads]
            if any(each is not None and each.processed for each in progress):
                seen.set()
            taken: Awaitable[None] | None = take(payloads)
            return taken

        consumer.take = watch
        await complete(body, consumer)

    engine._api.complete = watched  # type: ignore[method-assign]
    return seen


async def test_a_killed_child_fails_its_turn_and_is_restarted(tiny_path: str) -> None:
    async with own_child(model=tiny_path, slots=2, context=8192) as server, server.connect() as socket:
        process = process_of(server)
        await socket.create(input="Count to a million.", temperature=0, store=False)
        await socket.until("response.output_text.delta")
        os.kill(process.pid, signal.SIGKILL)
        last = (await socket.until("response.failed"))[-1]
        assert last["response"]["error"]["code"] == "server_error"
        await until(lambda: process.trouble)  # the connection may close a little before the process ends
        assert await health(server) == (503, "degraded", "the embedded engine is starting again")
        failed = await socket.response(input=ASK, **GREEDY)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        await until(lambda: process.restarts)
        assert await health(server) == (200, "ok", None)
        assert (await socket.response(input=ASK, **GREEDY))["output"]


async def health(server: Running) -> tuple[int, str, str | None]:
    async with server.http.get(server.url.removesuffix("/v1") + "/health") as answer:
        body = await answer.json()
        return answer.status, body["status"], body["engines"][0]["trouble"]


async def test_a_child_that_hangs_is_killed_and_restarted(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipring.engines.llama.api._SILENCE_TIMEOUT_S", 0.5)
    async with own_child(model=tiny_path, slots=2, context=1024) as server, server.connect() as socket:
        process = process_of(server)
        os.kill(process.pid, signal.SIGSTOP)
        failed = await socket.response(input=ASK, **GREEDY)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "nothing for too long" in failed["error"]["message"]
        await until(lambda: process.restarts)


async def test_the_child_exits_when_its_parent_is_killed(tiny_path: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slipring", "serve", "--port", "0"),
        *("--engine", f"llama:{tiny_path},slots=1,context=256", "--log-level", "error"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert b"serves" in await asyncio.wait_for(parent.stdout.readline(), 300)
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


async def test_our_tokenizer_gives_the_same_ids_as_llama_cpp(real_model: SharedModel) -> None:
    engine = real_model.engine(slots=1, context=256)
    async with serve(engine) as server, aiohttp.ClientSession() as http:
        url = process_of(server).url
        for text in CORPUS:
            asked = {"content": text, "add_special": False, "parse_special": False}
            async with http.post(f"{url}/tokenize", json=asked, headers=key_of(server)) as answer:
                theirs = (await answer.json(content_type=None))["tokens"]
            assert engine.renderer.vocabulary.encode(text) == theirs


async def test_the_child_refuses_requests_without_its_key(tiny: ServeModel) -> None:
    async with (
        tiny(slots=1, context=256) as server,
        aiohttp.ClientSession() as http,
        http.post(f"{process_of(server).url}/completion", json={"prompt": "hi"}) as answer,
    ):
        assert answer.status == 401


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slots=0", "option 'slots' must be a number >= 1, not '0'"),
        ("colour=red", "unknown option 'colour'"),
        ("saved_mib=-1", "option 'saved_mib' must be a number >= 0"),
    ],
)
def test_invalid_options_are_named_in_the_error(text: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        read_options(text)


def test_options_follow_a_model_or_stand_alone() -> None:
    assert read_options("/m.gguf,slots=3") == LlamaOptions(model="/m.gguf", slots=3)
    assert read_options("slots=3,context=99") == LlamaOptions(slots=3, context=99)
    assert read_options("") == LlamaOptions()
    external = read_options("http://127.0.0.1:8080/v1,key_env=KEY")
    assert external == LlamaOptions(model="http://127.0.0.1:8080", key_env="KEY")
    assert external.is_external


def test_models_that_cannot_be_served_are_startup_errors(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot read"):
        read_file(str(tmp_path / "missing.gguf"))
    (tmp_path / "not.gguf").write_bytes(b"other content")
    with pytest.raises(StartupError, match="not a GGUF file"):
        read_file(str(tmp_path / "not.gguf"))
    with pytest.raises(StartupError, match="has no chat template"):
        make_renderer("llama", LlamaOptions(), ModelInfo(), smollm2())
    with pytest.raises(StartupError, match="chat template cannot be used"):
        make_renderer("llama", LlamaOptions(), ModelInfo("{% for %}"), smollm2())
    with pytest.raises(StartupError, match="unknown dialect"):
        make_renderer("llama", LlamaOptions(dialect="latin"), ModelInfo(), smollm2())
