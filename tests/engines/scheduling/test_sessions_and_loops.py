"""Sessions and the loops that they belong to: whose session makes room, for a new one and for one that grows,
and which is closed with its loop."""

import asyncio
import gc
from typing import Any

import pytest
from aiohttp import web

from slipring.engines.remote.http_connection import HttpFailure
from slipring.engines.tokens.sessions import Session
from slipring.engines.vllm_plugin.sessions import Limits
from tests.engines.chains import turns
from tests.engines.fakes.server import Refuse, Say, Stall, Stop, in_front_of
from tests.engines.fakes.tokens import TOKENIZER
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions, session_of
from tests.engines.scheduling.test_scheduled_turns import engine_of, fall_silent, grow_idle, loops_of
from tests.engines.test_prefill import LOG, output, prefilled
from tests.engines.tokens.test_vllm_sessions import HEADER, LENIENT, Unsettled, two_calls
from tests.harness import Running
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")


class Bounded(FakeVllmWithSessions):
    """Offers sessions that together hold 70 tokens: two of short chains. Does not enforce that itself, as
    SGLang does not."""

    most_tokens = 70

    def told(self) -> dict[str, Any]:
        told = super().told()
        self.sessions.limits = Limits(8, 100_000)
        return told


def held(fake: FakeVllmWithSessions) -> int:
    return sum(map(len, fake.contexts.values()))


def is_tidy(server: Running) -> bool:
    """Whether every session that is open can be found by the position that it belongs to."""
    sessions = engine_of(server).sessions
    return {id(each) for each in sessions._open.values()} == {id(each) for each in sessions._by_body.values()}


# Which loop a session belongs to


async def test_a_turn_that_is_sent_whole_keeps_the_session_of_its_loop() -> None:
    async with in_front_of(Unsettled(), kv_tokens=4000) as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        (three,) = await turns(socket, "three", after=two["id"], seed=7)
        grow_idle(server, 300)
        await turns(socket, "another loop", "goes on")
        await turns(socket, "four", after=three["id"])
        assert session_of(fake.requests[2]) is None
        assert session_of(fake.requests[-1]) == session_of(fake.requests[1])


async def test_a_turn_that_comes_after_a_long_pause_goes_on_in_its_session() -> None:
    in_front = in_front_of(FakeVllmWithSessions(), kv_tokens=4000)
    async with in_front as (fake, server), server.connect() as socket:
        _, two = await turns(socket, "one", "two")
        grow_idle(server, 300)
        await turns(socket, "three", after=two["id"])
        assert session_of(fake.requests[2]) == session_of(fake.requests[1]) is not None


async def test_a_session_is_closed_with_its_loop_after_a_turn_that_was_sent_whole() -> None:
    async with (
        in_front_of(Unsettled(), kv_tokens=280) as (fake, server),
        server.connect() as first,
        server.connect() as second,
    ):
        _, two = await turns(first, "one", "two")
        await turns(first, "three", after=two["id"], seed=7)
        await turns(second, "another loop")
        assert loops_of(server).paused == 1
        await until(lambda: not fake.contexts)


async def test_a_loop_whose_turn_waits_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.tokens.sessions._REVIEW_S", 0.001)
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=4000, max_jobs=1) as (fake, server),
        server.connect() as first,
        server.connect() as second,
    ):
        _, two = await turns(first, "one", "two")
        rest = asyncio.Event()
        fake.script(Say(("a", "b"), rest=rest), Stop())
        await second.create(input="another loop", store=False)
        await until(lambda: len(fake.requests) == 3)
        grow_idle(server, 300)
        await first.create(input="three", previous_response_id=two["id"], store=False)
        await until(lambda: loops_of(server).waiting == 1)
        await asyncio.sleep(0.05)  # some reviews
        rest.set()
        await first.until("response.completed")
        assert session_of(fake.requests[3]) == session_of(fake.requests[1])


async def test_a_session_that_reads_ahead_is_closed_if_its_loop_loses_its_place_meanwhile() -> None:
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=500) as (fake, server),
        server.connect(headers=HEADER) as first,
        server.connect() as second,
    ):
        called = await two_calls(fake, first)
        rest = asyncio.Event()
        fake.script(rest, Say(("a",)), Stop())  # type: ignore[arg-type]
        call_id = called["output"][0]["call_id"]
        piece = {"type": "response.tool_output.delta", "response_id": called["id"], "call_id": call_id}
        await first.send(**piece, delta=LOG[:400])
        await until(lambda: len(fake.requests) == 3)
        await turns(second, "word " * 200)
        assert loops_of(server).paused == 1
        rest.set()
        await until(lambda: not fake.contexts)


async def test_a_loop_whose_tool_gives_out_its_output_in_pieces_is_not_silent() -> None:
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=100_000, max_sessions=1) as (fake, server),
        server.connect(headers=HEADER) as socket,
        server.connect() as second,
    ):
        called = await two_calls(fake, socket)
        fall_silent(server)
        call_id = called["output"][0]["call_id"]
        piece = {"type": "response.tool_output.delta", "response_id": called["id"], "call_id": call_id}
        await socket.send(**piece, delta=LOG[:400])
        await until(lambda: len(fake.requests) == 3)
        await prefilled(server)
        await turns(second, "another loop", "goes on")
        assert list(fake.contexts) == fake.opened[:1]


async def test_pieces_are_heard_while_others_wait_and_nothing_is_read_ahead() -> None:
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=100_000, max_jobs=1) as (fake, server),
        server.connect(headers=HEADER) as socket,
        server.connect() as second,
        server.connect() as third,
    ):
        called = await two_calls(fake, socket)
        ((loop,),) = [list(each.schedule._loops.values()) for each in engine_of(server).schedule._replicas]
        rest = asyncio.Event()
        fake.script(Say(("a",), rest=rest), Stop())
        await second.create(input="runs", store=False)
        await until(lambda: len(fake.requests) == 3)
        await third.create(input="waits", store=False)
        await until(lambda: loops_of(server).waiting == 1)
        call_id = called["output"][0]["call_id"]
        piece = {"type": "response.tool_output.delta", "response_id": called["id"], "call_id": call_id}
        heard = []
        for _ in range(3):
            before = loop.heard_at
            await socket.send(**piece, delta=LOG[:400])
            await until(lambda before=before: loop.heard_at > before)  # type: ignore[misc]
            heard.append(len(fake.requests))
        assert heard == [3, 3, 3]
        rest.set()
        await third.until("response.completed")


async def test_a_turn_that_takes_a_session_while_its_chain_ends_in_another_thread_keeps_it() -> None:
    """What remembers a chain is freed in whichever thread uses it last."""
    async with in_front_of(FakeVllmWithSessions()) as (fake, server), server.connect() as socket:
        await turns(socket, "one", "two")
        sessions = engine_of(server).sessions
        (session,) = sessions._open.values()
        (key,) = sessions._by_body

        class Interrupted(dict[int, Any]):
            def pop(self, key: int, default: Any = None) -> Any:
                # The other thread has found the session, and the event loop's goes on before it takes it.
                super().pop(key, None)
                return super().pop(key, default)

        sessions._by_body = Interrupted(sessions._by_body)
        session.is_busy = True
        await asyncio.to_thread(sessions._dropped, key, session)
        await asyncio.sleep(0)
        assert list(fake.contexts) == list(sessions._open) == [session.id]


async def test_an_engine_that_is_closed_while_its_server_opens_a_session() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def refuse(session_id: str, route: str) -> None:
        asked.set()
        await go.wait()
        raise HttpFailure("the server ends")

    async with in_front_of(FakeVllmWithSessions()) as (_, server), server.connect() as socket:
        sessions = engine_of(server).sessions
        (one,) = await turns(socket, "one")
        sessions._protocol = sessions._protocol._replace(open=refuse)
        turn = asyncio.ensure_future(turns(socket, "two", after=one["id"]))
        await asked.wait()
        await sessions.close()
        go.set()
        (two,) = await turn
        assert two["status"] == "completed"


# Room


async def test_sessions_of_silent_loops_make_room_for_one_that_grows() -> None:
    fake = FakeVllmWithSessions()
    fake.sessions.limits = Limits(8, 70)  # its plugin would refuse what does not fit
    async with in_front_of(fake, kv_tokens=100_000) as (_, server), server.connect() as socket:
        await turns(socket, "silent", "goes on")
        fall_silent(server)
        _, mine = await turns(socket, "mine", "goes on")
        silent, own = fake.opened
        await turns(socket, "word " * 20, after=mine["id"])
        assert await fake.closed.get() == silent
        assert session_of(fake.requests[-1]) == own


class SlowToEnd(FakeVllmWithSessions):
    """Ends sessions only when it may, whenever it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_end = asyncio.Event(), asyncio.Event()

    async def _end(self, request: web.Request) -> web.Response:
        self.asked.set()
        await self.may_end.wait()
        return await super()._end(request)


async def test_a_session_that_grows_waits_for_the_room_of_one_that_was_closed_a_moment_ago() -> None:
    fake = SlowToEnd()
    fake.sessions.limits = Limits(8, 70)
    async with in_front_of(fake, kv_tokens=100_000) as (_, server), server.connect() as socket:
        await turns(socket, "another loop", "goes on")
        _, mine = await turns(socket, "mine", "goes on")
        others, own = fake.opened
        sessions = engine_of(server).sessions
        sessions.release(sessions._open[others].loop)  # as a schedule does that lets a turn of mine run
        await fake.asked.wait()
        until_closed = sessions._until_closed

        async def watched(session: Session, closing: list[asyncio.Task[None]]) -> None:
            if closing:
                fake.may_end.set()
            await until_closed(session, closing)

        sessions._until_closed = watched
        await turns(socket, "word " * 20, after=mine["id"])
        fake.may_end.set()
        assert [session_of(request) for request in fake.requests[4:]] == [own]


async def test_a_replica_that_ends_no_session_delays_no_turn_at_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipring.engines.tokens.sessions._CLOSING_S", 3600.0)
    fake = SlowToEnd()
    async with in_front_of(fake, kv_tokens=100_000) as (_, server), server.connect() as socket:
        await turns(socket, "one", "two")
        engine = engine_of(server)
        (session,) = engine.sessions._open.values()
        places = {session.route: "slow"}
        engine.schedule.replica_of = lambda route: places.get(route, "")
        engine.sessions._discard(session)
        await fake.asked.wait()
        await turns(socket, "another loop", "goes on")
        assert len(fake.opened) == 2
        fake.may_end.set()


async def test_sessions_are_opened_again_soon_where_one_found_no_room_beside_others() -> None:
    """The plugin counts an answer when it ends, slipring when it has read that."""
    async with in_front_of(FakeVllmWithSessions()) as (fake, server), server.connect() as socket:
        sessions, lengths = engine_of(server).sessions, []
        await turns(socket, "another loop", "goes on")
        for number in range(8):
            (one,) = await turns(socket, f"chain {number}")
            fake.script(Refuse(400, "There is no room for so many ids."))
            await turns(socket, "two", after=one["id"])
            ((until, length),) = sessions._pauses.values()
            lengths.append(length)
            sessions._pauses[""] = until - length, length
        assert lengths == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize("options", [{"kv_tokens": 100_000}, {}], ids=["scheduled", "unscheduled"])
async def test_an_answer_that_grows_beyond_the_bound_ends_one_session(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Not one of slipring's choice and one of the plugin's."""
    monkeypatch.setattr("slipring.engines.vllm_plugin.sessions._SETTLING_S", 300.0)
    fake = FakeVllmWithSessions()
    fake.sessions.limits = Limits(8, 70)
    async with in_front_of(fake, **options) as (_, server), server.connect() as socket:
        await turns(socket, "mine", "goes on")
        _, other = await turns(socket, "other", "goes on")
        fake.script(Say(("word ",) * 25), Stop())
        await turns(socket, "and?", after=other["id"])
        await fake.closed.get()
        fake.sessions._keep_limit()
        assert list(fake.sessions._open) == list(engine_of(server).sessions._open) != []


@pytest.mark.parametrize("options", [{"kv_tokens": 100_000}, {}], ids=["scheduled", "unscheduled"])
async def test_sessions_that_grow_stay_within_their_bound(options: dict[str, Any]) -> None:
    async with in_front_of(Bounded(), **options) as (fake, server), server.connect() as socket:
        latest = [(await turns(socket, f"chain {number}", "goes on"))[-1]["id"] for number in range(2)]
        first, second = fake.opened
        assert set(fake.contexts) == {first, second}
        for _ in range(2):
            for at, after in enumerate(latest):
                (response,) = await turns(socket, "word " * 5, after=after)
                latest[at] = response["id"]
                await until(lambda: held(fake) <= 70)
        if options:  # the one that grew first gave way, and the other goes on in its session
            assert set(fake.contexts) == {second}


async def test_an_answer_that_grows_beyond_the_bound_takes_its_session_with_it() -> None:
    async with in_front_of(Bounded(), kv_tokens=100_000) as (fake, server), server.connect() as socket:
        await turns(socket, "mine", "goes on")
        _, other = await turns(socket, "other", "goes on")
        mine, its = fake.opened
        fake.script(Say(("word ",) * 40), Stop())
        await turns(socket, "and?", after=other["id"])
        assert await fake.closed.get() == its
        assert set(fake.contexts) == {mine}


@pytest.mark.parametrize("options", [{"kv_tokens": 100_000}, {}], ids=["scheduled", "unscheduled"])
async def test_no_session_is_closed_where_that_would_not_make_enough_room(options: dict[str, Any]) -> None:
    async with (
        in_front_of(Bounded(), max_sessions=2, **options) as (fake, server),
        server.connect() as socket,
    ):
        for name in ("a", "b"):
            await turns(socket, f"loop {name}", "goes on")
        if options:
            fall_silent(server)
        await turns(socket, "word " * 80, "goes on")
        assert len(engine_of(server).sessions) == len(fake.opened) == 2


@pytest.mark.parametrize("options", [{"kv_tokens": 100_000}, {}], ids=["scheduled", "unscheduled"])
@pytest.mark.parametrize(("most", "tokens"), [(0, 70), (8, 0), (8, 1), (1, 70)])
async def test_the_smallest_bounds(most: int, tokens: int, options: dict[str, Any]) -> None:
    async with in_front_of(FakeVllmWithSessions(), **options) as (fake, server), server.connect() as socket:
        sessions = engine_of(server).sessions
        sessions._most, sessions._most_tokens = most, tokens
        for name in ("a", "b"):
            await turns(socket, f"loop {name}", "goes on", "again")
        opened = 0 if most * tokens < 70 else 1 if options else 2
        assert len(fake.opened) == opened
        assert len(sessions) == min(opened, 1)


async def test_a_turn_that_fails_while_its_loop_ends_closes_its_session_once() -> None:
    async with in_front_of(FakeVllmWithSessions(), kv_tokens=4000) as (fake, server):
        async with server.connect(abandoned=True) as socket:
            _, two = await turns(socket, "one", "two")
            fake.script(Say(("half",)), Stall())
            await socket.create(input="three", previous_response_id=two["id"], store=False)
            await fake.stalled.wait()
            (turn,) = engine_of(server).schedule._replicas[0].schedule._running
            engine_of(server).schedule.drop(turn.loop.key)
        await until(lambda: loops_of(server).held_tokens == 0 and not fake.contexts)
        assert await fake.closed.get() == fake.opened[0]
        assert fake.closed.empty()
        assert not len(engine_of(server).sessions)


async def test_a_session_is_not_closed_to_read_ahead_in_it() -> None:
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=100_000) as (fake, server),
        server.connect(headers=HEADER) as socket,
    ):
        called = await two_calls(fake, socket)
        (opened,) = fake.opened
        engine_of(server).sessions._most_tokens = held(fake) + 60
        fall_silent(server)
        call_id = called["output"][0]["call_id"]
        piece = {"type": "response.tool_output.delta", "response_id": called["id"], "call_id": call_id}
        text = " ".join(LOG.split(" ")[:60])
        assert 64 < len(TOKENIZER.encode(text)) < 200
        await socket.send(**piece, delta=text)
        await until(lambda: bool(server.service.prefills.tasks))
        await prefilled(server)
        assert len(fake.requests) == 2
        await turns(socket, output(call_id, "sunny"), after=called["id"], tools=[LENIENT])
        assert session_of(fake.requests[-1]) == opened


async def test_no_session_is_left_where_two_chains_are_at_the_same_position() -> None:
    async with in_front_of(FakeVllmWithSessions()) as (fake, server):
        async with server.connect() as socket:
            _, two = await turns(socket, "one", "two")
            nothing: dict[str, Any] = {"input": [], "store": False, "generate": False}
            fork = await socket.response(**nothing, previous_response_id=two["id"], stream_id="fork")
            await socket.response(**nothing, previous_response_id=fork["id"], stream_id="second")
            assert is_tidy(server)
        gc.collect()
        await until(lambda: not fake.contexts)
