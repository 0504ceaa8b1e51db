"""Streaming sessions of the sglang engine: what is sent, what the server holds, and when sessions end.

The fake accepts only whole ChatML contexts, and ``fake.prompts`` are whole: what a session holds is included.
Where a prompt must be a certain one, the same turns without sessions say which.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest
from aiohttp import web

from slipring.base.errors import StartupError
from slipring.engines.remote.retries_and_breaker import Admission
from slipring.engines.tokens import sessions
from slipring.engines.tokens.sessions import Sessions
from slipring.engines.tokens.sglang import SglangEngine
from tests.engines.chains import turns, whole_prompts
from tests.engines.fakes.server import Call, Garbage, HangUp, Ids, Refuse, Say, Stall, Step, Stop, in_front_of
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import TOKENIZER, decoded
from tests.engines.test_contract import text_of
from tests.engines.test_prefill import LOG, output, prefilled, stream
from tests.harness import WEATHER, Running, Socket, serve

pytestmark = pytest.mark.usefixtures("compiled_here")


class WithSessions(FakeSglang):
    has_sessions = True


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[WithSessions, Running]]:
    async with in_front_of(WithSessions(), **options) as (fake, server):
        yield fake, server


class Rest(asyncio.Event):
    """Holds back the rest of an answer, and tells when its beginning has been sent."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.begun.set()
        return await super().wait()


def session_of(request: dict[str, Any]) -> str | None:
    found: str | None = request.get("session_params", {}).get("id")
    return found


async def test_turns_of_a_chain_send_their_new_ids_only() -> None:
    inputs = ["one", "two", "three", "four"]
    async with running() as (fake, server), server.connect() as socket:
        await turns(socket, *inputs)
        assert [decoded(prompt) for prompt in fake.prompts] == await whole_prompts(FakeSglang(), *inputs)
        first, second, third, fourth = fake.requests
        # The first turn may be the only one. The second opens the session, the others append.
        assert session_of(first) is None
        assert session_of(second) == session_of(third) == session_of(fourth) is not None
        assert second["input_ids"] == fake.prompts[1]
        new = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        assert [decoded(each["input_ids"]) for each in (third, fourth)] == [
            new.format("three"),
            new.format("four"),
        ]
        (opened,) = fake.opened
        assert (opened["streaming"], opened["timeout"]) == (True, 600.0)


async def test_answers_that_end_without_a_stop_token_are_continued() -> None:
    cut = (Say(("one", " two")), Stop("length"))
    async with running() as (fake, server), server.connect() as socket:
        for _ in range(3):
            fake.script(*cut)
        await turns(socket, "a", "b", "c")
        assert [decoded(prompt) for prompt in fake.prompts] == await whole_prompts(
            FakeSglang(), "a", "b", "c", scripts=[cut] * 3
        )
        assert decoded(fake.requests[2]["input_ids"]).startswith("<|im_end|>\n")


async def test_calls_and_outputs_are_appended() -> None:
    call = (Call("get_weather", '{"city": "Rome"}'), Stop())
    async with running() as (fake, server), server.connect() as socket:
        said: Any = "Rome?"
        after = None
        for _ in range(4):
            fake.script(*call)
            (response,) = await turns(socket, said, after=after, tools=[WEATHER])
            after = response["id"]
            output = {"type": "function_call_output", "call_id": response["output"][0]["call_id"]}
            said = [{**output, "output": "sunny"}]
        assert [session_of(each) is None for each in fake.requests] == [True, False, False, False]
        assert all(len(each["input_ids"]) < 60 for each in fake.requests[2:])
        assert (
            decoded(fake.prompts[3]).count("<tool_call>") == decoded(fake.prompts[2]).count("<tool_call>") + 1
        )


async def test_warmups_leave_nothing_of_their_own_in_a_session() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        (warm,) = await turns(socket, "three", after=two["id"], generate=False)
        await turns(socket, "four", after=warm["id"])
        warmup, last = fake.requests[2:]
        assert session_of(warmup) == session_of(last) is not None
        assert warmup["sampling_params"]["max_new_tokens"] == 0
        assert decoded(fake.prompts[3]).count("user\nthree<|im_end|>\n<|im_start|>user\nfour") == 1


async def test_other_instructions_are_another_context() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two", instructions="Be kind.")
        await turns(socket, "three", after=two["id"], instructions="Be brief.")
        assert decoded(fake.prompts[2]).startswith("<|im_start|>system\nBe brief.")
        assert fake.requests[2]["input_ids"] == fake.prompts[2]
        assert session_of(fake.requests[2]) != session_of(fake.requests[1])


async def test_a_continuation_of_an_older_response_gets_a_session_of_its_own() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two, _ = await turns(socket, "one", "two", "three", store=True)
        (other,) = await turns(socket, "other", after=two["id"], store=True)
        await turns(socket, "more", after=other["id"], store=True)
        assert "three" not in decoded(fake.prompts[3])
        assert fake.requests[3]["input_ids"] == fake.prompts[3]
        first, second = session_of(fake.requests[2]), session_of(fake.requests[3])
        assert first != second
        assert session_of(fake.requests[4]) == second
        assert len(fake.requests[4]["input_ids"]) < 20


async def test_a_fork_leaves_its_parents_session_alone() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        await socket.response(input="aside", previous_response_id=two["id"], store=False, stream_id="b")
        await turns(socket, "three", after=two["id"])
        _, own, aside, three = map(session_of, fake.requests)
        assert own == three != aside
        assert "aside" not in decoded(fake.prompts[3])
        assert len(fake.requests[3]["input_ids"]) < 20


async def test_a_session_ends_with_its_chain() -> None:
    async with running() as (fake, server):
        # Without retention: otherwise the chain could be continued by a client that sends its items again.
        async with server.connect(headers={"OpenAI-Beta": "slipring_zero_retention=v1"}) as socket:
            await turns(socket, "one", "two", "three")
            assert fake.closed.empty()
        gc.collect()
        assert await fake.closed.get() == session_of(fake.requests[2])


async def test_all_sessions_end_with_the_engine() -> None:
    fake = WithSessions()
    await fake.start()
    try:
        async with serve(fake.engine()) as server, server.connect() as socket:
            await turns(socket, "one", "two")
            await turns(socket, "three", "four")
            assert len(fake.sessions) == 2
        assert not fake.sessions
    finally:
        await fake.close()


async def test_a_session_that_the_server_has_lost_is_replaced() -> None:
    inputs = ["one", "two", "three", "four"]
    async with running() as (fake, server), server.connect() as socket:
        responses = await turns(socket, *inputs[:2])
        fake.sessions.clear()  # as after a restart
        responses += await turns(socket, *inputs[2:], after=responses[-1]["id"])
        assert [text_of(each) for each in responses] == ["ok"] * 4
        assert [decoded(prompt) for prompt in fake.prompts] == await whole_prompts(FakeSglang(), *inputs)
        # Refused in the session, then sent whole; the next turn opens another session.
        lost, whole, again = fake.requests[2:]
        assert session_of(lost) == session_of(fake.requests[1])
        assert session_of(whole) is None
        assert session_of(again) not in (None, session_of(lost))


async def test_a_cut_connection_is_retried_with_all_ids() -> None:
    async with running(retries=1) as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        fake.script(HangUp())
        (three,) = await turns(socket, "three", after=two["id"])
        assert text_of(three) == "ok"
        assert decoded(fake.prompts[-1]) == (await whole_prompts(FakeSglang(), "one", "two", "three"))[-1]
        assert fake.requests[-1]["input_ids"] == fake.prompts[-1]


async def test_a_failed_answer_ends_its_session() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        fake.script(Say(("half",)), HangUp())
        events = await socket.turn(input="three", previous_response_id=two["id"], store=False)
        assert events[-1]["type"] == "response.failed"
        assert await fake.closed.get() == session_of(fake.requests[2])


async def test_a_client_that_leaves_ends_the_session_of_its_answer() -> None:
    async with running() as (fake, server):
        async with server.connect(abandoned=True) as socket:
            _, two = await turns(socket, "one", "two")
            fake.script(Say(("half",)), Stall())
            await socket.create(input="three", previous_response_id=two["id"], store=False)
            await fake.stalled.wait()
        assert await fake.closed.get() == session_of(fake.requests[2])


async def test_an_answer_with_a_stop_token_in_its_middle_is_not_appended_to() -> None:
    (word,) = TOKENIZER.encode(" ha")
    end = TOKENIZER.control("<|im_end|>")
    async with running() as (fake, server), server.connect() as socket:
        (one,) = await turns(socket, "one")
        fake.script(Ids((word, end, word)), Stop())
        two, _ = await turns(socket, "two", "three", after=one["id"])
        assert text_of(two) == " ha ha"
        # The server holds a token that the response does not have.
        assert fake.requests[2]["input_ids"] == fake.prompts[2]
        assert " ha ha" in decoded(fake.prompts[2])


async def test_a_server_that_reads_another_prompt_gets_no_more_sessions() -> None:
    # SGLang strips a token that begins texts from what is appended; here it is one of the context.
    cut = (Say(("one",)), Stop("length"))
    async with running() as (fake, server), server.connect() as socket:
        fake.bos = TOKENIZER.control("<|im_end|>")
        fake.checks_prompts = False
        for _ in range(5):
            fake.script(*cut)
        responses = await turns(socket, "a", "b", "c", "d")
        assert [text_of(each) for each in responses] == ["one"] * 4
        assert [session_of(each) is None for each in fake.requests] == [True, False, False, True, True]
        whole = await whole_prompts(FakeSglang(), "a", "b", "c", "d", scripts=[cut] * 4)
        assert [decoded(prompt) for prompt in (*fake.prompts[:2], *fake.prompts[3:])] == whole


async def test_a_session_whose_turn_runs_is_not_used_either_once_sessions_are_refused() -> None:
    cut = (Say(("one",)), Stop("length"))
    async with running() as (fake, server), server.connect() as socket, server.connect() as other:
        fake.checks_prompts = False
        for _ in range(4):
            fake.script(*cut)
        _, two = await turns(socket, "a", "b")
        _, second = await turns(other, "c", "d")
        rest = Rest()
        fake.script(Say(("x", "y"), rest=rest), Stop())
        await other.create(input="e", previous_response_id=second["id"], store=False)
        await rest.begun.wait()
        fake.bos = TOKENIZER.control("<|im_end|>")  # as in the test above
        await turns(socket, "f", after=two["id"])
        fake.bos = None
        rest.set()
        third = (await other.until("response.completed"))[-1]["response"]
        await turns(other, "g", after=third["id"])
        assert session_of(fake.requests[-1]) is None
        while fake.sessions:  # they are closed beside the turns
            await fake.closed.get()


async def test_a_refused_request_is_refused_once_it_was_sent_whole() -> None:
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        fake.script(Refuse(400, "too odd"))
        fake.script(Refuse(400, "too odd"))
        events = await socket.turn(input="three", previous_response_id=two["id"], store=False)
        assert "too odd" in str(events[-1])
        assert [session_of(each) is None for each in fake.requests[2:]] == [False, True]


async def test_the_tenant_with_most_sessions_makes_room() -> None:
    fake = WithSessions()
    await fake.start()
    try:
        engine = fake.engine(max_sessions=3)
        async with (
            serve(engine, api_key=("one:k1", "two:k2")) as server,
            server.connect(key="k1") as many,
            server.connect(key="k2") as few,
        ):
            await turns(few, "mine", "goes on")
            for number in range(4):
                await turns(many, f"chain {number}", "goes on")
            small, *large = (each["session_id"] for each in fake.opened)
            assert list(fake.sessions) == [small, *large[-2:]]
    finally:
        await fake.close()


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"max_running_requests": 4}, 2), ({"max_total_num_tokens": 150}, 2), ({"max_total_num_tokens": 20}, 0)],
)
async def test_sessions_take_at_most_half_of_the_server(limits: dict[str, int], kept: int) -> None:
    fake = WithSessions()
    for name, value in limits.items():
        setattr(fake, name, value)
    async with in_front_of(fake, scheduling=False) as (_, server), server.connect() as socket:
        for number in range(4):
            await turns(socket, f"chain {number}", "two")  # 37 tokens when it has ended
        assert len(fake.sessions) == kept
        assert len(fake.opened) == (4 if kept else 0)


async def test_an_idle_session_is_closed() -> None:
    # The server would close it a moment later: the next turn sends everything.
    async with running() as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        (engine,) = server.service.catalog.engines
        for session in engine.sessions._open.values():
            session.used_at -= 597
        await turns(socket, "three", after=two["id"])
        assert fake.requests[2]["input_ids"] == fake.prompts[2]
        assert await fake.closed.get() == session_of(fake.requests[1])


async def test_without_the_servers_flag_there_are_no_sessions() -> None:
    async with in_front_of(FakeSglang(), sessions="auto") as (fake, server), server.connect() as socket:
        await turns(socket, "one", "two", "three")
        assert not fake.opened
        assert not any(map(session_of, fake.requests))


async def test_a_server_that_opens_no_session_is_not_asked_every_turn() -> None:
    async with in_front_of(FakeSglang(), sessions="on") as (fake, server), server.connect() as socket:
        await turns(socket, "one", "two", "three")
        assert len(fake.opened) == 1
        assert not any(map(session_of, fake.requests))


def test_sessions_are_auto_on_or_off() -> None:
    with pytest.raises(StartupError, match="'sessions' must be auto, on or off, not 'yes'"):
        SglangEngine.from_options("http://127.0.0.1:1,sessions=yes")


# What sessions read ahead

HEADER = {"OpenAI-Beta": "slipring_tool_output=v1"}
CALL = (Call("get_weather", '{"city": "Rome"}'), Stop())


async def two_calls(fake: FakeSglang, socket: Socket) -> dict[str, Any]:
    """The second turn of a chain, which has opened a session and called a tool."""
    fake.script(*CALL)
    fake.script(*CALL)
    (first,) = await turns(socket, "Rome?", tools=[WEATHER])
    said = output(first["output"][0]["call_id"], "sunny")
    (second,) = await turns(socket, said, after=first["id"], tools=[WEATHER])
    return second


async def test_outputs_of_running_tools_are_read_in_the_session() -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        second = await two_calls(fake, socket)
        call_id = await stream(socket, server, second, LOG)
        ahead = fake.requests[2:]
        assert ahead
        assert {session_of(each) for each in ahead} == {session_of(fake.requests[1])}
        assert {each["sampling_params"]["max_new_tokens"] for each in ahead} == {0}
        await turns(socket, output(call_id, LOG), after=second["id"], tools=[WEATHER])
        last = fake.requests[-1]
        assert session_of(last) == session_of(fake.requests[1])
        whole = len(TOKENIZER.encode(LOG))
        assert len(last["input_ids"]) < whole / 2
        assert sum(len(each["input_ids"]) for each in ahead) > whole / 2
        assert decoded(fake.prompts[-1]).count(LOG.strip()) == 1
        assert len(fake.opened) == 1


@pytest.mark.parametrize("ending", [(Say(("a",)),), (Garbage(),), (HangUp(),)])
async def test_a_session_that_may_not_hold_what_was_read_ahead_is_replaced(ending: tuple[Any, ...]) -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        second = await two_calls(fake, socket)
        fake.script(*ending)
        text = LOG[:1500]
        call_id = await stream(socket, server, second, text, size=len(text))
        await turns(socket, output(call_id, text), after=second["id"], tools=[WEATHER])
        old, new = (asked["session_id"] for asked in fake.opened)
        assert [session_of(fake.requests[at]) for at in (1, 2, -1)] == [old, old, new]
        assert fake.requests[-1]["input_ids"] == fake.prompts[-1]
        assert await fake.closed.get() == old


async def reading(fake: FakeSglang, socket: Socket, *script: Step) -> dict[str, Any]:
    """Begin to read an output ahead in a session, which the script answers; returns the create that continues
    the response with that output."""
    second = await two_calls(fake, socket)
    fake.script(*script)
    call = second["output"][0]["call_id"]
    piece = {"type": "response.tool_output.delta", "response_id": second["id"], "call_id": call}
    await socket.send(**piece, delta=LOG)
    return {"input": output(call, LOG), "previous_response_id": second["id"], "tools": [WEATHER]}


async def test_a_turn_gives_up_what_takes_too_long_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        asked = await reading(fake, socket, Stall())
        await fake.stalled.wait()
        monkeypatch.setattr(sessions, "_PATIENCE_S", 0.01)
        third = await socket.response(**asked, store=False)
        assert third["status"] == "completed"
        assert fake.requests[-1]["input_ids"] == fake.prompts[-1]
        assert await fake.closed.get() == session_of(fake.requests[1])
        await prefilled(server)


async def test_the_time_to_answer_begins_after_the_wait_for_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[bool] = []
    is_due = False
    lease, run = Sessions.lease, Admission.run

    async def watched_lease(*arguments: Any) -> Any:
        waited.append(is_due)
        return await lease(*arguments)

    async def watched_run(*arguments: Any, **named: Any) -> Any:
        nonlocal is_due
        is_due = True
        try:
            return await run(*arguments, **named)
        finally:
            is_due = False

    monkeypatch.setattr(Sessions, "lease", watched_lease)
    monkeypatch.setattr(Admission, "run", watched_run)
    async with running() as (_, server), server.connect() as socket:
        await turns(socket, "one", "two", "three")
    assert waited == [False, False, False]


async def test_a_server_that_is_slow_to_open_a_session_gets_the_turn_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "_PATIENCE_S", 0.01)
    async with running() as (fake, server), server.connect() as socket:
        fake.may_open.clear()
        responses = await turns(socket, "one", "two", "three")
        assert {each["status"] for each in responses} == {"completed"}
        assert not any(map(session_of, fake.requests))
        assert await fake.closed.get(), "the server may have opened it nevertheless"
        assert len(fake.opened) <= 1, "the third turn asks for no session"
        fake.may_open.set()


async def test_an_output_that_ends_otherwise_is_sent_whole() -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        second = await two_calls(fake, socket)
        call_id = await stream(socket, server, second, LOG)
        await turns(socket, output(call_id, "Nothing of it."), after=second["id"], tools=[WEATHER])
        assert fake.requests[-1]["input_ids"] == fake.prompts[-1]
        assert "test number" not in decoded(fake.prompts[-1])


async def test_a_turn_waits_for_what_is_being_read() -> None:
    async with running() as (fake, server), server.connect(headers=HEADER) as socket:
        rest = Rest()
        asked = await reading(fake, socket, Say(("a", "b"), rest=rest), Stop())
        await rest.begun.wait()
        await socket.create(**asked, store=False)
        await socket.until("response.in_progress")
        assert len(fake.requests) == 3
        rest.set()
        await socket.until("response.completed")
        assert session_of(fake.requests[-1]) == session_of(fake.requests[1])
        assert len(fake.opened) == 1


# --- Servers at which sessions have taken all places -----------------------------------------------


class WithPlaces(WithSessions):
    """Two slipring servers may open as many sessions together as requests may run."""

    max_req_input_len = 2000
    max_running_requests = 4
    gives_places_to_sessions = True


@asynccontextmanager
async def two_servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[WithPlaces, list[Running]]]:
    monkeypatch.setattr("slipring.engines.tokens.sglang._LOOKS_AGAIN_S", 0.0)
    fake = WithPlaces()
    await fake.start()
    try:
        async with AsyncExitStack() as stack:
            patient = {"first_token_timeout_s": 600.0, "idle_timeout_s": 600.0, "retries": 0}
            yield (
                fake,
                [await stack.enter_async_context(serve(fake.engine(**patient))) for _ in range(2)],
            )
    finally:
        await fake.close()


async def chains_of_two(stack: AsyncExitStack, servers: list[Running]) -> list[tuple[Socket, str]]:
    """Two chains at each server, with a session each."""
    found = []
    for server in servers:
        for name in "ab":
            socket = await stack.enter_async_context(server.connect())
            _, two = await turns(socket, f"chain {name}", "two")
            found.append((socket, two["id"]))
    return found


def look_often(monkeypatch: pytest.MonkeyPatch, servers: list[Running]) -> None:
    """Let the servers look from now on whether SGLang answers nobody."""
    monkeypatch.setattr(sessions, "_REVIEW_S", 0.01)
    for server in servers:
        (engine,) = server.service.catalog.engines
        assert isinstance(engine, SglangEngine)
        assert engine.sessions is not None
        engine.sessions._reviewed()


async def test_turns_in_sessions_that_have_taken_all_places_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_servers(monkeypatch) as (fake, servers), AsyncExitStack() as stack:
        chains = await chains_of_two(stack, servers)
        assert len(fake.sessions) == 4
        look_often(monkeypatch, servers)
        third = await asyncio.gather(*(turns(socket, "three", after=after) for socket, after in chains))
        assert all(response["status"] == "completed" for (response,) in third)
        assert len(fake.sessions) < 4
        for (socket, _), (response,) in zip(chains, third, strict=True):
            await turns(socket, "four", "five", after=response["id"])
        assert len(fake.sessions) < 4
        texts = await whole_prompts(FakeSglang(), "chain a", "two", "three", "four", "five")
        last = [decoded(prompt) for prompt in fake.prompts if "five" in decoded(prompt)]
        assert {text.replace("chain b", "chain a") for text in last} == {texts[-1]}


async def test_idle_sessions_that_have_taken_all_places_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_servers(monkeypatch) as (fake, servers), AsyncExitStack() as stack:
        await chains_of_two(stack, servers)
        look_often(monkeypatch, servers)
        other = await stack.enter_async_context(servers[0].connect())
        await turns(other, "hi")
        assert len(fake.sessions) < 4
    assert "SGLang answers nobody: its sessions have taken the places of all requests" in caplog.text


async def test_a_server_that_runs_one_request_at_once_is_given_no_session() -> None:
    async with running() as (fake, server):
        assert server.service.catalog.engines[0].session_use == "used"
    one = WithPlaces()
    one.max_running_requests = 1
    async with in_front_of(one) as (fake, server), server.connect() as socket:
        await turns(socket, "one", "two", "three")
        assert not fake.opened
        (engine,) = server.service.catalog.engines
        assert engine.session_use == (
            "not used: the server runs one request at once, and a session takes its place"
        )


@pytest.mark.parametrize("loads", [{}, {"loads": [{}]}, {"loads": None}, []])
async def test_a_server_that_does_not_tell_its_load_is_not_stuck(loads: Any) -> None:
    class Other(WithPlaces):
        async def _loads(self, request: web.Request) -> web.Response:
            return web.json_response(loads)

    async with in_front_of(Other()) as (_, server):
        (engine,) = server.service.catalog.engines
        assert isinstance(engine, SglangEngine)
        assert not await engine._is_stuck()
