"""The Messages API over HTTP: answers, events, usage and errors, each checked against the SDK's types."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipring.base.errors import ContextLengthExceeded, RateLimited, ServerError, Unavailable
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    CallStarted,
    Capabilities,
    Delta,
    Finished,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.core.limits import Limits
from slipring.protocol.items.item_pictures import base64_of
from tests import messages_wire, wire
from tests.harness import FAST, PuppetEngine, serve
from tests.messages_api import MessagesApi, Refused
from tests.messages_wire import Json
from tests.pictures import PIXEL

pytestmark = pytest.mark.usefixtures("compiled_here")

TOOL = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object"}}
THINKING = {"type": "enabled", "budget_tokens": 1024}
CALL = (
    CallStarted("function", "get_weather"),
    CallArguments('{"city": '),
    CallArguments('"Rome"}'),
    CallEnded(),
)
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(PIXEL)}}


class Stage:
    """A server with an engine that the test controls."""

    def __init__(self, engine: PuppetEngine, api: MessagesApi) -> None:
        self.engine = engine
        self.api = api

    async def play(
        self, *deltas: Delta, asks: tuple[Json | str, ...] = ("hi",), reason: str = "stop", **fields: Any
    ) -> tuple[Json, list[Json], Any]:
        """The message of an answer, streamed and whole; the events of the stream; the engine's job."""
        usage = {"input_tokens": 9, "cached_tokens": 4, "output_tokens": 7, "reasoning_tokens": 2}
        end = Finished(reason, **usage)  # type: ignore[arg-type]
        whole = asyncio.create_task(self.api.create(*asks, **fields))
        (await self.engine.next()).emit(*deltas, end)
        stream = asyncio.create_task(self.api.stream(*asks, **fields))
        performance = await self.engine.next()
        performance.emit(*deltas, end)
        message, events = await whole, await stream
        streamed = messages_wire.message_of(json.loads(json.dumps(events)))
        assert streamed["usage"] == message["usage"]
        assert _without_seals(streamed) == _without_seals(message)
        return message, events, performance.job


def _without_seals(message: Json) -> Json:
    content = [{**block, "signature": bool(block.get("signature"))} for block in message["content"]]
    return {**message, "id": "", "content": [{**block, "id": ""} for block in content]}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    engine = PuppetEngine()
    async with serve(engine) as server:
        yield Stage(engine, MessagesApi(server))


async def test_an_answer(stage: Stage) -> None:
    message, events, job = await stage.play(Text("Hel"), Text("lo"))
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["id"].startswith("msg_")
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert job.settings.effort == "none"
    assert job.settings.max_output_tokens == 1000


async def test_usage_counts_each_token_of_the_prompt_once(stage: Stage) -> None:
    message, *_ = await stage.play(Text("x"))
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (5, 4)
    assert (usage["cache_creation_input_tokens"], usage["output_tokens"]) == (0, 7)
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}


async def test_thoughts_texts_and_calls(stage: Stage) -> None:
    message, _, job = await stage.play(
        Thought("hm"), Thought(" so"), Text("I look"), *CALL, *CALL, tools=[TOOL], thinking=THINKING
    )
    thought, text, *calls = message["content"]
    assert (thought["thinking"], text["text"]) == ("hm so", "I look")
    assert thought["signature"].startswith("slr1.")
    assert [call["input"] for call in calls] == [{"city": "Rome"}] * 2
    assert message["stop_reason"] == "tool_use"
    assert job.settings.effort == "low"


async def test_thoughts_are_shown_only_if_asked_for(stage: Stage) -> None:
    message, *_ = await stage.play(Thought("hm"), Text("x"))
    assert [block["type"] for block in message["content"]] == ["text"]
    message, *_ = await stage.play(Thought("hm"), Text("x"), thinking={"type": "disabled"})
    assert [block["type"] for block in message["content"]] == ["text"]
    message, *_ = await stage.play(
        Thought("hm"), Text("x"), thinking={"type": "adaptive", "display": "omitted"}
    )
    thought, _ = message["content"]
    assert thought["thinking"] == ""
    assert thought["signature"].startswith("slr1.")


async def test_summaries_are_thoughts_if_there_is_nothing_else(stage: Stage) -> None:
    summary = (ThoughtSummary("a"), ThoughtSummary("b", 1), Text("x"))
    message, *_ = await stage.play(*summary, thinking=THINKING)
    assert message["content"][0]["thinking"] == "a\n\nb"
    message, *_ = await stage.play(Thought("t"), *summary, thinking=THINKING)
    assert message["content"][0]["thinking"] == "t"


async def test_why_an_answer_ended(stage: Stage) -> None:
    async def reason(*deltas: Delta, **fields: Any) -> tuple[str, str | None]:
        message, *_ = await stage.play(*deltas, **fields)
        return message["stop_reason"], message["stop_sequence"]

    assert await reason(Text("x"), reason="max_output_tokens", max_tokens=7) == ("max_tokens", None)
    window = ("model_context_window_exceeded", None)
    assert await reason(Text("x"), reason="max_output_tokens", max_tokens=8) == window
    assert await reason(Text("x"), reason="content_filter") == ("refusal", None)
    assert await reason(RefusalText("I will not")) == ("refusal", None)
    assert await reason(Text("a STOP b"), stop_sequences=["STOP"]) == ("stop_sequence", "STOP")
    cut = (CallStarted("function", "get_weather"), CallArguments('{"city": '))
    ended = await reason(*cut, reason="max_output_tokens", max_tokens=7, tools=[TOOL])
    assert ended == ("max_tokens", None)


async def test_context_edits_that_change_nothing_are_confirmed(stage: Stage) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    message, *_ = await stage.play(Text("x"), context_management=edits)
    assert message["context_management"] == {"applied_edits": []}


async def test_a_prompt_can_be_prepared_without_an_answer(stage: Stage) -> None:
    message, _, job = await stage.play(max_tokens=0)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")
    assert job.generate is False


async def test_a_thought_comes_back_as_it_was_sealed(stage: Stage) -> None:
    message, *_ = await stage.play(Thought("secret plan"), *CALL, tools=[TOOL], thinking=THINKING)
    thought, call = message["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}

    async def read(block: Json) -> Any:
        asks = ("hi", {"role": "assistant", "content": [block, call]}, {"role": "user", "content": [result]})
        *_, job = await stage.play(Text("x"), asks=asks, tools=[TOOL], thinking=THINKING)
        return next(item.body().thought for item in job.context() if item.type == "reasoning")

    assert await read(thought) == "secret plan"
    assert await read({**thought, "thinking": "edited"}) == "secret plan"
    damaged = thought["signature"][:-6] + "AAAAAA"
    assert await read({**thought, "signature": damaged, "thinking": "edited"}) == "edited"
    assert (
        await read({**thought, "signature": "EuYBCkQYAiJA", "thinking": "of another model"})
        == "of another model"
    )


async def test_an_engine_that_fails(stage: Stage) -> None:
    async def failed(error: Exception, *before: Delta) -> Json:
        stream = asyncio.create_task(stage.api.stream("hi"))
        performance = await stage.engine.next()
        performance.emit(*before)
        performance.fail(error)
        *_, last = await stream
        assert last["type"] == "error"
        assert last["request_id"] == stage.api.received["request-id"]
        return last["error"]

    error = await failed(ServerError("out of memory"), Text("x"))
    assert error == {"type": "api_error", "message": "out of memory"}
    assert (await failed(Unavailable("down"), Text("x")))["type"] == "overloaded_error"
    assert (await failed(RateLimited("slow down"), Thought("x")))["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (Unavailable("down", retry_after_s=2.5), 529, "overloaded_error", "down"),
        (RateLimited("slow down", retry_after_s=2.5), 429, "rate_limit_error", "slow down"),
        (ServerError("bad"), 500, "api_error", "bad"),
        (
            ContextLengthExceeded(20, 10),
            400,
            "invalid_request_error",
            "prompt is too long: 20 tokens > 10 maximum",
        ),
    ],
)
async def test_an_engine_that_refuses(error: Any, status: int, kind: str, message: str) -> None:
    engine = PuppetEngine()
    engine.accepts = False
    async with serve(engine) as server:
        api = MessagesApi(server)
        refused = asyncio.create_task(api.refused("hi"))
        for _ in range(2):
            (await engine.next()).fail(error)
        refusal = await refused
    assert (refusal.status, refusal.kind, refusal.message) == (status, kind, message)
    assert refusal.headers.get("retry-after") == ("3" if status in (429, 529) else None)


BAD: list[tuple[Json, str]] = [
    ({"max_tokens": None}, "max_tokens: "),
    ({"max_tokens": -1}, "max_tokens: "),
    ({"messages": None}, "messages: "),
    ({"messages": []}, "messages: at least one message is required"),
    ({"messages": [{"role": "user", "content": [{"type": "foo"}]}]}, "messages.0.content.0.type: "),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0: "),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages.0.content.0.text: Field required",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "z"}]}]},
        "messages.0.content.0.tool_use_id: no `tool_use` before this `tool_result` has the id 'z'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, PNG]}]},
        "messages.0.content.1: This model takes text only",
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 1}}, "thinking.budget_tokens: "),
    ({"thinking": {"type": "sometimes"}}, "thinking.type: "),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema: Field required"),
    ({"tools": [{"input_schema": {}}]}, "tools.0.name: Field required"),
    ({"tools": [TOOL, {"name": "f", "input_schema": 1}]}, "tools.1.input_schema: "),
    ({"tools": [TOOL, TOOL]}, "tools: two tools are named 'get_weather'"),
    (
        {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
        "tools.0.type: this server does not have",
    ),
    ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "tool_choice: "),
    (
        {"tool_choice": {"type": "tool", "name": "stop"}, "tools": [TOOL]},
        "tool_choice: Tool choice 'stop' not found",
    ),
    ({"tool_choice": {"type": "any"}}, "tool_choice: "),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences: "),
    ({"stop_sequences": "x"}, "stop_sequences: "),
    ({"temperature": 2}, "temperature: "),
    ({"container": "c"}, "container: not supported"),
    ({"thread": {"type": "create"}}, "thread: not supported"),
    ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget: "),
    ({"output_config": {"format": {"type": "json_schema", "schema": 1}}}, "output_config.format.schema: "),
    ({"output_format": {"type": "json_schema", "schema": 1}}, "output_format.schema: "),
    (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits.0.type: 'clear_tool_uses_20250919' is not supported",
    ),
    (
        {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
        "context_management.edits.0.keep: ",
    ),
    ({"mcp_servers": [{"type": "url", "name": "a b", "url": "https://a"}]}, "mcp_servers.0.name: "),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
async def test_bad_requests_are_refused_by_the_clients_own_fields(
    stage: Stage, fields: Json, message: str
) -> None:
    refusal = await stage.api.refused("hi", **fields)
    assert (refusal.status, refusal.kind) == (400, "invalid_request_error")
    assert refusal.message.startswith(message), refusal.message


async def test_errors_that_come_before_the_endpoint() -> None:
    async with serve(FAST, api_key=["a-key"], limits=Limits(max_frame_bytes=4096)) as server:
        api = MessagesApi(server, "a-key")
        assert (await api.create("hi"))["role"] == "assistant"
        wrong = await MessagesApi(server, "another").refused("hi")
        assert (wrong.status, wrong.kind) == (401, "authentication_error")
        unknown = await api.refused("hi", model="other")
        assert (unknown.status, unknown.kind) == (404, "not_found_error")
        large = await api.refused("x" * 10_000)
        assert (large.status, large.kind) == (413, "request_too_large")
        for method, path, status in (("GET", "/messages", 405), ("POST", "/messages/batches", 404)):
            with pytest.raises(Refused) as refusal:
                await api.call(method, path, {})
            assert refusal.value.status == status
        with pytest.raises(Refused) as refusal:
            await api.call("POST", "/messages", data=b"{")
        assert refusal.value.message.startswith("The request is not valid JSON")
        api.headers = {"Authorization": "Bearer a-key"}
        assert (await api.create("hi"))["role"] == "assistant"


async def test_errors_of_other_apis_keep_their_shape_whatever_headers_a_client_sends() -> None:
    async with serve(FAST, api_key=["a-key"]) as server:
        for key, status in (("another", 401), ("a-key", 400)):
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
            for path in ("/responses", "/chat/completions"):
                async with server.http.post(f"{server.url}{path}", json={}, headers=headers) as answer:
                    assert answer.status == status
                    wire.check_http_error(await answer.json())
                    assert "request-id" not in answer.headers


async def test_tokens_are_counted(stage: Stage) -> None:
    stage.engine.tokens = 12
    assert await stage.api.count("hi", tools=[TOOL], system="Be kind") == 12


async def test_models_in_the_shape_of_the_api() -> None:
    async with serve(FAST) as server:
        api = MessagesApi(server)
        page = messages_wire.check_models(json.loads(await api.call("GET", "/models")))
        (model,) = page["data"]
        assert (model["id"], page["has_more"]) == ("simulated", False)
        assert json.loads(await api.call("GET", "/models/simulated")) == model
        with pytest.raises(Refused) as refusal:
            await api.call("GET", "/models/other")
        assert refusal.value.kind == "not_found_error"
        with pytest.raises(Refused) as refusal:
            await api.call("GET", "/models?limit=0")
        assert refusal.value.message.startswith("limit: ")
        async with server.http.get(f"{server.url}/models") as answer:
            assert (await answer.json())["object"] == "list"


async def test_a_client_can_ask_whether_there_is_a_server() -> None:
    async with serve(FAST) as server:
        root = server.url.removesuffix("/v1")
        async with server.http.head(f"{root}/") as answer:
            assert answer.status == 200
        async with server.http.get(f"{root}/") as answer:
            assert answer.status == 404


async def test_settings_reach_the_engine() -> None:
    engine = PuppetEngine(Capabilities(images=True))
    async with serve(engine) as server:
        stage = Stage(engine, MessagesApi(server))
        system = [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1\nkept"},
            {"type": "text", "text": "B"},
        ]
        choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
        asks = ({"role": "user", "content": [{"type": "text", "text": "see"}, PNG]},)
        *_, job = await stage.play(
            *CALL,
            asks=asks,
            system=system,
            tools=[TOOL],
            tool_choice=choice,
            thinking={"type": "adaptive"},
            output_config={"effort": "high"},
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            metadata={"user_id": "u"},
            service_tier="auto",
        )
    assert job.head.instructions == "kept\n\nB"
    settings = job.settings
    assert (settings.temperature, settings.top_p, settings.top_k, settings.effort) == (0.5, 0.9, 5, "high")
    assert settings.parallel_tool_calls is False
    assert (job.offer.required, [tool.name for tool in job.offer.tools]) == (True, ["get_weather"])
