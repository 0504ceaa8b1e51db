"""Sessions of the vllm engine: slipring in front of its real plugin, which runs on a scripted engine.

The engine accepts only whole ChatML contexts, and ``fake.prompts`` are whole: what a session holds is
included. Where a prompt must be a certain one, the same turns without sessions say which.
"""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.engines.tokens import sessions
from slipring.engines.tokens.vllm import VllmEngine
from tests.engines.chains import turns, whole_prompts
from tests.engines.fakes.server import Call, Refuse, Say, Stall, Stop, in_front_of
from tests.engines.fakes.tokens import TOKENIZER, decoded
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions, session_of
from tests.engines.test_contract import text_of
from tests.engines.test_prefill import LOG, output, prefilled, stream
from tests.harness import WEATHER, Running, Socket

pytestmark = pytest.mark.usefixtures("compiled_here")

LENIENT = {**WEATHER, "strict": False}
"""A strict tool constrains every answer."""


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[FakeVllmWithSessions, Running]]:
    async with in_front_of(FakeVllmWithSessions(), **options) as (fake, server):
        yield fake, server


async def test_turns_of_a_chain_send_their_new_ids_only() -> None:
    inputs = ["one", "two", "three", "four"]
    async with running() as (fake, server), server.connect() as socket:
        responses = await turns(socket, *inputs)
        assert [decoded(prompt) for prompt in fake.prompts] == await whole_prompts(FakeVllm(), *inputs)
        first, second, third, fourth = fake.requests
        # The first turn may be the only one. The second opens the session, the others append.
        assert session_of(first) is None
        assert session_of(second) == session_of(third) == session_of(fourth) is not None
        assert second["prompt"] == fake.prompts[1]
        assert second["held"] == 0
        # The id that ended an answer is sent again, because the engine drops it.
        new = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        assert [decoded(each["prompt"]) for each in (third, fourth)] == [
            new.format("three"),
            new.format("four"),
        ]
        usage = responses[3]["usage"]
        assert usage["input_tokens"] == len(fake.prompts[3])
        assert usage["input_tokens_details"]["cached_tokens"] == fourth["held"]
        assert third["sampling"]["detokenize"] is False
        assert "seed" not in third["sampling"]


async def test_a_session_is_opened_for_the_adapter_that_is_served() -> None:
    fake = FakeVllmWithSessions()
    fake.has_adapter = True
    async with in_front_of(fake, model="poet") as (_, server), server.connect() as socket:
        await turns(socket, "one", "two", "three")
        assert [each["model"] for each in fake.requests] == ["poet"] * 3
        assert session_of(fake.requests[2]) is not None


async def test_answers_that_a_limit_ends_are_continued() -> None:
    cut = (Say(("one", " two")), Stop("length"))
    async with running() as (fake, server), server.connect() as socket:
        for _ in range(4):
            fake.script(*cut)
        await turns(socket, "a", "b", "c", "d")
        assert [decoded(prompt) for prompt in fake.prompts] == await whole_prompts(
            FakeVllm(), "a", "b", "c", "d", scripts=[cut] * 4
        )
        # The last id of the answer was dropped, so it is sent again.
        assert decoded(fake.requests[2]["prompt"]).startswith(" two<|im_end|>\n")


async def test_calls_and_outputs_are_appended() -> None:
    call = (Call("get_weather", '{"city": "Rome"}'), Stop())
    async with running() as (fake, server), server.connect() as socket:
        said: Any = "Rome?"
        after = None
        for _ in range(4):
            fake.script(*call)
            (response,) = await turns(socket, said, after=after, tools=[LENIENT])
            after = response["id"]
            said = output(response["output"][0]["call_id"], "sunny")
        assert [session_of(each) is None for each in fake.requests] == [True, False, False, False]
        assert all(len(each["prompt"]) < 60 for each in fake.requests[2:])


async def test_warmups_leave_nothing_of_their_own_in_a_session() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        (warm,) = await turns(socket, "three", after=two["id"], generate=False)
        await turns(socket, "four", after=warm["id"])
        warmup, last = fake.requests[2:]
        assert session_of(warmup) == session_of(last) is not None
        assert warmup["sampling"]["max_tokens"] == 1
        assert decoded(fake.prompts[3]).count("user\nthree<|im_end|>\n<|im_start|>user\nfour") == 1


OWN: list[dict[str, Any]] = [
    {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    {"tools": [LENIENT], "tool_choice": "required"},
    {"tools": [WEATHER]},
]


class Unsettled(FakeVllmWithSessions):
    whole = "vLLM 9.9.9 was not tested with them"


async def owned(fake: FakeVllmWithSessions, socket: Socket, fields: dict[str, Any]) -> list[Any]:
    """A chain whose third turn has settings of its own, and whose fourth has not. Returns both responses."""
    shared: dict[str, Any] = {"tools": fields["tools"]} if "tools" in fields else {}
    if shared and "tool_choice" not in fields:
        shared["tool_choice"] = "none"
    _, two = await turns(socket, "one", "two", **shared)
    is_call = fields.get("tool_choice") == "required"
    fake.script(*((Call("get_weather", "{}"), Stop()) if is_call else (Say(("{}",)), Stop())))
    (three,) = await turns(socket, "three", after=two["id"], **fields)
    last = output(three["output"][0]["call_id"], "sunny") if is_call else "four"
    (four,) = await turns(socket, last, after=three["id"], **shared)
    return [three, four]


@pytest.mark.parametrize("fields", OWN)
async def test_turns_have_settings_of_their_own(fields: dict[str, Any]) -> None:
    async with running() as (fake, server), server.connect() as socket:
        three, four = await owned(fake, socket, fields)
        assert [session_of(each) is None for each in fake.requests] == [True, False, False, False]
        assert len({session_of(each) for each in fake.requests[1:]}) == 1
        own, next_one = (each["sampling"] for each in fake.requests[2:])
        if "include" in fields:
            assert own["logprobs"] == 1
            (first, *_) = three["output"][0]["content"][0]["logprobs"]
            assert (first["logprob"], [each["logprob"] for each in first["top_logprobs"]]) == (-1.0, [-0.5])
        else:
            assert own["structured_outputs"]
        assert not {"structured_outputs", "logprobs"} & next_one.keys()
        assert three["status"] == four["status"] == "completed"
        prompts = [decoded(prompt) for prompt in fake.prompts]
    async with in_front_of(FakeVllm()) as (plain, server), server.connect() as socket:
        await owned(plain, socket, fields)  # type: ignore[arg-type]
        assert [decoded(prompt) for prompt in plain.prompts] == prompts
        assert plain.requests[2].get("structured_outputs") == own.get("structured_outputs")


async def test_turns_with_a_format_share_a_session() -> None:
    """The format is part of the context: the chain has it from the beginning."""
    text = {"format": {"type": "json_object"}}
    async with running() as (fake, server), server.connect() as socket:
        for _ in range(4):
            fake.script(Say(("{}",)), Stop())
        await turns(socket, "one", "two", "three", "four", text=text)
        assert len({session_of(each) for each in fake.requests[1:]}) == 1
        assert all(each["sampling"]["structured_outputs"] for each in fake.requests[1:])


@pytest.mark.parametrize("fields", OWN)
async def test_what_a_session_cannot_do_is_sent_whole_beside_it(fields: dict[str, Any]) -> None:
    async with in_front_of(Unsettled()) as (fake, server), server.connect() as socket:
        await owned(fake, socket, fields)
        assert session_of(fake.requests[2]) is None
        assert list(fake.contexts) == [fake.opened[-1]]


@pytest.mark.parametrize(("kind", "is_inside"), [(FakeVllmWithSessions, True), (Unsettled, False)])
async def test_seeds_and_biases_are_those_of_their_turn(
    kind: type[FakeVllmWithSessions], is_inside: bool
) -> None:
    async with in_front_of(kind()) as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        (three,) = await turns(socket, "three", after=two["id"], seed=7)
        (warm,) = await turns(socket, "four", after=three["id"], seed=8, generate=False)
        await turns(socket, "five", after=warm["id"])
        own, warmup, last = fake.requests[2:]
        assert (session_of(own) is not None) is is_inside
        assert (own["sampling"] if is_inside else own)["seed"] == 7
        # A warmup samples nothing that stays.
        assert session_of(warmup) is not None
        assert "seed" not in warmup["sampling"]
        assert "seed" not in last["sampling"]


async def test_a_turn_that_adds_nothing_is_not_sent_empty() -> None:
    """An empty continuation ends the engine of some versions of vLLM."""
    async with running() as (fake, server), server.connect() as socket:
        fake.script(*(Say(("one",)), Stop()))
        fake.script(Stop())  # an answer without a token but the one that ends it
        _, two = await turns(socket, "one", "two")
        (warm,) = await turns(socket, [], after=two["id"], generate=False)
        (again,) = await turns(socket, [], after=warm["id"], generate=False)
        (three,) = await turns(socket, [], after=again["id"])
        assert three["status"] == "completed"
        assert any(map(session_of, fake.requests))
        assert all(each["prompt"] for each in fake.requests)


async def test_without_any_session_the_server_says_why() -> None:
    fake = FakeVllmWithSessions()
    fake.sessions.limits = type(fake.sessions.limits)(0, 0, "no sessions are opened, because of the weather")
    await fake.start()
    for choice, is_refused in (("auto", False), ("on", True)):
        engine = fake.engine(sessions=choice)
        try:
            if is_refused:
                with pytest.raises(StartupError, match="because of the weather"):
                    await engine.start()
            else:
                await engine.start()
                assert isinstance(engine, VllmEngine)
                assert engine.sessions is None
        finally:
            await engine.close()
    await fake.close()


async def test_other_instructions_are_another_context() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two", instructions="Be kind.")
        await turns(socket, "three", after=two["id"], instructions="Be brief.")
        assert decoded(fake.prompts[2]).startswith("<|im_start|>system\nBe brief.")
        assert fake.requests[2]["prompt"] == fake.prompts[2]
        assert session_of(fake.requests[2]) != session_of(fake.requests[1])


async def test_a_fork_leaves_its_parents_session_alone() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        await socket.response(input="aside", previous_response_id=two["id"], store=False, stream_id="b")
        await turns(socket, "three", after=two["id"])
        _, own, aside, three = map(session_of, fake.requests)
        assert own == three != aside
        assert "aside" not in decoded(fake.prompts[3])
        assert len(fake.requests[3]["prompt"]) < 20


async def test_a_session_ends_with_its_chain() -> None:
    async with running() as (fake, server):
        async with server.connect(headers={"OpenAI-Beta": "slipring_zero_retention=v1"}) as socket:
            await turns(socket, "one", "two", "three")
            assert fake.closed.empty()
        gc.collect()
        assert await fake.closed.get() == session_of(fake.requests[2])
        assert not len(fake.sessions)


async def test_a_session_that_the_server_has_lost_is_replaced() -> None:
    inputs = ["one", "two", "three", "four"]
    async with running() as (fake, server), server.connect() as socket:
        responses = await turns(socket, *inputs[:2])
        fake.sessions.end(fake.opened[0])  # as after a restart, or when it was idle for too long
        responses += await turns(socket, *inputs[2:], after=responses[-1]["id"])
        assert [text_of(each) for each in responses] == ["ok"] * 4
        assert [decoded(prompt) for prompt in fake.prompts] == await whole_prompts(FakeVllm(), *inputs)
        lost, whole, again = fake.requests[2:]
        assert session_of(lost) == session_of(fake.requests[1])
        assert session_of(whole) is None
        assert session_of(again) not in (None, session_of(lost))


async def test_an_engine_that_fails_before_the_first_token_is_asked_again_with_all_ids() -> None:
    async with running(retries=0) as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        fake.script(Refuse(500))
        (three,) = await turns(socket, "three", after=two["id"])
        assert text_of(three) == "ok"
        assert session_of(fake.requests[-1]) is None
        assert await fake.closed.get() == session_of(fake.requests[1])


async def test_a_client_that_leaves_ends_the_session_of_its_answer() -> None:
    async with running() as (fake, server):
        async with server.connect(abandoned=True) as socket:
            _, two = await turns(socket, "one", "two")
            fake.script(Say(("half",)), Stall())
            await socket.create(input="three", previous_response_id=two["id"], store=False)
            await fake.stalled.wait()
        assert await fake.closed.get() == session_of(fake.requests[2])
        assert not len(fake.sessions)


async def test_a_server_without_room_is_not_asked_every_turn() -> None:
    fake = FakeVllmWithSessions()
    async with in_front_of(fake) as (_, server), server.connect() as socket:
        fake.sessions.limits = type(fake.sessions.limits)(0, 0)  # of other slipring servers, say
        responses = await turns(socket, "one", "two", "three")
        assert [text_of(each) for each in responses] == ["ok"] * 3
        assert [session_of(each) is None for each in fake.requests] == [True, False, True, True]


async def test_sessions_take_no_more_than_the_plugin_allows() -> None:
    fake = FakeVllmWithSessions()
    fake.sessions.limits = type(fake.sessions.limits)(2, 100_000)
    async with in_front_of(fake) as (_, server), server.connect() as socket:
        for number in range(4):
            await turns(socket, f"chain {number}", "two")
        assert len(fake.opened) == 4
        assert list(fake.contexts) == fake.opened[-2:]


async def test_without_the_plugin_there_are_no_sessions() -> None:
    async with in_front_of(FakeVllm()) as (fake, server), server.connect() as socket:
        await turns(socket, "one", "two", "three")
        assert not any(map(session_of, fake.requests))


async def test_sessions_that_are_required_must_be_there() -> None:
    fake = FakeVllm()
    await fake.start()
    engine = fake.engine(sessions="on")
    try:
        with pytest.raises(StartupError, match="VLLM_PLUGINS=slipring_sessions"):
            await engine.start()
    finally:
        await engine.close()
        await fake.close()


def test_sessions_are_auto_on_or_off() -> None:
    with pytest.raises(StartupError, match="'sessions' must be auto, on or off, not 'yes'"):
        VllmEngine.from_options("http://127.0.0.1:1,sessions=yes")


# What sessions read ahead

HEADER = {"OpenAI-Beta": "slipring_tool_output=v1"}
CALL = (Call("get_weather", '{"city": "Rome"}'), Stop())


async def two_calls(fake: FakeVllm, socket: Socket) -> dict[str, Any]:
    """The second turn of a chain, which has opened a session and called a tool."""
    fake.script(*CALL)
    fake.script(*CALL)
    (first,) = await turns(socket, "Rome?", tools=[LENIENT])
    said = output(first["output"][0]["call_id"], "sunny")
    (second,) = await turns(socket, said, after=first["id"], tools=[LENIENT])
    return second


async def test_outputs_of_running_tools_are_read_in_the_session() -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        second = await two_calls(fake, socket)
        call_id = await stream(socket, server, second, LOG)
        ahead = fake.requests[2:]
        assert ahead
        assert {session_of(each) for each in ahead} == {session_of(fake.requests[1])}
        assert {each["sampling"]["max_tokens"] for each in ahead} == {1}
        await turns(socket, output(call_id, LOG), after=second["id"], tools=[LENIENT])
        last, whole = fake.requests[-1], len(TOKENIZER.encode(LOG))
        assert session_of(last) == session_of(fake.requests[1])
        assert len(last["prompt"]) < whole / 2
        assert sum(len(each["prompt"]) for each in ahead) > whole / 2
        assert decoded(fake.prompts[-1]).count(LOG.strip()) == 1


async def test_a_turn_gives_up_what_takes_too_long_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        second = await two_calls(fake, socket)
        fake.script(Stall())
        call = second["output"][0]["call_id"]
        piece = {"type": "response.tool_output.delta", "response_id": second["id"], "call_id": call}
        await socket.send(**piece, delta=LOG)
        await fake.stalled.wait()
        monkeypatch.setattr(sessions, "_PATIENCE_S", 0.01)
        (third,) = await turns(socket, output(call, LOG), after=second["id"], tools=[LENIENT])
        assert third["status"] == "completed"
        assert fake.requests[-1]["prompt"] == fake.prompts[-1]
        assert await fake.closed.get() == session_of(fake.requests[1])
        await prefilled(server)


async def test_a_session_has_the_priority_of_a_loop_that_runs() -> None:
    async with in_front_of(FakeVllmWithSessions(), priorities=True) as (fake, server):
        async with server.connect() as socket:
            await turns(socket, "one", "two")
        assert [request["priority"] for request in fake.requests] == [1, 0]


@pytest.mark.parametrize("options", [{}, {"kv_tokens": 4000}], ids=["unscheduled", "scheduled"])
@pytest.mark.parametrize("tools", [[], [LENIENT]], ids=["one context", "a rewritten one"])
async def test_a_client_that_leaves_leaves_no_session(options: dict[str, Any], tools: list[Any]) -> None:
    """Although its histories would still be recognised. Other tools begin another session, and the one before
    goes with the chain, too."""
    async with running(**options) as (fake, server):
        async with server.connect() as socket:
            *_, last = await turns(socket, "one", "two", "three")
            await turns(socket, "four", "five", after=last["id"], tools=tools)
            assert len(fake.opened) == (2 if tools else 1)
            assert fake.requests[2]["held"]
        assert {await fake.closed.get() for _ in fake.opened} == set(fake.opened)
        assert len(fake.sessions) == 0
