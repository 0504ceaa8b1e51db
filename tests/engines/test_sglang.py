"""The sglang engine on the wire: ids in, ids out, told all at once or piece by piece."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.engines.sglang import SglangEngine
from slipring.errors import StartupError
from tests.engines.partner import Ids, Say, Stop
from tests.engines.sglang_partner import SglangPartner
from tests.engines.test_contract import text_of
from tests.engines.token_partner import END, TOKENIZER, decoded
from tests.engines.vllm_partner import tokens_of
from tests.harness import WEATHER, Running, serve

ASK: dict[str, Any] = {"input": "hello", "store": False}
TELL_LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
BOTH_WAYS = pytest.mark.parametrize("incremental", [False, True])


@asynccontextmanager
async def partner(**fields: Any) -> AsyncIterator[SglangPartner]:
    played = SglangPartner()
    for name, value in fields.items():
        setattr(played, name, value)
    await played.start()
    try:
        yield played
    finally:
        await played.close()


@asynccontextmanager
async def playing(
    *, incremental: bool = False, **options: Any
) -> AsyncIterator[tuple[SglangPartner, Running]]:
    async with partner(incremental=incremental) as played:
        engine = await asyncio.to_thread(played.engine, **{"retries": 0, **options})
        async with serve(engine) as server:
            yield played, server


async def test_a_request_says_everything_that_was_asked_for_and_no_more() -> None:
    async with playing() as (played, server), server.connect() as socket:
        sampling = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 20, "seed": 7}
        await socket.response(**ASK, instructions="Be kind.", **sampling)
        await socket.response(**ASK)
        asked, plain = played.requests
        assert decoded(asked["input_ids"]) == (
            "<|im_start|>system\nBe kind.<|im_end|>\n"
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )
        params = asked["sampling_params"]
        assert (params["temperature"], params["top_p"], params["max_new_tokens"]) == (0.5, 0.9, 20)
        assert params["sampling_seed"] == 7
        assert params["stop_token_ids"] == sorted([END, TOKENIZER.control("<|endoftext|>")])
        params = plain["sampling_params"]
        assert (params["temperature"], params["top_p"], params["top_k"]) == (1.0, 1.0, -1)
        assert params["max_new_tokens"] == 8192 - len(plain["input_ids"]) - 1
        assert not {"sampling_seed", "json_schema"} & params.keys()
        assert plain["stream"] is True
        assert "return_logprob" not in plain


@BOTH_WAYS
async def test_a_continuation_is_the_ids_of_its_parent_the_ids_it_said_and_the_delta(
    incremental: bool,
) -> None:
    # The same token again and again: all until now, or only the new one?
    (ha,) = TOKENIZER.encode(" ha")
    async with playing(incremental=incremental) as (played, server), server.connect() as socket:
        played.script(Ids((ha,)), Ids((ha,)), Ids((ha, ha)), Ids((ha,)), Stop(cached_tokens=5))
        events = await socket.turn(**ASK)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert deltas == [" ha", " ha", " ha ha", " ha"]
        first = events[-1]["response"]
        assert first["usage"]["output_tokens"] == 5
        assert first["usage"]["input_tokens_details"]["cached_tokens"] == 5
        await socket.response(input="more", previous_response_id=first["id"], store=False)
        parent, child = played.prompts
        delta = tokens_of("<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")
        assert child == [*parent, *[ha] * 5, *delta]
        history = played.bodies[0].partition(b"]")[0]
        assert played.bodies[1].startswith(history + b",")


@BOTH_WAYS
async def test_a_character_that_is_split_over_tokens_comes_whole(incremental: bool) -> None:
    ids = TOKENIZER.encode("東👩‍👧")
    async with playing(incremental=incremental) as (played, server), server.connect() as socket:
        played.script(*(Ids((id,)) for id in ids), Stop())
        response = await socket.response(**ASK)
        assert text_of(response) == "東👩‍👧"
        assert response["usage"]["output_tokens"] == len(ids)


@BOTH_WAYS
async def test_logprobs_are_those_of_the_tokens_with_their_bytes(incremental: bool) -> None:
    async with playing(incremental=incremental) as (played, server), server.connect() as socket:
        ids = TOKENIZER.encode("one two 東")
        played.script(*(Ids((id,)) for id in ids), Stop())
        response = await socket.response(**ASK, top_logprobs=2, **TELL_LOGPROBS)
        assert (played.requests[0]["return_logprob"], played.requests[0]["top_logprobs_num"]) == (True, 2)
        (part,) = response["output"][0]["content"]
        told = part["logprobs"]
        assert [bytes(each["bytes"]) for each in told] == [TOKENIZER.bytes_of(id) for id in ids]
        assert [each["logprob"] for each in told] == [-0.5] * len(ids)
        assert [[top["logprob"] for top in each["top_logprobs"]] for each in told] == [[-0.5, -1.5]] * len(
            ids
        )


@BOTH_WAYS
async def test_logprobs_without_others(incremental: bool) -> None:
    async with playing(incremental=incremental) as (played, server), server.connect() as socket:
        played.script(Say(("Hel", "lo")), Stop())
        response = await socket.response(**ASK, **TELL_LOGPROBS)
        (part,) = response["output"][0]["content"]
        assert [(each["token"], each["top_logprobs"]) for each in part["logprobs"]] == [
            ("Hel", []),
            ("lo", []),
        ]


async def test_formats_and_required_calls_are_schemas() -> None:
    async with playing() as (played, server), server.connect() as socket:
        played.script(Say(("{}",)), Stop())
        await socket.response(**ASK, text={"format": {"type": "json_object"}})
        assert json.loads(played.requests[0]["sampling_params"]["json_schema"]) == {"type": "object"}
        played.script(Say(('{"name": "get_weather", "arguments": {"city": "Rome"}}',)), Stop())
        response = await socket.response(**ASK, tools=[WEATHER], tool_choice="required")
        schema = json.loads(played.requests[1]["sampling_params"]["json_schema"])
        assert schema["anyOf"][0]["properties"]["arguments"] == WEATHER["parameters"]
        assert [item["type"] for item in response["output"]] == ["function_call"]


async def test_a_required_call_of_a_lark_grammar_is_a_grammar() -> None:
    lines = {"type": "grammar", "syntax": "lark", "definition": 'start: ("a" "\\n")+'}
    tool = {"type": "custom", "name": "lines", "format": lines}
    async with playing() as (played, server), server.connect() as socket:
        played.script(Say(('{"name": "lines", "arguments": {"input": "a\\n"}}',)), Stop())
        response = await socket.response(**ASK, tools=[tool], tool_choice="required")
        params = played.requests[0]["sampling_params"]
        assert params["ebnf"].startswith("root ::= ")
        assert "json_schema" not in params
        assert [item["input"] for item in response["output"]] == ["a\n"]
        played.script(Say(('{"name": "lines", "arguments": {"input": "a\\n"}}',)), Stop())
        await socket.response(**ASK, tools=[tool, WEATHER], tool_choice="required")
        params = played.requests[1]["sampling_params"]
        assert "json_schema" in params, "functions have schemas"
        assert "ebnf" not in params


async def test_tenants_have_caches_of_their_own() -> None:
    async with partner() as played:
        async with serve(played.engine(), api_key=("one:k1", "two:k2")) as server:
            for key in ("k1", "k1", "k2"):
                await server.post(key=key, **ASK)
        one, same, other = (request["extra_key"] for request in played.requests)
        assert one == same != other


async def test_a_warmup_prefills_and_says_nothing() -> None:
    async with playing() as (played, server), server.connect() as socket:
        played.script(Say(("never",)), Stop("length", cached_tokens=2))
        warm = await socket.response(**ASK, generate=False)
        assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] == 2
        assert played.requests[0]["sampling_params"]["max_new_tokens"] == 1
        assert decoded(played.prompts[0]) == "<|im_start|>user\nhello<|im_end|>\n"


async def test_what_is_too_long_is_refused_before_it_is_a_response() -> None:
    async with playing(context=64) as (played, server), server.connect() as socket:
        refused = await socket.error(input="word " * 100, store=False)
        assert (refused["status"], refused["error"]["code"]) == (400, "context_length_exceeded")
        assert played.requests == []


async def test_the_last_tokens_of_a_context_are_not_for_prompts() -> None:
    async with playing(context=64) as (played, server), server.connect() as socket:
        one = await socket.response(input="a", store=False)
        longest = 64 - 6 - 1
        fits = "a" + " a" * (longest - one["usage"]["input_tokens"])
        response = await socket.response(input=fits, store=False)
        assert response["usage"]["input_tokens"] == longest
        assert played.requests[-1]["sampling_params"]["max_new_tokens"] == 64 - longest - 1
        refused = await socket.error(input=fits + " a", store=False)
        assert refused["error"]["code"] == "context_length_exceeded"
        more = {"input": "b", "previous_response_id": response["id"], "store": False}
        await socket.response(**more, truncation="auto")
        assert len(played.prompts[-1]) < longest


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(("told", "context"), [(1994, 2000), (8186, 8192), (10**6, 8192), (None, 8192)])
async def test_a_small_cache_bounds_the_context(told: int | None, context: int, is_old: bool) -> None:
    async with partner(max_req_input_len=told, is_old=is_old) as played:
        engine = await asyncio.to_thread(played.engine, model="", context=0)
        assert engine.served.context == context
        named = await asyncio.to_thread(played.engine, model="", context=500)
        assert named.served.context == 500


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_prompt"), (500, "server_error"), (None, "server_error")]
)
async def test_an_aborted_answer_fails(status: int | None, code: str) -> None:
    async with playing() as (played, server), server.connect() as socket:
        played.abort = {"type": "abort", "message": "no room", "status_code": status, "err_type": None}
        response = await socket.response(**ASK)
        assert (response["status"], response["error"]["code"]) == ("failed", code)


async def test_an_aborted_answer_that_has_not_begun_is_tried_again() -> None:
    async with playing(retries=1) as (played, server), server.connect() as socket:
        events = played.events
        busy = {"type": "abort", "message": "queue is full", "status_code": 503}
        meta = {"id": "1", "completion_tokens": 0, "cached_tokens": 0, "finish_reason": busy}

        def once(*told: Any) -> list[Any]:
            played.events = events  # type: ignore[method-assign]
            return [{"text": "", "output_ids": [], "meta_info": meta}]

        played.events = once  # type: ignore[method-assign,assignment]
        response = await socket.response(**ASK)
        assert (response["status"], text_of(response), len(played.requests)) == ("completed", "ok", 2)


async def test_tokens_that_were_lost_on_the_way_fail_the_answer() -> None:
    async with playing(incremental=True) as (played, server), server.connect() as socket:
        events = played.events
        played.events = lambda body, chunk, ids, stop: (  # type: ignore[method-assign]
            [] if chunk.text == "lost" else events(body, chunk, ids, stop)
        )
        played.script(Say(("one", "lost", "two")), Stop())
        response = await socket.response(**ASK)
        assert (response["status"], text_of(response)) == ("failed", "one")
        assert "lost tokens" in response["error"]["message"]


async def test_all_logprobs_may_come_again_with_every_new_token() -> None:
    async with playing(incremental=True) as (played, server), server.connect() as socket:
        events = played.events

        def all_again(body: Any, chunk: Any, ids: list[int], stop: Any) -> list[Any]:
            told = events(body, chunk, ids, stop)
            told[0]["meta_info"]["output_token_logprobs"] = [[-float(id), id, None] for id in ids]
            return told

        played.events = all_again  # type: ignore[method-assign]
        played.script(Say(("Hel", "lo")), Stop())
        response = await socket.response(**ASK, **TELL_LOGPROBS)
        (part,) = response["output"][0]["content"]
        assert [each["logprob"] for each in part["logprobs"]] == [
            -float(id) for id in [*TOKENIZER.encode("Hel"), *TOKENIZER.encode("lo")]
        ]


async def test_a_server_that_names_no_ids_is_too_old() -> None:
    async with playing() as (played, server), server.connect() as socket:
        played.names_ids = False
        response = await socket.response(**ASK)
        assert "SGLang 0.5 or newer" in response["error"]["message"]


@pytest.mark.parametrize("is_old", [False, True])
async def test_the_servers_tokenizer_is_used_where_it_is_here(is_old: bool) -> None:
    async with partner(is_old=is_old) as played:
        engine = await asyncio.to_thread(played.engine, tokenizer="", model="", context=0)
        assert engine.renderer.vocabulary.is_local
        assert (engine.served.name, engine.served.context) == ("smollm2", 8192)


@pytest.mark.parametrize(
    ("path", "said"), [("HuggingFaceTB/SmolLM2", "which is not here"), ("", "names none")]
)
async def test_a_tokenizer_that_is_elsewhere_has_to_be_named(path: str, said: str) -> None:
    async with partner(tokenizer_path=path) as played:
        with pytest.raises(StartupError, match=said):
            await asyncio.to_thread(played.engine, tokenizer="")


def test_what_cannot_be_used_is_told_in_one_line() -> None:
    with pytest.raises(StartupError, match="name its address, as in sglang:http"):
        SglangEngine.from_options("")
    with pytest.raises(StartupError, match=r"cannot reach http://127\.0\.0\.1:9"):
        SglangEngine.from_options("http://127.0.0.1:9")
    with pytest.raises(StartupError, match=r"cannot reach http://127\.0\.0\.1:9"):
        SglangEngine.from_options("http://127.0.0.1:9,model=m,context=9")
