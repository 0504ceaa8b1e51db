"""Clients of the Chat Completions API send their whole history with every turn: each turn costs its delta."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.protocol.turn_report import TurnReport
from tests.chat_api import USER, Chat, Json, joined
from tests.engines.fakes.server import Call, Say, Stop, Think
from tests.engines.fakes.tokens import decoded
from tests.engines.fakes.vllm import fake_vllm
from tests.harness import Running, serve

pytestmark = pytest.mark.usefixtures("compiled_here")

ENGINE = "simulated:tokens_per_s=0,output_tokens=8,tool_calls=2,digest=true"
LOOK: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
OFF = Limits(recognised_s=0)
CALL = Call("look", '{"city": "Rome"}')


def as_emitted(message: Json) -> Json:
    return message


def with_other_ids(message: Json) -> Json:
    """As clients do that shorten ids to what another server accepts."""
    renamed = dict(message)
    if "tool_calls" in message:
        renamed["tool_calls"] = [{**call, "id": call["id"][-9:]} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        renamed["tool_call_id"] = message["tool_call_id"][-9:]
    return renamed


def without_ids(message: Json) -> Json:
    kept = {name: value for name, value in message.items() if name != "tool_call_id"}
    if "tool_calls" in message:
        kept["tool_calls"] = [{"function": call["function"]} for call in message["tool_calls"]]
    return kept


def without_nulls(message: Json) -> Json:
    return {name: value for name, value in message.items() if value not in (None, [])}


def with_empty_text(message: Json) -> Json:
    return {**message, "content": message["content"] or ""}


def in_parts(message: Json) -> Json:
    text = message["content"]
    return {**message, "content": [{"type": "text", "text": text}] if text else None}


def in_reverse(message: Json) -> Json:
    return dict(reversed(message.items()))


def with_arguments_written_anew(message: Json) -> Json:
    """As LangChain does, which keeps arguments as objects."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = json.dumps(json.loads(function["arguments"]), indent=1)
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls}


SPELLINGS: list[Callable[[Json], Json]] = [
    as_emitted,
    with_other_ids,
    without_ids,
    without_nulls,
    with_empty_text,
    in_parts,
    in_reverse,
]


def reports_of(server: Running) -> list[TurnReport]:
    """The reports of the turns that end from now on."""
    found: list[TurnReport] = []
    server.service.turn_observers.append(lambda turn: found.append(turn.report))
    return found


async def loop(
    server: Running, spelled: Callable[[Json], Json], *, streams: bool = False
) -> list[tuple[Any, int]]:
    """A tool loop of three turns and another question, each with the whole history. Returns what each says,
    and the tokens of its prompt."""
    chat, history, found = Chat(server), [USER], []
    for turn in range(4):
        sent = list(map(spelled, history))
        if streams:
            *chunks, last = await chat.stream(*sent, tools=[LOOK], stream_options={"include_usage": True})
            message, usage = joined(chunks), last["usage"]
            del message["finish_reason"]
        else:
            body = await chat.complete(*sent, tools=[LOOK])
            message, usage = body["choices"][0]["message"], body["usage"]
        calls = message.get("tool_calls") or []
        said = [call["function"]["arguments"] for call in calls] or message["content"]
        found.append((said, usage["prompt_tokens"]))
        history.append(message)
        history += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"sunny {turn}"} for call in calls
        ]
        if not calls:
            history.append({"role": "user", "content": "and tomorrow?"})
    return found


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("spelled", SPELLINGS)
async def test_a_turn_costs_its_delta_and_says_the_same(
    spelled: Callable[[Json], Json], streams: bool
) -> None:
    async with serve(ENGINE, limits=OFF) as server:
        plain = await loop(server, spelled, streams=streams)
    async with serve(ENGINE) as server:
        reports = reports_of(server)
        assert await loop(server, spelled, streams=streams) == plain
    assert [report.recognised_items or 0 for report in reports] == [0, 2, 4, 6]
    assert [report.input_items for report in reports] == [1, 3, 5, 7]


async def test_arguments_that_a_client_writes_anew_are_those_that_the_model_wrote() -> None:
    async with serve(ENGINE) as server:
        reports = reports_of(server)
        await loop(server, with_arguments_written_anew)
    assert [report.recognised_items or 0 for report in reports] == [0, 2, 4, 6]


async def test_a_history_is_recognised_however_it_is_spelled_this_time() -> None:
    async with serve(ENGINE) as server:
        chat, reports = Chat(server), reports_of(server)
        asked = await chat.message(tools=[LOOK])
        (call,) = asked["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        for spelled in SPELLINGS:
            await chat.complete(*map(spelled, (USER, asked, result)), tools=[in_reverse(LOOK)])
        assert [report.recognised_items for report in reports[1:]] == [2, *[3] * (len(SPELLINGS) - 1)]


async def test_a_client_that_drops_thoughts_continues_the_context_that_has_them() -> None:
    prompts = []
    for drops in (False, True):
        async with fake_vllm() as fake, serve(fake.engine(retries=0)) as server:
            chat, reports = Chat(server), reports_of(server)
            fake.script(Think(("hm", " hm")), Call("look", '{"city": "Rome"}'), Stop())
            fake.script(Say(("Sunny.",)), Stop())
            asked = await chat.message(tools=[LOOK])
            assert asked["reasoning_content"] == "hm hm"
            (call,) = asked["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
            if drops:
                del asked["reasoning_content"]
            assert (await chat.message(USER, asked, result, tools=[LOOK]))["content"] == "Sunny."
            assert reports[1].recognised_items == (2 if drops else 3)
            prompts.append(decoded(fake.requests[1]["prompt"]))
    assert prompts[0] == prompts[1]
    assert "hm hm" in prompts[0]


@pytest.mark.parametrize("spelled", SPELLINGS)
async def test_a_server_of_token_ids_gets_the_same_ids(spelled: Callable[[Json], Json]) -> None:
    prompts = []
    for limits in (Limits(), OFF):
        async with fake_vllm() as fake, serve(fake.engine(retries=0), limits=limits) as server:
            for step in (CALL, CALL, Say(("It", " is", " sunny.")), Say(("Cloudy.",))):
                fake.script(step, Stop())
            await loop(server, spelled)
            prompts.append([decoded(request["prompt"]) for request in fake.requests])
    assert prompts[0] == prompts[1]


async def test_tenants_do_not_recognise_each_others_histories() -> None:
    async with serve(ENGINE, api_key=("a:one", "b:two")) as server:
        reports = reports_of(server)
        for key in ("one", "two", "one"):
            await Chat(server, key).complete()
        assert [report.recognised_items or 0 for report in reports] == [0, 0, 1]


async def test_nothing_is_kept_for_a_client_that_wants_no_retention() -> None:
    async with serve(ENGINE) as server:
        chat = Chat(server)
        chat.headers["OpenAI-Beta"] = "slipring_zero_retention=v1"
        await chat.complete(tools=[LOOK])
        service = server.service
        assert len(service.known) == service.items.used_bytes == service.heads.used_bytes == 0


async def test_ids_of_calls_are_unique_though_those_of_the_context_are_numbers() -> None:
    async with serve(ENGINE) as server:
        chat = Chat(server)
        ids = {(await chat.message(tools=[LOOK]))["tool_calls"][0]["id"] for _ in range(3)}
        assert len(ids) == 3
        assert {call_id.rpartition("_")[2] for call_id in ids} == {"0"}
