"""A history that is sent again continues what the engine holds of it, as ``previous_response_id`` does:
sessions of vLLM and SGLang, and slots of llama.cpp. By all three APIs."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.chat_api import Chat
from tests.engines.fakes.server import Call, Say, Stop, in_front_of
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer, decoded
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions
from tests.harness import Running, serve
from tests.messages_api import MessagesApi
from tests.model import SharedModel
from tests.server.test_resent_chat import reports_of

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
Turns = Callable[[Running, int], Awaitable[None]]
SCHEMA: Json = {"type": "object"}
CALL = Call("look", '{"city": "Rome"}')


class FakeSglangWithSessions(FakeSglang):
    has_sessions = True


async def by_responses(server: Running, count: int) -> None:
    history: list[Json] = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    for turn in range(count):
        _, response = await server.post(input=history, tools=tools, store=False)
        history += response["output"]
        history += [
            {"type": "function_call_output", "call_id": item["call_id"], "output": f"sunny {turn}"}
            for item in response["output"]
        ]


async def by_messages(server: Running, count: int) -> None:
    history: list[Json] = [{"role": "user", "content": "hi"}]
    for turn in range(count):
        answer = await MessagesApi(server).create(*history, tools=[{"name": "look", "input_schema": SCHEMA}])
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": f"sunny {turn}"}
            for block in answer["content"]
        ]
        history += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": results},
        ]


async def by_chat(server: Running, count: int) -> None:
    history: list[Json] = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    for turn in range(count):
        message = await Chat(server).message(*history, tools=tools)
        history.append(message)
        history += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"sunny {turn}"}
            for call in message["tool_calls"]
        ]


APIS = pytest.mark.parametrize("take_turns", [by_responses, by_messages, by_chat])


async def run(fake: FakeTokenServer, take_turns: Turns) -> list[str]:
    """Four turns with a call each; returns the prompts that the model has read."""
    async with in_front_of(fake) as (_, server):
        for _ in range(4):
            fake.script(CALL, Stop())
        await take_turns(server, 4)
        return [decoded(prompt) for prompt in fake.prompts]


def session_of(request: Json) -> str | None:
    found: str | None = request.get("session") or request.get("session_params", {}).get("id")
    return found


@APIS
@pytest.mark.parametrize(
    ("with_sessions", "without"), [(FakeVllmWithSessions, FakeVllm), (FakeSglangWithSessions, FakeSglang)]
)
async def test_a_session_is_appended(
    with_sessions: type[FakeTokenServer], without: type[FakeTokenServer], take_turns: Turns
) -> None:
    fake = with_sessions()
    assert await run(fake, take_turns) == await run(without(), take_turns)
    # The first turn may be the only one. The second opens the session, the others append.
    first, second, *later = map(session_of, fake.requests)
    assert first is None
    assert second is not None
    assert later == [second, second]
    for turn, request in enumerate(fake.requests[2:], 1):
        sent = decoded(request.get("prompt") or request["input_ids"])
        assert f"sunny {turn}" in sent
        assert "<tool_call>" not in sent
        assert f"sunny {turn - 1}" not in sent


async def test_a_session_whose_answer_its_client_has_changed_is_closed() -> None:
    tool = {"name": "look", "input_schema": SCHEMA}
    fake = FakeVllmWithSessions()
    async with in_front_of(fake) as (_, server):
        api, history = MessagesApi(server), [{"role": "user", "content": "hi"}]
        for turn in range(5):
            fake.script(CALL, Stop())
            answer = await api.create(*history, tools=[tool])
            (call,) = answer["content"]
            if turn == 2:  # as Claude Code adds defaults to the arguments of a call
                call["input"]["exact"] = False
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"sunny {turn}"}
            history += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        _, old, last, new, appended = map(session_of, fake.requests)
        assert old == last != new == appended
        assert await fake.closed.get() == old
        assert list(fake.contexts) == [new]
        assert '"exact"' in decoded(fake.prompts[4])


async def say_by_responses(server: Running, history: list[Json]) -> Json:
    _, response = await server.post(input=history, temperature=0, max_output_tokens=12, store=False)
    return {"role": "assistant", "content": response["output"][0]["content"][0]["text"]}


async def say_by_messages(server: Running, history: list[Json]) -> Json:
    answer = await MessagesApi(server).create(*history, temperature=0, max_tokens=12)
    return {"role": "assistant", "content": answer["content"]}


async def say_by_chat(server: Running, history: list[Json]) -> Json:
    return await Chat(server).message(*history, temperature=0, max_completion_tokens=12)


@pytest.mark.parametrize("say", [say_by_responses, say_by_messages, say_by_chat])
async def test_a_history_that_adds_nothing_is_not_sent_empty(
    say: Callable[[Running, list[Json]], Awaitable[Json]],
) -> None:
    """An empty continuation ends the engine of some versions of vLLM."""
    fake = FakeVllmWithSessions()
    async with in_front_of(fake) as (_, server):
        for _ in range(8):
            fake.script(Say(("one",)), Stop())
        history: list[Json] = [{"role": "user", "content": "hi"}]
        for _ in range(3):
            history += [await say(server, history), {"role": "user", "content": "Go on."}]
        await say(server, history)
        # Messages refuses a history that ends with an answer.
        answered = history if say is say_by_messages else history[:-1]
        for again in (history, answered, answered, history):
            await say(server, again)
        assert any(map(session_of, fake.requests))
        assert all(each["prompt"] for each in fake.requests)


@pytest.mark.parametrize("say", [say_by_responses, say_by_messages, say_by_chat])
async def test_a_slot_is_continued(
    tiny_model: SharedModel, say: Callable[[Running, list[Json]], Awaitable[Json]]
) -> None:
    engine = tiny_model.engine(slots=2, context=1024)
    async with serve(engine) as server:
        reports = reports_of(server)
        history: list[Json] = [{"role": "user", "content": "hi"}]
        for _ in range(4):
            history += [await say(server, history), {"role": "user", "content": "Go on."}]
        slots = [slot.tokens for slot in engine.status().slots]
    # All turns in one slot, and nothing was read twice but the last token of an answer.
    assert sorted(slots)[0] == 0
    counts = [report.tokens for report in reports]
    for before, after in pairwise(counts):
        assert after.cached >= before.input + before.output - 1
