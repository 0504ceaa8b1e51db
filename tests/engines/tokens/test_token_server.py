"""Real servers by token ids: what a stand-in cannot vouch for.

``SLIPRING_TEST_VLLM`` and ``SLIPRING_TEST_SGLANG`` hold what would stand behind ``vllm:`` and ``sglang:``, as
in ``http://127.0.0.1:8000,tokenizer=/models/qwen2.5-0.5b``. Run by ``make test-vllm``, ``make test-sglang``.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.engines.catalog import open_engine
from slipring.engines.tokens.sglang import SglangEngine
from slipring.engines.tokens.token_server import TokenServer
from slipring.protocol.tools.grammars_and_schemas import Grammar
from tests.engines.fitting import fits
from tests.engines.test_contract import text_of
from tests.harness import WEATHER, Running, Socket, serve
from tests.server.test_resent_sessions import say_by_chat, say_by_messages, say_by_responses

BLOCK = 128
"""Servers count what they found in blocks: vLLM 0.32 on a CPU in steps of 128 tokens."""
EVERY = pytest.mark.parametrize(
    "kind", [pytest.param("vllm", marks=pytest.mark.vllm), pytest.param("sglang", marks=pytest.mark.sglang)]
)
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24, "store": False}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
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
        asked = {**GREEDY, "max_output_tokens": 200, "tools": [WEATHER], "parallel_tool_calls": False}
        first = await socket.response(input="The weather in Rome?", tool_choice="required", **asked)
        (call,) = (item for item in first["output"] if item["type"] == "function_call")
        assert call["name"] == "get_weather"
        assert "city" in json.loads(call["arguments"])
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny, 21 degrees"}
        second = await socket.response(input=[output], previous_response_id=first["id"], **asked)
        assert text_of(second)


def strict(name: str, **properties: Any) -> dict[str, Any]:
    """A strict function with these required arguments."""
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    parameters = {**schema, "additionalProperties": False}
    return {"type": "function", "name": name, "parameters": parameters, "strict": True}


PAINT = strict(
    "paint", color={"enum": ["red", "blue"]}, coats={"type": "integer", "minimum": 1, "maximum": 3}
)
MOVE = strict("move", to={"enum": ["left", "right"]}, fast={"type": "boolean"})


def complete_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a response that was not cut off within one."""
    return [
        item
        for item in response["output"]
        if item["type"] == "function_call" and item["status"] == "completed"
    ]


def assert_strict(call: dict[str, Any]) -> None:
    """Check the arguments of a call of ``PAINT`` or ``MOVE``."""
    arguments = json.loads(call["arguments"])
    if call["name"] == "paint":
        assert arguments.keys() == {"color", "coats"}
        assert arguments["color"] in ("red", "blue")
        assert arguments["coats"] in (1, 2, 3)
    else:
        assert call["name"] == "move"
        assert arguments.keys() == {"to", "fast"}
        assert arguments["to"] in ("left", "right")
        assert isinstance(arguments["fast"], bool)


TOOLS: dict[str, Any] = {**GREEDY, "max_output_tokens": 300, "tools": [PAINT, MOVE]}
TASK = "Call paint with the color red and one coat, then move to the left, fast."


@EVERY
async def test_strict_calls_are_enforced_where_none_is_required(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        response = await socket.response(input=TASK, **TOOLS)
        calls = complete_calls(response)
        if not calls:
            pytest.skip("the model calls no tool by itself")
        for call in calls:
            assert_strict(call)


@EVERY
async def test_required_calls_are_strict_and_no_more_than_allowed(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        response = await socket.response(input=TASK, tool_choice="required", **TOOLS)
        assert response["status"] == "completed"
        calls = complete_calls(response)
        assert 1 <= len(calls) <= 16
        assert len(calls) == len(response["output"])
        for call in calls:
            assert_strict(call)


@EVERY
async def test_a_required_call_is_one_without_parallel_calls(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        asked = {**TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        response = await socket.response(input=TASK, **asked)
        (call,) = response["output"]
        assert_strict(call)


@EVERY
@pytest.mark.parametrize("name", ["paint", "move"])
async def test_a_named_tool_is_called(kind: str, name: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        choice = {"type": "function", "name": name}
        response = await socket.response(input="Do it.", tool_choice=choice, **TOOLS)
        calls = complete_calls(response)
        assert {call["name"] for call in calls} == {name}
        for call in calls:
            assert_strict(call)


@EVERY
async def test_a_loop_of_required_calls_goes_on(kind: str) -> None:
    async with running(kind) as server, server.connect() as socket:
        asked: dict[str, Any] = {**TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        response = await socket.response(input=TASK, **asked)
        for _ in range(3):
            (call,) = complete_calls(response)
            assert_strict(call)
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
            before = response["usage"]["total_tokens"]
            response = await socket.response(input=[output], previous_response_id=response["id"], **asked)
            assert response["usage"]["input_tokens"] > before


@EVERY
async def test_a_lark_grammar_is_kept(kind: str) -> None:
    definition = 'start: (DATE ": " /[a-z ]{1,20}/ "\\n"){1,2}\nDATE: /\\d{4}-\\d{2}/'
    format = {"type": "grammar", "syntax": "lark", "definition": definition}
    tool = {"type": "custom", "name": "diary", "format": format}
    async with running(kind) as server, server.connect() as socket:
        asked = {**GREEDY, "max_output_tokens": 200, "tools": [tool], "tool_choice": "required"}
        response = await socket.response(input="Write into the diary.", parallel_tool_calls=False, **asked)
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


# Sessions: SGLang must run with `--enable-streaming-session`, vLLM with `VLLM_PLUGINS=slipring_sessions`.


@asynccontextmanager
async def with_sessions(kind: str, **options: str) -> AsyncIterator[tuple[Running, TokenServer]]:
    """slipring in front of a server, with further options of the engine."""
    where = ",".join([os.environ.get(f"SLIPRING_TEST_{kind.upper()}", ""), *map("=".join, options.items())])
    engine = open_engine(f"{kind}:{where}")
    assert isinstance(engine, TokenServer)
    async with serve(engine) as server:
        if options.get("sessions") != "off" and engine.sessions is None:
            pytest.skip("the server has no sessions")
        yield server, engine


async def loop(socket: Socket, turns: int, warm: bool = False) -> list[str]:
    """The answers of a chain whose turns differ in length."""
    return [answer async for answer in each_answer(socket, turns, warm)]


async def each_answer(socket: Socket, turns: int, warm: bool = False) -> AsyncIterator[str]:
    after: dict[str, Any] = {}
    for turn in range(turns):
        said = f"Turn {turn}. " + "Some more words. " * (7 * turn)
        asked = {**GREEDY, "max_output_tokens": 16 + turn, **after}
        if warm and turn:
            warmed = await socket.response(**{**asked, "input": said, "generate": False})
            asked, said = {**asked, "previous_response_id": warmed["id"]}, "Now."
        response = await socket.response(**{**asked, "input": said})
        assert response["status"] != "failed", response["error"]
        yield text_of(response)
        after = {"previous_response_id": response["id"]}


@EVERY
@pytest.mark.parametrize("warm", [False, True])
async def test_a_session_answers_as_the_whole_prompt_does(kind: str, warm: bool) -> None:
    async with with_sessions(kind, sessions="off") as (server, _), server.connect() as socket:
        whole = await loop(socket, 5, warm)
    async with with_sessions(kind) as (server, engine), server.connect() as socket:
        assert await loop(socket, 5, warm) == whole
        assert engine.sessions is not None
        assert len(engine.sessions) == 1


@EVERY
async def test_a_session_that_the_server_has_closed_is_replaced(kind: str) -> None:
    async with with_sessions(kind, sessions="off") as (server, _), server.connect() as socket:
        whole = await loop(socket, 4)
    async with with_sessions(kind) as (server, engine), server.connect() as socket:
        assert engine.sessions is not None
        answers, closed = [], set()
        async for answer in each_answer(socket, 4):
            answers.append(answer)
            for session in set(engine.sessions._open) - closed:
                await engine.sessions._protocol.close(session, "")
                closed.add(session)
        assert answers == whole
        assert len(closed) > 1


@EVERY
async def test_a_session_goes_on_after_a_turn_that_it_cannot_answer(kind: str) -> None:
    asked = {**GREEDY, "text": {"format": {"type": "json_schema", "name": "x", "schema": CITY}}}
    answers = []
    for option in ("off", "auto"):
        async with with_sessions(kind, sessions=option) as (server, _), server.connect() as socket:
            after = {}
            for turn in range(5):
                fields = {**(asked if turn == 2 else GREEDY), **after}
                response = await socket.response(input=f"Turn {turn}.", **fields)
                answers.append(text_of(response))
                after = {"previous_response_id": response["id"]}
    assert answers[:5] == answers[5:]


@EVERY
async def test_forks_and_older_responses_do_not_disturb_a_session(kind: str) -> None:
    async with with_sessions(kind) as (server, engine), server.connect() as socket:
        asked = {**GREEDY, "store": True}
        first = await socket.response(input="One.", **asked)
        second = await socket.response(input="Two.", previous_response_id=first["id"], **asked)
        on = {"input": "Three.", "previous_response_id": second["id"], **asked}
        expected = text_of(await socket.response(**on, stream_id="fork"))
        assert text_of(await socket.response(**on)) == expected  # in the session
        assert text_of(await socket.response(**on)) == expected  # from an older response
        assert engine.sessions is not None
        assert len(engine.sessions) == 3


OWN: list[dict[str, Any]] = [
    {},
    {"tool_choice": "required"},
    {"tool_choice": "none", "seed": 7, "temperature": 1},
    {"tool_choice": {"type": "function", "name": "move"}},
    {"tool_choice": "none", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"tool_choice": "required", "seed": 8, "temperature": 1},
    {"tool_choice": "none"},
]
"""Settings of turns: strict tools constrain those that may call one."""


async def respected_by(engine: TokenServer) -> list[dict[str, Any]]:
    """The settings without seeds if the server ignores them, as SGLang does by default."""
    if not isinstance(engine, SglangEngine):
        return OWN
    has_seeds = (await engine._server_info()).get("enable_deterministic_inference") is True
    return [each for each in OWN if has_seeds or "seed" not in each]


async def strict_loop(socket: Socket, settings: list[dict[str, Any]]) -> AsyncIterator[list[Any]]:
    """Yields what each turn of a loop with strict tools has answered."""
    said: Any = "Move."
    after: dict[str, Any] = {}
    for own in settings:
        asked = {**GREEDY, "max_output_tokens": 60, "tools": [PAINT, MOVE], **own, **after}
        response = await socket.response(input=said, **asked)
        assert response["status"] != "failed", response["error"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "Done."} for call in calls
        ]
        said = [*results, {"role": "user", "content": "Go on."}]
        after = {"previous_response_id": response["id"]}
        logprobs = [
            [round(each["logprob"], 2) for each in part.get("logprobs", ())]
            for item in response["output"]
            for part in item.get("content", ())
        ]
        yield [text_of(response), [(call["name"], call["arguments"]) for call in calls], logprobs]


@EVERY
async def test_turns_with_settings_of_their_own_stay_in_a_session(kind: str) -> None:
    async with with_sessions(kind, sessions="off") as (server, engine), server.connect() as socket:
        settings = await respected_by(engine)
        whole = [answered async for answered in strict_loop(socket, settings)]
    async with with_sessions(kind) as (server, engine), server.connect() as socket:
        if engine.offer.whole:
            pytest.skip(engine.offer.whole)
        assert engine.sessions is not None
        used: list[set[str]] = []
        inside = []
        async for answered in strict_loop(socket, settings):
            inside.append(answered)
            used.append(set(engine.sessions._open))
        assert inside == whole
        assert used == [set(), *[used[-1]] * (len(settings) - 1)]
        assert len(used[-1]) == 1


@EVERY
@pytest.mark.parametrize("say", [say_by_responses, say_by_messages, say_by_chat])
async def test_a_history_that_is_sent_again_stays_in_a_session(
    kind: str, say: Callable[[Running, list[dict[str, Any]]], Awaitable[dict[str, Any]]]
) -> None:
    told: dict[str, list[dict[str, Any]]] = {}
    for option in ("off", "auto"):
        history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
        used: list[set[str]] = []
        async with with_sessions(kind, sessions=option) as (server, engine):
            for _ in range(4):
                history += [await say(server, history), {"role": "user", "content": "Go on."}]
                used.append(set() if engine.sessions is None else set(engine.sessions._open))
        told[option] = history
        assert [len(each) for each in used] == ([0, 1, 1, 1] if option == "auto" else [0] * 4)
        assert used[1] == used[3]
    assert told["off"] == told["auto"]
