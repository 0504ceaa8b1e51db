"""Clients of the Messages API send their whole history with every turn, in spellings of their own: a turn
costs its delta, and the model reads the same."""

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.server import clock
from tests.engines.fakes.server import Call, Say, Stop, Think
from tests.engines.fakes.tokens import decoded
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import serve
from tests.messages_api import MessagesApi
from tests.messages_wire import Json
from tests.server.test_resent_chat import reports_of

pytestmark = pytest.mark.usefixtures("compiled_here")

OFF = Limits(recognised_s=0)
TOOL: Json = {"name": "look", "input_schema": {"type": "object"}}
CALLS = (Call("look", '{"city": "Rome"}'), Call("look", '{"city": "Bern"}'))
History = list[Json]


def as_emitted(history: History) -> History:
    return history


def with_other_ids(history: History) -> History:
    """As proxies do that make ids of their own."""
    found: History = json.loads(json.dumps(history).replace("toolu_", "tool-"))
    return found


def with_numbers_for_ids(history: History) -> History:
    """As clients do that number the calls of each message anew."""
    sent: History = json.loads(json.dumps(history))
    numbers: dict[str, str] = {}
    for message in sent:
        calls = [block for block in message["content"] if isinstance(block, dict) and "input" in block]
        for number, block in enumerate(calls):
            numbers[block["id"]] = block["id"] = str(number)
        for block in message["content"]:
            if isinstance(block, dict) and "tool_use_id" in block:
                block["tool_use_id"] = numbers[block["tool_use_id"]]
    return sent


def with_breakpoints(history: History) -> History:
    last = history[-1]
    content = last["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    marked = [*content[:-1], {**content[-1], "cache_control": {"type": "ephemeral"}}]
    return [*history[:-1], {**last, "content": marked}]


def one_result_a_message(history: History) -> History:
    return [piece for message in history for piece in _pieces(message)]


def _pieces(message: Json) -> list[Json]:
    if message["role"] == "assistant" or isinstance(message["content"], str):
        return [message]
    return [{**message, "content": [block]} for block in message["content"]]


SPELLINGS: list[Callable[[History], History]] = [
    as_emitted,
    with_other_ids,
    with_numbers_for_ids,
    with_breakpoints,
    one_result_a_message,
]


async def loop(api: MessagesApi, spelled: Callable[[History], History]) -> None:
    """Two turns with two calls each, and two with texts, each with the whole history."""
    history: History = [{"role": "user", "content": "hi"}]
    for turn in range(4):
        answer = await api.create(*spelled(history), tools=[TOOL])
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call, "content": f"{turn}.{number}"}
            for number, call in enumerate(calls)
        ]
        history += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": results or "and?"},
        ]


@pytest.mark.parametrize("spelled", SPELLINGS)
async def test_a_turn_costs_its_delta_and_the_model_reads_the_same(
    spelled: Callable[[History], History],
) -> None:
    prompts = []
    for limits in (Limits(), OFF):
        async with fake_vllm() as fake, serve(fake.engine(retries=0), limits=limits) as server:
            reports = reports_of(server)
            for steps in (CALLS, CALLS, (Say(("It", " is", " sunny.")),), (Say(("Cloudy.",)),)):
                fake.script(*steps, Stop())
            await loop(MessagesApi(server), spelled)
            # The model writes no line between two calls, and its template does.
            read = [decoded(request["prompt"]) for request in fake.requests]
            prompts.append(
                [text.replace("</tool_call>\n<tool_call>", "</tool_call><tool_call>") for text in read]
            )
            if limits is not OFF:
                assert [report.recognised_items or 0 for report in reports] == [0, 3, 7, 10]
                assert [report.input_items for report in reports] == [1, 5, 9, 11]
    assert prompts[0] == prompts[1]


async def agent(api: MessagesApi, history: History, turns: int, **fields: Any) -> None:
    """Turns with a call each, which are added to the history."""
    for _ in range(turns):
        answer = await api.create(*history, **fields)
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}
            for block in answer["content"]
        ]
        history += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]


async def test_side_requests_and_subagents_do_not_push_the_main_chain_out() -> None:
    main: History = [{"role": "user", "content": "hi"}]
    asked: Json = {"tools": [TOOL], "system": "main"}
    async with fake_vllm() as fake, serve(fake.engine(retries=0)) as server:
        reports, api = reports_of(server), MessagesApi(server)
        fake.script(CALLS[0], Stop())
        await agent(api, main, 1, **asked)
        for number in range(12):  # more than the heads that are known of a tenant
            fake.script(Say(("A", " title.")), Stop())
            await api.create(f"Name it {number}", system=f"title {number}")
            other = {**TOOL, "description": f"of subagent {number}"}
            for _ in range(3):
                fake.script(CALLS[1], Stop())
            # It begins with the same words as the main chain.
            await agent(api, [{"role": "user", "content": "hi"}], 3, tools=[other], system="sub")
        fake.script(CALLS[0], Stop())
        await agent(api, main, 1, **asked)
    assert (reports[-1].input_items, reports[-1].recognised_items) == (3, 2)
    assert reports[-1].tokens is not None
    assert reports[-1].tokens.rendered < 40


async def test_a_history_that_was_sent_before_counts_as_many_tokens() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    async with fake_vllm() as fake, serve(fake.engine(retries=0)) as server:
        api, history = MessagesApi(server), [{"role": "user", "content": "hi"}]
        fake.script(Think(("hm", " hm")), Say(("Rome",)), Stop())
        answer = await api.create(*history, thinking=thinking)
        assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
        history += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": "and?"},
        ]
        counted = await api.count(*history, thinking=thinking)
        fake.script(Say(("Bern",)), Stop())
        await api.create(*history, thinking=thinking)
        assert await api.count(*history, thinking=thinking) == counted


async def test_a_tool_that_a_search_has_found_costs_its_definition() -> None:
    """Clients that search add the tools that they have found to `tools`, with `defer_loading`."""
    later: Json = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    reserved: Json = {"name": "reserved", "input_schema": {"type": "object"}, "defer_loading": True}
    prompts = []
    for limits in (Limits(), OFF):
        async with fake_vllm() as fake, serve(fake.engine(retries=0), limits=limits) as server:
            reports, api = reports_of(server), MessagesApi(server)
            for step in (CALLS[0], Call("later", "{}"), Say(("Done.",))):
                fake.script(step, Stop())
            history: History = [{"role": "user", "content": "begin"}]
            tools = [TOOL, reserved]
            for found in ([{"type": "tool_reference", "tool_name": "later"}], "it ran"):
                answer = await api.create(*history, tools=tools)
                (use,) = answer["content"]
                result = {"type": "tool_result", "tool_use_id": use["id"], "content": found}
                history += [
                    {"role": "assistant", "content": answer["content"]},
                    {"role": "user", "content": [result]},
                ]
                tools = [TOOL, later, reserved]
            assert use["name"] == "later"
            await api.create(*history, tools=tools)
            prompts.append([decoded(request["prompt"]) for request in fake.requests])
            if limits is not OFF:
                # After the search: its call, its output and the tool. Then: the call and its output.
                assert [report.recognised_items or 0 for report in reports] == [0, 2, 5]
                assert [report.input_items for report in reports] == [1, 4, 6]
    assert prompts[0] == prompts[1]
    first, second, _ = prompts[0]
    assert "later" not in first
    assert second.startswith(first)
    assert "later" in second
    assert "reserved" not in second


async def test_a_main_chain_that_waits_for_long_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a subagent, or for its user: idle time alone does not make the server forget it."""
    main: History = [{"role": "user", "content": "hi"}]
    asked: Json = {"tools": [TOOL], "system": "main"}
    async with fake_vllm() as fake, serve(fake.engine(retries=0)) as server:
        reports, api, later_s = reports_of(server), MessagesApi(server), 0
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later_s))
        fake.script(CALLS[0], Stop())
        await agent(api, main, 1, **asked)
        for _ in range(12):
            later_s += 600
            fake.script(CALLS[1], Stop())
            await agent(api, [{"role": "user", "content": "sub"}], 1, tools=[TOOL], system="sub")
        fake.script(CALLS[0], Stop())
        await agent(api, main, 1, **asked)
        assert (reports[-1].input_items, reports[-1].recognised_items) == (3, 2)
        later_s += 86_400
        fake.script(CALLS[0], Stop())
        await agent(api, main, 1, **asked)
        assert (reports[-1].input_items, reports[-1].recognised_items or 0) == (5, 0)
