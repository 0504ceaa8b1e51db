"""``POST /v1/chat/completions``: requests, answers and errors on a real server."""

import asyncio
import json
from typing import Any

import pytest

from slipring.base.errors import ContextLengthExceeded, RateLimited
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    CallStarted,
    Capabilities,
    RefusalText,
    Text,
    Thought,
)
from slipring.core.limits import Limits
from slipring.protocol.responses import Logprob
from tests.chat_api import USER, Chat, Json, joined
from tests.harness import FAST, PuppetEngine, serve
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")

LOOK: Json = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=1"


async def test_a_completion_has_one_choice() -> None:
    async with serve() as server:
        found = await Chat(server).complete(model="simulated")
        (choice,) = found["choices"]
        assert found["model"] == "simulated"
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"]
        assert found["usage"]["completion_tokens"] == 5


async def test_a_stream_makes_up_the_same_message() -> None:
    async with serve() as server:
        chat = Chat(server)
        whole = await chat.message(seed=1)
        chunks = await chat.stream(seed=1, stream_options={"include_usage": True})
        assert joined(chunks)["content"] == whole["content"]
        assert chunks[-1]["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_the_version_may_be_left_out_of_the_path(path: str) -> None:
    async with serve() as server:
        chat = Chat(server)
        chat.url = server.url.removesuffix("/v1") + path
        await chat.complete()


async def test_the_completions_endpoint_is_named_where_it_is_missing() -> None:
    async with serve() as server:
        async with server.http.post(f"{server.url}/completions", json={}) as answer:
            assert "use POST /v1/chat/completions" in (await answer.json())["error"]["message"]
        async with server.http.get(f"{server.url}/chat/completions") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_everything_a_model_writes_has_its_place() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        chat = Chat(server)
        for ask in (chat.complete, chat.stream):
            asked: asyncio.Task[Any] = asyncio.create_task(ask(tools=[LOOK]))
            job = await engine.next()
            job.emit(Thought("h"), Thought("m"))
            job.say("Let me ", "look.")
            job.emit(CallStarted("function", "look"), CallArguments('{"city"'), CallArguments(':"Rome"}'))
            job.emit(CallEnded(), CallStarted("function", "look"), CallArguments("{}"), CallEnded())
            job.finish(output_tokens=9, reasoning_tokens=2)
            found = await asked
            message = joined(found) if isinstance(found, list) else found["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == ("hm", "Let me look.")
            calls = message["tool_calls"]
            assert [call["function"]["arguments"] for call in calls] == ['{"city":"Rome"}', "{}"]
            assert calls[0]["id"] != calls[1]["id"]
            if isinstance(found, list):
                assert message["finish_reason"] == "tool_calls"


async def test_refusals_and_logprobs_are_passed_on() -> None:
    engine = PuppetEngine(Capabilities(logprobs=True))
    async with serve(engine) as server:
        chat = Chat(server)
        asked = asyncio.create_task(chat.complete(logprobs=True, top_logprobs=1))
        job = await engine.next()
        assert (job.job.settings.logprobs, job.job.settings.top_logprobs) == (True, 1)
        job.emit(Text("hi", [Logprob("hi", -0.5, [104, 105], [])]))
        job.finish()
        assert (await asked)["choices"][0]["logprobs"]["content"][0]["bytes"] == [104, 105]

        streamed = asyncio.create_task(chat.stream(logprobs=True))
        job = await engine.next()
        job.emit(Text("hi", [Logprob("hi", -0.5, [104, 105], [])]))
        job.emit(RefusalText("no"))
        job.finish()
        chunks = await streamed
        assert chunks[1]["choices"][0]["logprobs"]["content"][0]["token"] == "hi"
        assert joined(chunks)["refusal"] == "no"


async def test_settings_reach_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(
            Chat(server).complete(
                {"role": "developer", "content": "Be brief."},
                USER,
                max_completion_tokens=9,
                temperature=0.5,
                seed=3,
                stop=["END"],
                top_k=4,
                reasoning_effort="low",
                tools=[LOOK],
                tool_choice={"type": "function", "function": {"name": "look"}},
                parallel_tool_calls=False,
                prompt_cache_key="k",
            )
        )
        performance = await engine.next()
        job, settings = performance.job, performance.job.settings
        assert [json.loads(item.raw)["role"] for item in job.context()] == ["developer", "user"]
        assert (settings.max_output_tokens, settings.temperature, settings.seed) == (9, 0.5, 3)
        assert (settings.stop, settings.top_k, settings.effort) == (("END",), 4, "low")
        assert (settings.parallel_tool_calls, job.offer.required, job.cache_key) == (False, True, "k")
        performance.say("before EN", "D after")
        performance.finish()
        assert (await asked)["choices"][0]["message"]["content"] == "before "


async def test_an_answer_that_is_cut_off_has_the_reason_length() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).complete())
        job = await engine.next()
        job.say("h")
        job.finish("max_output_tokens")
        assert (await asked)["choices"][0]["finish_reason"] == "length"


async def test_a_tool_loop_goes_on_with_the_results() -> None:
    async with serve(CALLS) as server:
        chat = Chat(server)
        asked = await chat.message(tools=[LOOK])
        (call,) = asked["tool_calls"]
        assert json.loads(call["function"]["arguments"]).keys() == {"city"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        answer = await chat.message(USER, asked, result, tools=[LOOK])
        assert answer["content"]


async def test_the_older_functions_are_called() -> None:
    async with serve(CALLS) as server:
        chat = Chat(server)
        functions = [LOOK["function"]]
        asked = await chat.message(functions=functions)
        assert asked["function_call"]["name"] == "look"
        assert joined(await chat.stream(functions=functions))["function_call"]["name"] == "look"
        result = {"role": "function", "name": "look", "content": "sunny"}
        assert (await chat.message(USER, asked, result, functions=functions))["content"]


async def test_a_schema_is_followed() -> None:
    async with serve() as server:
        schema = {
            "name": "s",
            "schema": {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]},
        }
        found = await Chat(server).message(response_format={"type": "json_schema", "json_schema": schema})
        assert json.loads(found["content"]) == {"a": 7}


async def test_a_padded_stream_has_chunks_of_even_lengths() -> None:
    async with serve() as server:
        chunks = await Chat(server).stream(stream_options={"include_obfuscation": True})
        assert any("obfuscation" in chunk for chunk in chunks)


# Errors ------------------------------------------------------------------------------------------

ERRORS: dict[str, tuple[tuple[Json, ...], Json, int, str, str | None]] = {
    "an unknown model": ((), {"model": "nope"}, 404, "model_not_found", "model"),
    "a call without a result": (
        (
            USER,
            {
                "role": "assistant",
                "tool_calls": [{"id": "mine", "function": {"name": "look", "arguments": "{}"}}],
            },
        ),
        {},
        400,
        "invalid_value",
        "messages",
    ),
    "a name that is too long": (
        (
            USER,
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "x" * 300}}]},
            {"role": "tool", "tool_call_id": "a", "content": ""},
        ),
        {},
        400,
        "invalid_value",
        "messages[1].tool_calls[0].function.name",
    ),
    "parameters that are no object": (
        (),
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        400,
        "invalid_type",
        "tools[0].function.parameters",
    ),
    "two tools of one name": ((), {"tools": [LOOK, LOOK]}, 400, "invalid_value", "tools"),
    "a tool that is not offered": (
        (),
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        400,
        "invalid_value",
        "tool_choice",
    ),
    "a schema without a name": (
        (),
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        400,
        "missing_required_parameter",
        "response_format.json_schema.name",
    ),
    "logprobs": ((), {"logprobs": True}, 400, "unsupported_parameter", "logprobs"),
    "audio": ((), {"modalities": ["audio"]}, 400, "unsupported_parameter", "modalities"),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("case", ERRORS)
async def test_errors_name_the_client_s_own_field(case: str, streams: bool) -> None:
    messages, fields, status, code, param = ERRORS[case]
    async with serve() as server:
        found, error = await Chat(server).error(*messages, **fields, stream=streams)
        assert (found, error["code"], error["param"]) == (status, code, param), error["message"]
        assert "input[" not in error["message"]


async def test_an_image_that_the_model_cannot_see_is_named() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with serve(PuppetEngine()) as server:
        status, error = await Chat(server).error({"role": "user", "content": [image, image]})
        assert (status, error["param"]) == (400, "messages[0].content[0]")


async def test_an_error_in_a_large_request_names_the_client_s_own_field() -> None:
    async with serve() as server:
        long = {"role": "user", "content": "x" * 200_000}
        bad = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "x" * 300}}]}
        status, error = await Chat(server).error(long, bad)
        assert (status, error["param"]) == (400, "messages[1].tool_calls[0].function.name")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": 1}', b"\xff"])
async def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    async with serve() as server:
        chat = Chat(server)
        async with server.http.post(chat.url, data=body) as answer:
            assert answer.status == 400
            assert "error" in await answer.json()


async def test_a_context_that_is_too_long_is_refused_in_the_client_s_words() -> None:
    engine = PuppetEngine()
    engine.accepts = False
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).error())
        (await engine.next()).fail(ContextLengthExceeded(11, 10))
        status, error = await asked
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert "truncation" not in error["message"]


async def test_a_failure_after_the_first_token_ends_the_stream_with_an_error() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        asked = asyncio.create_task(Chat(server).stream())
        job = await engine.next()
        job.say("h")
        job.fail(RuntimeError("secret"))
        *_, last = await asked
        assert last["error"]["type"] == "server_error"
        assert "secret" not in last["error"]["message"]


async def test_a_failure_of_the_engine_is_a_status_where_nothing_was_sent() -> None:
    engine = PuppetEngine()
    engine.accepts = False
    async with serve(engine) as server:
        for ask in (Chat(server).error, Chat(server).error):
            asked = asyncio.create_task(ask(stream=True))
            (await engine.next()).fail(RateLimited("Busy.", retry_after_s=2))
            assert (await asked)[0] == 429


async def test_a_client_that_leaves_ends_its_answer() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        chat = Chat(server)
        body = {"messages": [USER], "stream": True}
        async with server.http.post(chat.url, json=body) as answer:
            job = await engine.next()
            job.say("h")
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await asyncio.wait_for(job.stopped.wait(), 300)
        await until(lambda: not server.service.clients)


async def test_a_wrong_key_is_refused() -> None:
    async with serve(api_key=("right",)) as server:
        status, error = await Chat(server, "wrong").error()
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert (await Chat(server, "right").complete())["choices"]


async def test_a_large_body_is_refused_with_the_api_s_error() -> None:
    async with serve(FAST, limits=Limits(max_frame_bytes=100_000)) as server:
        status, _ = await Chat(server).error({"role": "user", "content": "x" * 200_000})
        assert status == 413


async def test_nothing_is_stored(tmp_path: Any) -> None:
    async with serve(store=f"sqlite:{tmp_path}/s.db") as server:
        found = await Chat(server).complete(store=True)
        response_id = found["id"].replace("chatcmpl-", "resp_")
        async with server.http.get(f"{server.url}/responses/{response_id}") as answer:
            assert answer.status == 404
