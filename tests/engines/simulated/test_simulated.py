"""The simulated engine: options, text, JSON, tool calls, token counts, prefix cache, pace."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from msgspec import Raw, structs

from slipring.base.errors import StartupError, TooExpensive
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import Accepted, Begun, Delta, Finished, Job, Prefill, Settings, Text
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.simulated.engine import SimulatedEngine
from slipring.engines.simulated.options import SimulatedOptions, read_options
from slipring.protocol.items.items import user_message
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools.tool_choice import Offer
from tests.engines.emitting import deltas_of
from tests.engines.simulated.clock import Clock
from tests.harness import WEATHER, Socket, serve
from tests.pictures import PIXEL
from tests.prompts.test_rendering import after
from tests.prompts.vocabulary import item

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 10}},
        "required": ["a", "b"],
    },
}
SHELL = {"type": "custom", "name": "shell", "format": {"type": "text"}}
FILES = {"type": "namespace", "name": "files", "description": "Files", "tools": [ADD, SHELL]}


def make(**options: object) -> SimulatedEngine:
    return SimulatedEngine(SimulatedOptions(**{"tokens_per_s": 0, **options}))  # type: ignore[arg-type]


def job_for(engine: SimulatedEngine, text: str = "hello", **fields: Any) -> Job:
    return Job(
        response_id="resp_1",
        tenant="default",
        model=engine.models()[0],
        head=fields.pop("head", Head()),
        parent=None,
        input=(user_message(text),),
        offer=Offer(),
        settings=fields.pop("settings", Settings()),
        **fields,
    )


async def run(engine: SimulatedEngine, job: Job) -> tuple[list[Delta], Finished]:
    deltas = await deltas_of(engine, job)
    assert [type(delta) for delta in deltas[:2]] == [Accepted, Begun]
    deltas = deltas[2:]
    finished = deltas.pop()
    assert isinstance(finished, Finished)
    return deltas, finished


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


def calls(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"].endswith("_call")]


def answers(response: Json, output: str = "done") -> list[Json]:
    return [
        {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}
        for call in calls(response)
    ]


@pytest.fixture
async def socket(request: pytest.FixtureRequest) -> AsyncIterator[Socket]:
    """A socket to a server; ``options`` sets the options of its engine."""
    options = getattr(request, "param", "")
    async with serve(f"simulated:tokens_per_s=0,{options}") as server, server.connect() as socket:
        yield socket


def options(text: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("socket", [text], indirect=True, ids=[""])


# Options.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("tokens_per_s=50.5", {"tokens_per_s": 50.5}),
        ("ttft_ms=20", {"ttft_ms": 20.0}),
        ("prefill_tokens_per_s=1e4", {"prefill_tokens_per_s": 10_000.0}),
        ("prefix_cache=false", {"prefix_cache": False}),
        ("prefix_cache=true", {"prefix_cache": True}),
        ("output_tokens=0", {"output_tokens": 0}),
        ("tool_calls=7", {"tool_calls": 7}),
        ("parallel_calls=2", {"parallel_calls": 2}),
        ("script=a=b.jsonl", {"script": "a=b.jsonl"}),
        ("tokens_per_s=1,,tool_calls=2,", {"tokens_per_s": 1.0, "tool_calls": 2}),
    ],
)
def test_options_are_read(text: str, expected: Json) -> None:
    assert read_options(text) == dataclasses.replace(SimulatedOptions(), **expected)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("speed=1", "unknown option 'speed' (known: tokens_per_s, ttft_ms, "),
        ("tokens_per_s", "option 'tokens_per_s' needs a value, as in tokens_per_s=1"),
        ("tokens_per_s=fast", "option 'tokens_per_s' must be a number >= 0, not 'fast'"),
        ("tokens_per_s=-1", "option 'tokens_per_s' must be a number >= 0, not '-1'"),
        ("tokens_per_s=nan", "option 'tokens_per_s' must be a number >= 0, not 'nan'"),
        ("ttft_ms=inf", "option 'ttft_ms' must be a number >= 0, not 'inf'"),
        ("output_tokens=1.5", "option 'output_tokens' must be a number >= 0, not '1.5'"),
        ("prefix_cache=yes", "option 'prefix_cache' must be true or false, not 'yes'"),
        ("=1", "unknown option ''"),
    ],
)
def test_options_that_cannot_be_used_are_named(text: str, complaint: str) -> None:
    with pytest.raises(StartupError) as refused:
        read_options(text)
    assert str(refused.value).startswith(f"--engine simulated: {complaint}")
    assert "\n" not in str(refused.value)


# Text.


@pytest.mark.parametrize("tokens", [1, 5, 100])
async def test_an_answer_has_the_configured_length(tokens: int) -> None:
    deltas, finished = await run(engine := make(output_tokens=tokens), job_for(engine))
    assert len(deltas) == len(text_of(deltas).split()) == finished.output_tokens == tokens
    assert text_of(deltas).startswith("This")
    assert finished.reason == "stop"


async def test_an_answer_is_never_empty() -> None:
    deltas, finished = await run(engine := make(output_tokens=0), job_for(engine))
    assert (text_of(deltas), finished.output_tokens) == ("This", 1)


async def test_the_same_request_gets_the_same_answer() -> None:
    engine = make()
    assert text_of((await run(engine, job_for(engine)))[0]) == text_of(
        (await run(engine, job_for(engine)))[0]
    )


@pytest.mark.parametrize(
    ("limit", "tokens", "reason"),
    [
        (1, 1, "max_output_tokens"),
        (4, 4, "max_output_tokens"),
        (5, 5, "stop"),
        (6, 5, "stop"),
        (None, 5, "stop"),
    ],
)
async def test_max_output_tokens_is_obeyed(limit: int | None, tokens: int, reason: str) -> None:
    engine = make(output_tokens=5)
    _, finished = await run(engine, job_for(engine, settings=Settings(max_output_tokens=limit)))
    assert (finished.output_tokens, finished.reason) == (tokens, reason)


async def test_a_warmup_counts_and_emits_nothing() -> None:
    engine = make()
    deltas, finished = await run(engine, job_for(engine, generate=False))
    assert deltas == []
    assert (finished.output_tokens, finished.cached_tokens) == (0, 0)
    assert finished.input_tokens == (await run(engine, job_for(engine)))[1].input_tokens


async def test_images_and_files_are_accepted(socket: Socket) -> None:
    content = [
        {"type": "input_image", "image_url": PIXEL},
        {"type": "input_file", "file_id": "file_1"},
    ]
    assert (await socket.response(input=[{"role": "user", "content": content}]))["status"] == "completed"


@options("output_tokens=8")
async def test_a_json_schema_format_gets_a_document_that_fits(socket: Socket) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3},
            "age": {"type": "integer", "minimum": 18, "maximum": 20},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
            "mood": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["name", "age", "tags", "mood"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    response = await socket.response(input="who?", text=text)
    jsonschema.validate(json.loads(response["output"][0]["content"][0]["text"]), schema)
    assert response["usage"]["output_tokens"] == 8


REFUSED: list[tuple[Json, bool, str]] = [
    (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        False,
        "the simulated engine cannot use this schema: Unsatisfiable schema",
    ),
    (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        True,
        "the simulated engine finds no value for this schema: it is too large",
    ),
    ({"type": "object", "not": {}}, True, 'cannot use this schema: Unimplemented keys: ["not"].'),
]


@pytest.mark.parametrize(("schema", "strict", "complaint"), REFUSED)
async def test_a_schema_without_a_value_is_refused(
    socket: Socket, schema: Json, strict: bool, complaint: str
) -> None:
    format = {"type": "json_schema", "name": "none", "schema": schema, "strict": strict}
    refused = await socket.error(input="who?", text={"format": format})
    assert (refused["status"], refused["error"]["param"]) == (400, "text.format.schema")
    assert refused["error"]["message"].startswith("Invalid 'text.format.schema': ")
    assert complaint in refused["error"]["message"]


async def test_a_schema_that_is_too_expensive_is_refused_by_its_field() -> None:
    class Exhausted:
        async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
            raise TooExpensive("takes too long")

    engine = make()
    engine.compiler = Compiler(Exhausted())
    format = TextFormat("json_schema", Raw(b"{}"), b"{}")
    with pytest.raises(
        TooExpensive, match=r"^Invalid 'text\.format\.schema': it takes too long\.$"
    ) as refused:
        await run(engine, job_for(engine, settings=Settings(format=format)))
    assert refused.value.param == "text.format.schema"


async def test_parameters_without_a_value_are_refused(socket: Socket) -> None:
    tool = {**ADD, "parameters": {"type": "object", "not": {}}, "strict": True}
    refused = await socket.error(input="go", tools=[tool])
    assert (refused["status"], refused["error"]["param"]) == (400, "tools")
    assert refused["error"]["message"].startswith("Invalid 'tools': the parameters of 'add': ")


@options("tool_calls=1")
async def test_unsupported_keywords_of_a_tool_that_is_not_strict_are_ignored(socket: Socket) -> None:
    tool = {**ADD, "parameters": {**ADD["parameters"], "not": {"required": ["c"]}}}
    (call,) = calls(await socket.response(input="go", tools=[tool]))
    assert json.loads(call["arguments"]) == {"a": 1, "b": 21}


async def test_a_json_object_format_gets_an_object(socket: Socket) -> None:
    response = await socket.response(input="who?", text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(response["output"][0]["content"][0]["text"]), dict)


# Tools.


@options("tool_calls=2,output_tokens=30")
async def test_tools_are_called_until_the_context_has_enough_outputs(socket: Socket) -> None:
    response = await socket.response(input="go", tools=[ADD, WEATHER])
    for _ in range(2):
        (call,) = calls(response)
        assert call["name"] == "add"
        jsonschema.validate(json.loads(call["arguments"]), ADD["parameters"])
        assert response["usage"]["output_tokens"] == 30
        response = await socket.response(
            input=answers(response), previous_response_id=response["id"], tools=[ADD, WEATHER]
        )
    assert response["output"][0]["type"] == "message"


@options("tool_calls=0")
async def test_without_tool_calls_no_tool_is_called(socket: Socket) -> None:
    assert calls(await socket.response(input="go", tools=[ADD])) == []


@options("tool_calls=1")
async def test_tool_choice_none_prevents_calls(socket: Socket) -> None:
    assert calls(await socket.response(input="go", tools=[ADD], tool_choice="none")) == []


@options("tool_calls=0")
async def test_tool_choice_required_forces_a_call(socket: Socket) -> None:
    response = await socket.response(input="go", tools=[ADD], tool_choice="required")
    assert [call["name"] for call in calls(response)] == ["add"]


@options("tool_calls=0")
@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "get_weather"}, "get_weather"),
        ({"type": "custom", "name": "shell"}, "shell"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}, {"type": "function", "name": "add"}],
            },
            "get_weather",
        ),
    ],
)
async def test_a_named_tool_is_called(socket: Socket, choice: Json, name: str) -> None:
    response = await socket.response(input="go", tools=[ADD, WEATHER, SHELL], tool_choice=choice)
    assert [call["name"] for call in calls(response)] == [name]


@options("tool_calls=1")
async def test_only_allowed_tools_are_called(socket: Socket) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    response = await socket.response(input="go", tools=[ADD, WEATHER], tool_choice=choice)
    assert [call["name"] for call in calls(response)] == ["get_weather"]
    none = {"type": "allowed_tools", "mode": "auto", "tools": []}
    assert calls(await socket.response(input="go", tools=[ADD], tool_choice=none)) == []


@options("tool_calls=3,parallel_calls=2")
async def test_several_calls_are_made_if_allowed(socket: Socket) -> None:
    response = await socket.response(input="go", tools=[ADD])
    assert len(calls(response)) == 2
    assert len({call["call_id"] for call in calls(response)}) == 2
    response = await socket.response(
        input=answers(response), previous_response_id=response["id"], tools=[ADD]
    )
    assert len(calls(response)) == 1  # the third and last


@options("tool_calls=3,parallel_calls=2")
async def test_one_call_is_made_without_parallel_tool_calls(socket: Socket) -> None:
    response = await socket.response(input="go", tools=[ADD], parallel_tool_calls=False)
    assert len(calls(response)) == 1


@options("tool_calls=1,output_tokens=6")
async def test_a_custom_tool_gets_words(socket: Socket) -> None:
    (call,) = calls(await socket.response(input="go", tools=[SHELL]))
    assert (call["type"], call["name"]) == ("custom_tool_call", "shell")
    assert len(call["input"].split()) == 6


@options("tool_calls=1")
async def test_a_call_names_the_namespace_of_its_tool(socket: Socket) -> None:
    (call,) = calls(await socket.response(input="go", tools=[FILES]))
    assert (call["namespace"], call["name"]) == ("files", "add")


@options("tool_calls=1")
async def test_a_tool_without_parameters_gets_an_empty_object(socket: Socket) -> None:
    (call,) = calls(await socket.response(input="go", tools=[{"type": "function", "name": "now"}]))
    assert json.loads(call["arguments"]) == {}


@options("tool_calls=1,output_tokens=50")
async def test_a_truncated_call_is_incomplete(socket: Socket) -> None:
    response = await socket.response(input="go", tools=[ADD], max_output_tokens=3)
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 3)
    assert calls(response)[0]["status"] == "incomplete"


@options("tool_calls=1")
async def test_tools_of_an_additional_tools_item_are_called(socket: Socket) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [ADD]}
    response = await socket.response(input=[added, {"role": "user", "content": "go"}])
    assert [call["name"] for call in calls(response)] == ["add"]


# The prefix cache.


def cached(response: Json) -> int:
    count = response["usage"]["input_tokens_details"]["cached_tokens"]
    assert isinstance(count, int)
    return count


async def test_a_new_context_is_not_cached(socket: Socket) -> None:
    assert cached(await socket.response(input="hello")) == 0


async def test_a_continuation_has_all_but_the_new_items_cached(socket: Socket) -> None:
    first = await socket.response(input="a question")
    second = await socket.response(input="another", previous_response_id=first["id"])
    third = await socket.response(input="and one more", previous_response_id=second["id"])
    assert cached(second) > first["usage"]["input_tokens"]
    assert cached(third) > second["usage"]["input_tokens"]
    assert cached(third) < third["usage"]["input_tokens"]


@options("tool_calls=1")
async def test_a_history_that_is_sent_again_is_cached_like_a_continuation(socket: Socket) -> None:
    head = {"instructions": "Be brief.", "tools": [ADD]}
    question = {"role": "user", "content": "a question"}
    first = await socket.response(input=[question], **head)
    by_id = await socket.response(input=answers(first), previous_response_id=first["id"], **head)
    resent = await socket.response(input=[question, *first["output"], *answers(first)], **head)
    assert cached(by_id) > 0
    assert resent["usage"]["input_tokens"] == by_id["usage"]["input_tokens"]
    assert cached(resent) >= cached(by_id)


async def test_a_changed_last_message_leaves_the_prefix_cached(socket: Socket) -> None:
    shared = [{"role": "user", "content": "shared " * 50}]
    await socket.response(input=[*shared], generate=False)
    first = await socket.response(input=[*shared, {"role": "user", "content": "one"}])
    second = await socket.response(input=[*shared, {"role": "user", "content": "two"}])
    assert cached(first) == cached(second) > 50


async def test_a_warmup_fills_the_cache(socket: Socket) -> None:
    warm = await socket.response(input="a long story", generate=False)
    response = await socket.response(input="and?", previous_response_id=warm["id"])
    assert cached(warm) == 0
    assert cached(response) == warm["usage"]["input_tokens"]


@pytest.mark.parametrize("changed", [{"instructions": "Be long."}, {"tools": [WEATHER]}])
async def test_another_head_is_not_cached(socket: Socket, changed: Json) -> None:
    first = await socket.response(input="hello", instructions="Be brief.", tool_choice="none")
    head = {"instructions": "Be brief.", **changed}
    second = await socket.response(
        input="again", previous_response_id=first["id"], tool_choice="none", **head
    )
    assert cached(second) == 0
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


@options("prefix_cache=false")
async def test_the_prefix_cache_can_be_disabled(socket: Socket) -> None:
    first = await socket.response(input="hello")
    second = await socket.response(input="again", previous_response_id=first["id"])
    assert (cached(first), cached(second)) == (0, 0)


async def test_connections_share_the_prefix_cache() -> None:
    async with serve("simulated:tokens_per_s=0") as server:
        async with server.connect() as socket:
            await socket.response(input="hello", store=False)
        async with server.connect() as socket:
            assert cached(await socket.response(input="hello", store=False)) > 0


async def test_the_prefix_cache_evicts_the_least_recently_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.engines.simulated.prefix_cache._MAX_PREFIXES", 4)
    engine = make()
    found = []
    for text in ("one", "two", "one", "three", "one", "two"):
        _, finished = await run(engine, job_for(engine, text))
        found.append(finished.cached_tokens > 0)
    assert found == [False, False, True, False, True, False]


# Time.


async def duration_s(clock: Clock, engine: SimulatedEngine, job: Job) -> float:
    start = clock.now_s
    await run(engine, job)
    return clock.now_s - start


async def test_tokens_per_s_sets_the_duration_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(tokens_per_s=50, output_tokens=10)
    assert await duration_s(Clock(monkeypatch), engine, job_for(engine)) == pytest.approx(0.2)


async def test_a_rate_of_0_adds_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(tokens_per_s=0)
    assert await duration_s(Clock(monkeypatch), engine, job_for(engine)) == 0


async def test_ttft_ms_delays_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(ttft_ms=250)
    clock = Clock(monkeypatch)
    assert await duration_s(clock, engine, job_for(engine)) == pytest.approx(0.25)
    assert await duration_s(clock, engine, job_for(engine, generate=False)) == 0


async def test_only_uncached_tokens_are_prefilled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(prefill_tokens_per_s=100)
    clock = Clock(monkeypatch)
    job = job_for(engine, "x" * 400)
    first = await duration_s(clock, engine, job)
    assert first == pytest.approx((await run(engine, job))[1].input_tokens / 100)
    assert await duration_s(clock, engine, job) < first


async def test_a_prefill_keeps_nothing_of_the_context_that_it_has_read() -> None:
    engine, head = make(), Head(instructions="Be brief.")
    asked = job_for(engine, head=head)
    _, finished = await run(engine, asked)
    parent = after(asked, finished.position)
    output = item("function_call_output", call_id="c1", output="It is sunny.\n" * 20)
    job = structs.replace(asked, parent=parent, input=(output,))
    references = sys.getrefcount(head)
    assert await engine.prefill(Prefill(job, "output")) > finished.input_tokens
    assert sys.getrefcount(head) == references


async def test_a_cancelled_answer_stops() -> None:
    engine = make(tokens_per_s=1e-6)
    begun, emitted = asyncio.Event(), list[Delta]()

    def take(deltas: list[Delta]) -> None:
        emitted.extend(deltas)
        begun.set()

    running = asyncio.create_task(engine.generate(job_for(engine), take))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not engine.status().running
    assert [type(delta) for delta in emitted] == [Accepted, Begun]


async def test_a_waiting_answer_stops_when_its_client_disconnects() -> None:
    async with serve("simulated:ttft_ms=1e9") as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="hello")
            await socket.until("response.in_progress")
        await asyncio.wait_for(server.service.wait_until_idle(), 300)


@pytest.mark.parametrize("vocabulary", ["", ",vocabulary=smollm2"])
async def test_jobs_past_max_jobs_wait_and_past_max_waiting_are_refused(vocabulary: str) -> None:
    engine = f"simulated:tokens_per_s=0,output_tokens=4,max_jobs=1,max_waiting=1{vocabulary}"
    async with serve(engine) as running, running.connect() as first, running.connect() as second:
        (held,) = running.service.catalog.engines
        with held._queue.ticket("another tenant"):  # takes the only place
            await first.create(input="waits")
            await first.until("response.in_progress")
            assert (held.status().running, held.status().waiting) == (1, 1)
            refused = await second.error(input="is refused")
            assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
            assert refused["error"]["headers"] == {"retry-after": "1"}
        await first.until("response.completed")
        assert (held.status().running, held.status().waiting) == (0, 0)
