"""The sglang engine on the wire: ids in, ids out, in repeating or incremental streams."""

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.engines.tokens.sglang import SglangEngine
from tests.engines.fakes.server import Call, Ids, Say, Stop, started
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.structural_tags import read_tag, schemas_of
from tests.engines.fakes.tokens import END, TOKENIZER, decoded
from tests.engines.fakes.vllm import tokens_of
from tests.engines.test_contract import text_of
from tests.harness import WEATHER, Running, serve

pytestmark = pytest.mark.usefixtures("compiled_here")

ASK: dict[str, Any] = {"input": "hello", "store": False}
TELL_LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
BOTH_WAYS = pytest.mark.parametrize("incremental", [False, True])


@asynccontextmanager
async def fake_sglang(**fields: Any) -> AsyncIterator[FakeSglang]:
    fake = FakeSglang()
    for name, value in fields.items():
        setattr(fake, name, value)
    await fake.start()
    try:
        yield fake
    finally:
        await fake.close()


@asynccontextmanager
async def running(
    *, incremental: bool = False, fields: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[FakeSglang, Running]]:
    async with (
        fake_sglang(incremental=incremental, **(fields or {})) as fake,
        serve(fake.engine(**{"retries": 0, **options})) as server,
    ):
        yield fake, server


async def test_a_request_carries_the_clients_settings_and_no_others() -> None:
    async with running() as (fake, server), server.connect() as socket:
        sampling = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 20, "seed": 7}
        await socket.response(**ASK, instructions="Be kind.", **sampling)
        await socket.response(**ASK)
        asked, plain = fake.requests
        assert decoded(asked["input_ids"]) == (
            "<|im_start|>system\nBe kind.<|im_end|>\n"
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )
        params = asked["sampling_params"]
        assert (params["temperature"], params["top_p"], params["max_new_tokens"]) == (0.5, 0.9, 20)
        assert params["sampling_seed"] == 7
        assert params["stop_token_ids"] == [END]
        params = plain["sampling_params"]
        assert (params["temperature"], params["top_p"], params["top_k"]) == (0.6, 0.95, -1)
        assert params["max_new_tokens"] == 8192 - len(plain["input_ids"]) - 1
        assert not {"sampling_seed", "json_schema"} & params.keys()
        assert plain["stream"] is True
        assert "return_logprob" not in plain


@BOTH_WAYS
async def test_a_continuation_sends_its_parents_ids_the_emitted_ids_and_the_new_ones(
    incremental: bool,
) -> None:
    # The same token again and again: all until now, or only the new one?
    (ha,) = TOKENIZER.encode(" ha")
    async with running(incremental=incremental) as (fake, server), server.connect() as socket:
        fake.script(Ids((ha,)), Ids((ha,)), Ids((ha, ha)), Ids((ha,)), Stop(cached_tokens=5))
        events = await socket.turn(**ASK)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert deltas == [" ha", " ha", " ha ha", " ha"]
        first = events[-1]["response"]
        assert first["usage"]["output_tokens"] == 5
        assert first["usage"]["input_tokens_details"]["cached_tokens"] == 5
        await socket.response(input="more", previous_response_id=first["id"], store=False)
        parent, child = fake.prompts
        delta = tokens_of("<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")
        assert child == [*parent, *[ha] * 5, *delta]
        history = fake.bodies[0].partition(b"]")[0]
        assert fake.bodies[1].startswith(history + b",")


@BOTH_WAYS
async def test_a_character_of_several_tokens_is_sent_whole(incremental: bool) -> None:
    ids = TOKENIZER.encode("東👩‍👧")
    async with running(incremental=incremental) as (fake, server), server.connect() as socket:
        fake.script(*(Ids((id,)) for id in ids), Stop())
        response = await socket.response(**ASK)
        assert text_of(response) == "東👩‍👧"
        assert response["usage"]["output_tokens"] == len(ids)


@BOTH_WAYS
async def test_logprobs_are_those_of_the_tokens_with_their_bytes(incremental: bool) -> None:
    async with running(incremental=incremental) as (fake, server), server.connect() as socket:
        ids = TOKENIZER.encode("one two 東")
        fake.script(*(Ids((id,)) for id in ids), Stop())
        response = await socket.response(**ASK, top_logprobs=2, **TELL_LOGPROBS)
        assert (fake.requests[0]["return_logprob"], fake.requests[0]["top_logprobs_num"]) == (True, 2)
        (part,) = response["output"][0]["content"]
        logprobs = part["logprobs"]
        assert [bytes(each["bytes"]) for each in logprobs] == [TOKENIZER.bytes_of(id) for id in ids]
        assert [each["logprob"] for each in logprobs] == [-0.5] * len(ids)
        assert [[top["logprob"] for top in each["top_logprobs"]] for each in logprobs] == [
            [-0.5, -1.5]
        ] * len(ids)


@BOTH_WAYS
async def test_logprobs_without_others(incremental: bool) -> None:
    async with running(incremental=incremental) as (fake, server), server.connect() as socket:
        fake.script(Say(("Hel", "lo")), Stop())
        response = await socket.response(**ASK, **TELL_LOGPROBS)
        (part,) = response["output"][0]["content"]
        assert [(each["token"], each["top_logprobs"]) for each in part["logprobs"]] == [
            ("Hel", []),
            ("lo", []),
        ]


async def test_formats_are_sent_as_schemas() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Say(("{}",)), Stop())
        await socket.response(**ASK, text={"format": {"type": "json_object"}})
        assert json.loads(fake.requests[0]["sampling_params"]["json_schema"]) == {"type": "object"}


async def test_required_calls_are_sent_as_structural_tags() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Call("get_weather", '{"city": "Rome"}'), Stop())
        response = await socket.response(**ASK, tools=[WEATHER], tool_choice="required")
        params = fake.requests[0]["sampling_params"]
        assert WEATHER["parameters"] in schemas_of(read_tag(params["structural_tag"]))
        assert not {"json_schema", "ebnf"} & params.keys()
        assert [item["type"] for item in response["output"]] == ["function_call"]


@pytest.mark.parametrize("fields", [{"version": "0.5.11"}, {"grammar_backend": "llguidance"}])
async def test_servers_without_structural_tags_are_sent_one_schema_or_one_grammar(
    fields: dict[str, str],
) -> None:
    lines = {"type": "grammar", "syntax": "lark", "definition": 'start: ("a" "\\n")+'}
    tool = {"type": "custom", "name": "lines", "format": lines}
    told = {"max_req_input_len": 8000, **fields}
    async with running(fields=told) as (fake, server), server.connect() as socket:
        fake.script(Say(('{"name": "lines", "arguments": {"input": "a\\n"}}',)), Stop())
        response = await socket.response(**ASK, tools=[tool], tool_choice="required")
        params = fake.requests[0]["sampling_params"]
        assert params["ebnf"].startswith("root ::= ")
        assert "json_schema" not in params
        assert [item["input"] for item in response["output"]] == ["a\n"]
        fake.script(Say(('{"name": "lines", "arguments": {"input": "a\\n"}}',)), Stop())
        await socket.response(**ASK, tools=[tool, WEATHER], tool_choice="required")
        params = fake.requests[1]["sampling_params"]
        schema = json.loads(params["json_schema"])
        assert schema["anyOf"][1]["properties"]["arguments"] == WEATHER["parameters"]
        assert "ebnf" not in params


async def test_tenants_have_their_own_caches() -> None:
    async with fake_sglang() as fake:
        async with serve(fake.engine(), api_key=("one:k1", "two:k2")) as server:
            for key in ("k1", "k1", "k2"):
                await server.post(key=key, **ASK)
        one, same, other = (request["extra_key"] for request in fake.requests)
        assert one == same != other


async def test_a_warmup_prefills_and_emits_nothing() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Say(("never",)), Stop("length", cached_tokens=2))
        warm = await socket.response(**ASK, generate=False)
        assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] == 2
        assert fake.requests[0]["sampling_params"]["max_new_tokens"] == 1
        assert decoded(fake.prompts[0]) == "<|im_start|>user\nhello<|im_end|>\n"


async def test_a_context_that_is_too_long_is_refused_before_a_response_exists() -> None:
    async with running(context=64) as (fake, server), server.connect() as socket:
        refused = await socket.error(input="word " * 100, store=False)
        assert (refused["status"], refused["error"]["code"]) == (400, "context_length_exceeded")
        assert fake.requests == []


async def test_the_last_tokens_of_a_context_are_not_for_prompts() -> None:
    async with running(context=64) as (fake, server), server.connect() as socket:
        one = await socket.response(input="a", store=False)
        longest = 64 - 6 - 1
        fits = "a" + " a" * (longest - one["usage"]["input_tokens"])
        response = await socket.response(input=fits, store=False)
        assert response["usage"]["input_tokens"] == longest
        assert fake.requests[-1]["sampling_params"]["max_new_tokens"] == 64 - longest - 1
        refused = await socket.error(input=fits + " a", store=False)
        assert refused["error"]["code"] == "context_length_exceeded"
        more = {"input": "b", "previous_response_id": response["id"], "store": False}
        await socket.response(**more, truncation="auto")
        assert len(fake.prompts[-1]) < longest


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(("longest", "context"), [(1994, 2000), (8186, 8192), (10**6, 8192), (None, 8192)])
async def test_a_cache_smaller_than_the_context_limits_it(
    longest: int | None, context: int, is_old: bool
) -> None:
    async with fake_sglang(max_req_input_len=longest, is_old=is_old) as fake:
        async with started(fake.engine(model="", context=0)) as engine:
            assert engine.served.context == context
        async with started(fake.engine(model="", context=500)) as named:
            assert named.served.context == 500


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_prompt"), (500, "server_error"), (None, "server_error")]
)
async def test_an_aborted_answer_fails(status: int | None, code: str) -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.abort = {"type": "abort", "message": "no room", "status_code": status, "err_type": None}
        response = await socket.response(**ASK)
        assert (response["status"], response["error"]["code"]) == ("failed", code)


async def test_an_aborted_answer_that_has_not_begun_is_retried() -> None:
    async with running(retries=1) as (fake, server), server.connect() as socket:
        events = fake.events
        busy = {"type": "abort", "message": "queue is full", "status_code": 503}
        meta = {"id": "1", "completion_tokens": 0, "cached_tokens": 0, "finish_reason": busy}

        def once(*_: Any) -> list[Any]:
            fake.events = events  # type: ignore[method-assign]
            return [{"text": "", "output_ids": [], "meta_info": meta}]

        fake.events = once  # type: ignore[method-assign,assignment]
        response = await socket.response(**ASK)
        assert (response["status"], text_of(response), len(fake.requests)) == ("completed", "ok", 2)


async def test_lost_tokens_fail_the_answer() -> None:
    async with running(incremental=True) as (fake, server), server.connect() as socket:
        events = fake.events
        fake.events = lambda body, chunk, ids, stop: (  # type: ignore[method-assign]
            [] if chunk.text == "lost" else events(body, chunk, ids, stop)
        )
        fake.script(Say(("one", "lost", "two")), Stop())
        response = await socket.response(**ASK)
        assert (response["status"], text_of(response)) == ("failed", "one")
        assert "lost tokens" in response["error"]["message"]


async def test_repeated_logprobs_are_emitted_once() -> None:
    async with running(incremental=True) as (fake, server), server.connect() as socket:
        events = fake.events

        def all_again(body: Any, chunk: Any, ids: list[int], stop: Any) -> list[Any]:
            changed = events(body, chunk, ids, stop)
            changed[0]["meta_info"]["output_token_logprobs"] = [[-float(id), id, None] for id in ids]
            return changed

        fake.events = all_again  # type: ignore[method-assign]
        fake.script(Say(("Hel", "lo")), Stop())
        response = await socket.response(**ASK, **TELL_LOGPROBS)
        (part,) = response["output"][0]["content"]
        assert [each["logprob"] for each in part["logprobs"]] == [
            -float(id) for id in [*TOKENIZER.encode("Hel"), *TOKENIZER.encode("lo")]
        ]


async def test_a_server_that_returns_no_ids_is_too_old() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.names_ids = False
        response = await socket.response(**ASK)
        assert "SGLang 0.5 or newer" in response["error"]["message"]


@pytest.mark.parametrize("is_old", [False, True])
async def test_the_servers_tokenizer_is_used_if_it_is_on_this_machine(is_old: bool) -> None:
    async with (
        fake_sglang(is_old=is_old) as fake,
        started(fake.engine(tokenizer="", model="", context=0)) as engine,
    ):
        assert engine.renderer.vocabulary.is_local
        assert (engine.served.name, engine.served.context) == ("smollm2", 8192)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("HuggingFaceTB/SmolLM2", "tokenizer=HuggingFaceTB/SmolLM2"),
        ("/models/x", "which is not here"),
        ("", "names none"),
    ],
)
async def test_a_tokenizer_that_is_not_on_this_machine_must_be_named(path: str, message: str) -> None:
    async with fake_sglang(tokenizer_path=path) as fake:
        with pytest.raises(StartupError, match=message):
            async with started(fake.engine(tokenizer="")):
                pass


async def test_unusable_options_fail_with_one_line() -> None:
    with pytest.raises(StartupError, match="needs the address of a server, as in sglang:http"):
        SglangEngine.from_options("")
    for text in ("http://127.0.0.1:9", "http://127.0.0.1:9,model=m,context=9"):
        with pytest.raises(StartupError, match=r"cannot reach http://127\.0\.0\.1:9"):
            async with started(SglangEngine.from_options(text)):
                pass


async def test_loops_that_run_go_first_and_warmups_last() -> None:
    async with running(priorities=True) as (fake, server), server.connect() as socket:
        await socket.response(**ASK, generate=False)
        first = await socket.response(**ASK)
        await socket.response(input="more", previous_response_id=first["id"], store=False)
        assert [request["priority"] for request in fake.requests] == [0, 1, 2]


async def test_a_cache_of_sessions_knows_chains_and_their_ends() -> None:
    async with running(fields={"has_session_cache": True}) as (fake, server):
        # Without retention: otherwise the chain could be continued by a client that sends its items again.
        async with server.connect(headers={"OpenAI-Beta": "slipring_zero_retention=v1"}) as socket:
            first = await socket.response(**ASK)
            await socket.response(input="more", previous_response_id=first["id"], store=False)
            (key,) = {request["session_id"] for request in fake.requests}
            assert not any("session_params" in request for request in fake.requests)
            assert fake.closed.empty()
        gc.collect()
        assert await fake.closed.get() == key
