"""Turns of the Messages API: recognised histories, hosted tools, safety checks, and clients that leave."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from slipring.config.tables import CheckEntry, McpRegistration
from slipring.core.generation import CallArguments, CallEnded, CallStarted
from slipring.core.limits import Limits
from slipring.server.observation.ended_turns import EndedTurn
from tests import messages_wire
from tests.engines.fakes.server import Call, Say, Stop
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import PuppetEngine, Running, serve
from tests.mcp.fakes import FakeServer, serving
from tests.messages_api import MessagesApi
from tests.messages_api import Refused as Refusal
from tests.messages_wire import Json
from tests.server.hosted_tools.test_builtin_tools import SEARCH, answering

pytestmark = pytest.mark.usefixtures("compiled_here")

TOOL: Json = {"name": "get_weather", "input_schema": {"type": "object"}}
THINKING: Json = {"type": "adaptive"}
BILLING = "x-anthropic-billing-header: cch={};"


def scripted(directory: Path, *answers: list[Json]) -> str:
    path = directory / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, answers)))
    return f"simulated:tokens_per_s=0,script={path}"


def step(number: int) -> list[Json]:
    call = {"name": "get_weather", "arguments": f'{{"day": {number}.0, "city": "Rome"}}'}
    return [{"reasoning": f"Day {number}."}, {"text": f"I look at day {number}."}, {"function_call": call}]


def observed(server: Running) -> list[tuple[int, int]]:
    """Of all turns that end from now on: how many items they had, and how many of them were recognised."""
    found: list[tuple[int, int]] = []

    def observe(turn: EndedTurn) -> None:
        items, recognised = turn.report.input_items, turn.report.recognised_items
        found.append((items or 0, recognised or 0))  # UNSET is false

    server.service.turn_observers.append(observe)
    return found


class Loop:
    """A client that sends its whole history, each time in another spelling, as Claude Code does."""

    def __init__(self, api: MessagesApi, *, drops: tuple[str, ...] = ()) -> None:
        self._api = api
        self._drops = drops
        self.history: list[Json] = [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}]
        self._turns = 0

    async def turn(self) -> Json:
        self._turns += 1
        messages = json.loads(json.dumps(self.history))
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        system = [BILLING.format(self._turns), "Be brief."]
        events = await self._api.stream(
            *messages,
            system=[{"type": "text", "text": words} for words in system],
            tools=[TOOL],
            thinking=THINKING,
        )
        message = messages_wire.message_of(events)
        kept = [block for block in message["content"] if block["type"] not in self._drops]
        # As a client in JavaScript writes numbers, in the order that it likes.
        for block in kept:
            if block["type"] == "tool_use":
                block["input"] = {"city": "Rome", "day": int(block["input"]["day"])}
        self.history.append({"role": "assistant", "content": kept})
        calls = [block for block in kept if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny", "is_error": False}
            for call in calls
        ]
        self.history.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
        return message


@pytest.mark.parametrize("drops", [(), ("thinking",)])
async def test_a_history_that_is_sent_again_costs_its_delta(tmp_path: Path, drops: tuple[str, ...]) -> None:
    engine = scripted(tmp_path, *map(step, range(4)), [{"text": "Done."}])
    async with serve(engine) as server:
        turns, loop = observed(server), Loop(MessagesApi(server), drops=drops)
        for _ in range(5):
            message = await loop.turn()
    assert message["stop_reason"] == "end_turn"
    new = 2  # the result and the text after it
    assert [items - recognised for items, recognised in turns] == [1, new, new, new, new]


async def test_thoughts_come_back_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'slipring.db'}"
    async with serve(scripted(tmp_path, step(0)), store=store) as server:
        loop = Loop(MessagesApi(server))
        await loop.turn()
    engine = PuppetEngine()
    async with serve(engine, store=store) as server:
        loop._api = MessagesApi(server)
        turn = asyncio.create_task(loop.turn())
        performance = await engine.next()
        performance.say("x")
        performance.finish()
        await turn
    (thought,) = [item for item in performance.job.context() if item.type == "reasoning"]
    assert thought.body().thought == "Day 0."


async def test_a_signature_of_another_tenant_is_not_opened(tmp_path: Path) -> None:
    engine = PuppetEngine()
    async with serve(engine, api_key=["one:key-1", "two:key-2"]) as server:
        first = MessagesApi(server, "key-1")
        sealed = server.service.seal.seal("one", ())
        block = {"type": "thinking", "thinking": "as written", "signature": sealed}
        asks = ("hi", {"role": "assistant", "content": [block]}, "go on")
        turn = asyncio.create_task(first.create(*asks, thinking=THINKING))
        performance = await engine.next()
        performance.finish()
        await turn
    (thought,) = [item for item in performance.job.context() if item.type == "reasoning"]
    assert thought.body().thought == "as written"


async def test_mcp_servers_of_a_request(tmp_path: Path) -> None:
    call = {"name": "add", "namespace": "fake", "arguments": {"a": 1, "b": 2}}
    loop: list[list[Json]] = [[{"text": "I add."}, {"function_call": call}], [{"text": "It is 3."}]]
    engine = scripted(tmp_path, *loop * 2, [{"text": "Yes."}])
    async with serving(FakeServer(modern=True)) as fake, serve(engine, mcp_urls="any") as server:
        api = MessagesApi(server)
        servers = [{"type": "url", "name": "fake", "url": fake.url}]
        message = await api.create("1 + 2?", mcp_servers=servers)
        streamed = messages_wire.message_of(await api.stream("1 + 2?", mcp_servers=servers))
        again = ({"role": "assistant", "content": message["content"]}, "Sure?")
        assert (await api.create("1 + 2?", *again, mcp_servers=servers))["content"][0]["text"] == "Yes."
    for each in (message, streamed):
        kinds = [block["type"] for block in each["content"]]
        assert kinds == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
        use = next(block for block in each["content"] if block["type"] == "mcp_tool_use")
        result = next(block for block in each["content"] if block.get("tool_use_id") == use["id"])
        assert (use["server_name"], use["input"]) == ("fake", {"a": 1, "b": 2})
        assert (result["is_error"], result["content"][0]["text"]) == (False, "3")
        assert each["stop_reason"] == "end_turn"


async def test_a_search_that_the_server_runs(tmp_path: Path) -> None:
    call = {"name": "web_search", "arguments": {"query": "rings"}}
    loop: list[list[Json]] = [[{"function_call": call}], [{"text": "Found it."}]]
    engine = scripted(tmp_path, *loop * 2, [{"text": "Yes."}])
    async with answering(engine, SEARCH) as (_, server):
        api = MessagesApi(server)
        tools = [{"type": "web_search_20250305", "name": "web_search"}]
        message = await api.create("look", tools=tools)
        streamed = messages_wire.message_of(await api.stream("look", tools=tools))
        again = ({"role": "assistant", "content": message["content"]}, "Sure?")
        await api.create("look", *again, tools=tools)
    for each in (message, streamed):
        use, result, text = each["content"]
        assert (use["name"], use["input"]) == ("web_search", {"query": "rings"})
        assert [page["url"] for page in result["content"]] == [
            "https://a.example/one",
            "https://b.example/two",
        ]
        assert text["text"] == "Found it."


def words(**fields: Any) -> CheckEntry:
    settings = json.dumps({"patterns": {"word": "xyzzy"}})
    return CheckEntry("words", "patterns", action="block", settings=settings, **fields)


TEXTS: list[tuple[str, Json]] = [
    ("a text", {"messages": [{"role": "user", "content": "xyzzy"}]}),
    ("system", {"system": [{"type": "text", "text": "xyzzy"}]}),
    (
        "a system message",
        {"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "xyzzy"}]},
    ),
    (
        "a document",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "document", "source": {"type": "text", "data": "xyzzy"}}],
                }
            ]
        },
    ),
    (
        "a result",
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "xyzzy"}],
                },
            ]
        },
    ),
    ("a tool", {"tools": [{**TOOL, "description": "xyzzy"}]}),
    ("a stop sequence", {"stop_sequences": ["xyzzy"]}),
]


@pytest.mark.parametrize("fields", [fields for _, fields in TEXTS], ids=[name for name, _ in TEXTS])
async def test_every_text_of_a_request_is_inspected(fields: Json) -> None:
    async with serve(checks=(words(before=True),)) as server:
        refusal = await MessagesApi(server).refused("hi", **fields)
    assert (refusal.status, refusal.kind) == (400, "invalid_request_error")
    assert "safety check 'words'" in refusal.message


async def test_an_answer_that_a_check_blocks_ends_as_the_api_has_it(tmp_path: Path) -> None:
    answer = [{"text": "Here it is: xyzzy. That was it."}]
    async with serve(scripted(tmp_path, answer, answer), checks=(words(),)) as server:
        api = MessagesApi(server)
        *_, last = await api.stream("hi")
        assert last["type"] == "error"
        with pytest.raises(Refusal) as refusal:
            await api.create("hi")
        assert refusal.value.status == 400


async def test_a_client_that_leaves_stops_the_engine() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        api = MessagesApi(server)
        body = api.body("hi", stream=True)
        async with server.http.post(f"{server.url}/messages", json=body, headers=api.headers) as answer:
            performance = await engine.next()
            performance.say("x")
            await answer.content.readuntil(b"content_block_delta")
            answer.close()
        await asyncio.wait_for(performance.stopped.wait(), 300)


async def test_silence_is_filled_with_pings() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(ping_interval_s=0.05)) as server:
        api = MessagesApi(server)
        body = api.body("hi", stream=True)
        async with server.http.post(f"{server.url}/messages", json=body, headers=api.headers) as answer:
            performance = await engine.next()
            performance.say("x")
            text = await answer.content.readuntil(b'{"type":"ping"}\n\n')
            performance.finish()
            text += await answer.content.read()
    messages_wire.read_events(text.decode())


async def test_a_model_of_token_ids_continues_its_context() -> None:
    async with fake_vllm() as fake, serve(fake.engine(retries=0)) as server:
        fake.script(Say(("I look.",)), Call("get_weather", '{"city": "Rome"}'), Stop())
        fake.script(Say(("Sunny.",)), Stop())
        turns = observed(server)
        api = MessagesApi(server)
        first = await api.create("Weather?", tools=[TOOL])
        (call,) = [block for block in first["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
        answers = {"role": "assistant", "content": first["content"]}
        await api.create("Weather?", answers, {"role": "user", "content": [result]}, tools=[TOOL])
    assert turns == [(1, 0), (4, 3)]


async def test_mcp_servers_that_the_operator_has_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be commands, which no request can name by a URL."""
    monkeypatch.setenv("STDIO_LOG", os.devnull)
    call = {"name": "echo", "namespace": "tools", "arguments": {"a": 1}}
    loop: list[list[Json]] = [[{"function_call": call}], [{"text": "Done."}]]
    engine = scripted(tmp_path, *loop * 2)
    command = (sys.executable, str(Path(__file__).parents[1] / "mcp" / "stdio_server.py"), "echo")
    toolset: Json = {"type": "mcp_toolset", "mcp_server_name": "tools"}
    only: Json = {"default_config": {"enabled": False}, "configs": {"echo": {"enabled": True}}}
    async with serve(engine, mcp=(McpRegistration("tools", command=command, env=("STDIO_LOG",)),)) as server:
        api = MessagesApi(server)
        for tool in (toolset, toolset | only):
            message = await api.create("Say it.", tools=[tool])
            use, result, text = message["content"]
            assert (use["type"], use["server_name"], use["input"]) == ("mcp_tool_use", "tools", {"a": 1})
            assert result["content"] == [{"type": "text", "text": '{"a": 1}'}]
            assert text["text"] == "Done."
        refusal = await api.refused("Say it.", tools=[TOOL, {**toolset, "mcp_server_name": "others"}])
        assert (refusal.status, refusal.kind) == (400, "invalid_request_error")
        assert refusal.message.startswith("tools.1.mcp_server_name: ")
        refusal = await api.refused("Say it.", tools=[{**toolset, "mcp_server_name": "no name"}])
        assert refusal.message.startswith("tools.0.mcp_server_name: ")


@pytest.mark.parametrize(
    ("pieces", "streamed", "whole"),
    [
        (('{"city": ', "Rome}"), {}, {}),
        (('{"a": 1, "b": "one', '\ntwo"}'), {"a": 1}, {}),
        (('{"a"', ": 1} or so", " it seems"), {"a": 1}, {"a": 1}),
        (("I think", " Rome"), {}, {}),
        ((), {}, {}),
    ],
)
async def test_arguments_that_are_no_json_do_not_break_a_client(
    pieces: tuple[str, ...], streamed: Json, whole: Json
) -> None:
    """A client parses them while they come: what cannot be parsed is not sent."""
    engine = PuppetEngine()
    async with serve(engine) as server:
        url = server.url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=url, api_key="test-key", max_retries=0) as client:
            ask: Any = {
                "model": "puppet",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "x"}],
                "tools": [TOOL],
            }

            async def stream() -> Any:
                async with client.messages.stream(**ask) as events:
                    return await events.get_final_message()

            for asked, expected in ((stream(), streamed), (client.messages.create(**ask), whole)):
                turn = asyncio.create_task(asked)
                performance = await engine.next()
                performance.emit(
                    CallStarted("function", "get_weather"), *map(CallArguments, pieces), CallEnded()
                )
                performance.finish()
                message = await turn
                assert [block.input for block in message.content] == [expected]
