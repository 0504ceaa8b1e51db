"""Turns of real sockets in front of a server whose KV cache holds one context at a time."""

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import Any

import pytest

from slipring.core.limits import Limits
from tests.engines.chains import turns
from tests.engines.fakes.server import Call, Refuse, Say, Stall, Stop, in_front_of
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import decoded
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions, session_of
from tests.harness import WEATHER, Running, Socket, serve
from tests.mcp.fakes import FakeServer, serving
from tests.server.hosted_tools.running import OPERATOR, registered
from tests.server.hosted_tools.turns import server as mcp
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")

LENIENT = {**WEATHER, "strict": False}
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_cpu_blocks="None",num_gpu_blocks="75000"} 1.0
"""


class WithMetrics(FakeVllm):
    metrics = METRICS


def engine_of(server: Running) -> Any:
    (engine,) = server.service.catalog.engines
    return engine


def loops_of(server: Running) -> Any:
    return engine_of(server).status().loops


@pytest.mark.parametrize(
    ("options", "capacity"),
    [({}, 1_140_000), ({"kv_tokens": 1000}, 950), ({"scheduling": False}, None)],
)
async def test_the_size_of_the_cache_is_read_from_the_server(options: Any, capacity: int | None) -> None:
    async with in_front_of(WithMetrics(), **options) as (_, server):
        loops = loops_of(server)
        assert (None if loops is None else loops.capacity_tokens) == capacity


async def test_a_server_that_does_not_report_its_cache_is_not_scheduled() -> None:
    async with in_front_of(FakeVllm()) as (_, server):
        assert loops_of(server) is None


async def test_sglang_reports_its_cache() -> None:
    fake = FakeSglang()
    fake.max_total_num_tokens, fake.max_req_input_len = 2000, 1000
    async with in_front_of(fake) as (_, server):
        assert loops_of(server).capacity_tokens == 1900


async def test_a_turn_waits_for_room_and_runs_when_there_is_some() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=400) as (fake, server):
        async with server.connect(abandoned=True) as first, server.connect() as second:
            fake.script(Say(("a",)), Stall())
            await first.send(type="response.create", input="one", store=False)
            await fake.stalled.wait()
            await second.send(type="response.create", input="two", store=False)
            await second.until("response.in_progress")
            loops = loops_of(server)
            assert (loops.running, loops.waiting) == (1, 1)
            assert [each.state for each in loops.listed] == ["waiting", "running"]
            assert len(fake.requests) == 1
            await first.ws.close()  # its turn is withdrawn
            await second.until("response.completed")
        assert len(fake.requests) == 2


async def test_a_client_that_leaves_while_it_waits_holds_nothing() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=400) as (fake, server):
        async with server.connect(abandoned=True) as first:
            fake.script(Say(("a",)), Stall())
            await first.send(type="response.create", input="one", store=False)
            await fake.stalled.wait()
            async with server.connect(abandoned=True) as second:
                await second.send(type="response.create", input="two", store=False)
                await second.until("response.in_progress")
            await until(lambda: loops_of(server).waiting == 0)
        await until(lambda: loops_of(server).running == 0)
        async with server.connect() as third:
            await turns(third, "three")


async def test_the_tools_that_a_loop_waits_for_are_known() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (fake, server), server.connect() as socket:
        fake.script(Call("get_weather", '{"city": "Rome"}'), Stop())
        await turns(socket, "Rome?", tools=[LENIENT])
        (loop,) = loops_of(server).listed
        assert (loop.state, loop.tools, loop.turns) == ("paused", "get_weather", 1)


async def test_the_session_of_a_loop_that_loses_its_place_is_closed() -> None:
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=280) as (fake, server),
        server.connect() as first,
        server.connect() as second,
    ):
        _, two = await turns(first, "one", "two")
        opened = session_of(fake.requests[1])
        assert opened is not None
        await turns(second, "another loop")
        assert loops_of(server).paused == 1
        await turns(first, "three", after=two["id"])
        # The context is sent whole, into a new session.
        assert session_of(fake.requests[3]) not in (None, opened)
        assert fake.requests[3]["held"] == 0


def fall_silent(server: Running) -> None:
    """As if all loops had paused for an hour already."""
    for replica in engine_of(server).schedule._replicas:
        for loop in replica.schedule._loops.values():
            loop.paused_at -= 3600


def grow_idle(server: Running, seconds: float) -> None:
    """As if all sessions had been idle for so long already."""
    for session in engine_of(server).sessions._open.values():
        session.used_at -= seconds


BOUNDS = [{"max_sessions": 2}, {"kv_tokens": 100_000}]
"""Of the sessions, and of what they hold."""


@pytest.mark.parametrize("options", BOUNDS, ids=["sessions", "tokens"])
async def test_sessions_of_silent_loops_make_room(options: dict[str, Any]) -> None:
    """Clients that send their history over HTTP never say that they have ended."""
    fake = FakeVllmWithSessions()
    fake.sessions.limits = type(fake.sessions.limits)(8, 70)
    async with (
        in_front_of(fake, **{"kv_tokens": 100_000, **options}) as (fake, server),
        server.connect() as socket,
    ):
        for name in ("a", "b"):
            await turns(socket, f"loop {name}", "goes on")
        first, second = fake.opened
        await turns(socket, "loop c", "goes on")
        assert fake.opened == [first, second]  # both may be needed next
        fall_silent(server)
        await turns(socket, "loop d", "goes on")
        assert len(fake.opened) == 3
        assert await fake.closed.get() == first
        assert second in fake.contexts


async def test_a_tenant_with_more_sessions_makes_room() -> None:
    fake = FakeVllmWithSessions()
    await fake.start()
    try:
        engine = fake.engine(max_sessions=3, kv_tokens=100_000)
        async with (
            serve(engine, api_key=("one:k1", "two:k2")) as server,
            server.connect(key="k1") as many,
            server.connect(key="k2") as few,
        ):
            for number in range(4):
                await turns(many, f"chain {number}", "goes on")
            first, second, third = fake.opened
            await turns(few, "mine", "goes on")
            assert await fake.closed.get() == third  # as one that was admitted last
            await turns(few, "mine too", "goes on")
            assert len(fake.opened) == 4  # it would have more than the other then
            assert list(fake.contexts) == [first, second, fake.opened[3]]
    finally:
        await fake.close()


async def test_a_session_of_a_silent_loop_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.tokens.sessions._REVIEW_S", 0.001)
    async with (
        in_front_of(FakeVllmWithSessions(), kv_tokens=4000) as (fake, server),
        server.connect() as socket,
    ):
        await turns(socket, "one", "two")
        (opened,) = fake.opened
        grow_idle(server, 300)
        await turns(socket, "another loop", "goes on")
        assert opened in fake.contexts  # its loop may well come back
        fall_silent(server)
        assert await fake.closed.get() == opened
        assert len(fake.contexts) == 1


async def test_a_chain_that_has_ended_holds_nothing() -> None:
    fake = FakeVllm()
    await fake.start()
    try:
        engine = fake.engine(kv_tokens=4000)
        async with serve(engine, limits=Limits(recognised_s=0, parked_s=0)) as server:
            async with server.connect() as socket:
                await turns(socket, "one", "two")
                assert loops_of(server).paused == 1
            await until(lambda: loops_of(server).paused == 0)
    finally:
        await fake.close()


async def test_a_client_that_closes_its_connection_has_ended_its_loops() -> None:
    """Although their histories would still be recognised."""
    async with in_front_of(FakeVllmWithSessions(), kv_tokens=4000) as (fake, server):
        async with server.connect() as socket:
            await turns(socket, "one", "two", "three", store=False)
            assert loops_of(server).paused == 1
            (opened,) = fake.opened
        await until(lambda: loops_of(server).paused == 0)
        assert await fake.closed.get() == opened


async def test_a_stored_chain_outlives_its_connection() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (_, server):
        async with server.connect() as socket:
            *_, last = await turns(socket, "one", "two", store=True)
        async with server.connect() as socket:
            await turns(socket, "three", after=last["id"], store=True)
            (loop,) = loops_of(server).listed
            assert (loop.state, loop.turns) == ("paused", 3)


async def test_chains_with_one_cache_key_are_loops_of_their_own() -> None:
    async with (
        in_front_of(FakeVllm(), kv_tokens=4000) as (_, server),
        server.connect() as first,
        server.connect() as second,
    ):
        await turns(first, "one " * 50, prompt_cache_key="all")
        (one,) = loops_of(server).listed
        await turns(second, "two " * 50, prompt_cache_key="all")
        loops = loops_of(server)
        assert (loops.paused, loops.held_tokens) == (2, 2 * one.tokens)


async def test_chains_that_continue_one_stored_response_are_loops_of_their_own() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=8000) as (_, server), AsyncExitStack() as stack:
        first = await stack.enter_async_context(server.connect())
        one = await first.response(input="word " * 200)
        (alone,) = loops_of(server).listed
        sockets = [await stack.enter_async_context(server.connect()) for _ in range(3)]
        latest = [one] * 3
        for turn in range(2):
            for at, socket in enumerate(sockets):
                latest[at] = await socket.response(
                    input=f"{at} " * 100, previous_response_id=latest[at]["id"]
                )
            loops = loops_of(server)
            assert (loops.paused, sorted(each.turns for each in loops.listed)) == (
                3,
                [1 + turn] * 2 + [2 + turn],
            )
        # What they begin with is counted once.
        assert 1200 < loops.held_tokens - alone.tokens < 1200 + alone.tokens


async def test_a_first_turn_that_fails_holds_nothing() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (fake, server), server.connect() as socket:
        fake.script(Refuse(500))
        assert (await socket.turn(input="hi", store=False))[-1]["type"] == "response.failed"
        assert loops_of(server).held_tokens == 0
        # A later one keeps what its chain has.
        (one,) = await turns(socket, "hi")
        held = loops_of(server).held_tokens
        fake.script(Refuse(500))
        fork = {"input": "more", "previous_response_id": one["id"], "stream_id": "fork", "store": False}
        assert (await socket.turn(**fork))[-1]["type"] == "response.failed"
        assert loops_of(server).held_tokens == held > 0


async def test_a_first_turn_whose_client_leaves_holds_nothing() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (fake, server):
        fake.script(Say(("a",)), Stall())
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="hi", store=False)
            await fake.stalled.wait()
        await until(lambda: loops_of(server).running == 0)
        assert loops_of(server).held_tokens == 0


async def test_a_warmup_of_nothing_holds_nothing() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (_, server), server.connect() as socket:
        await socket.response(input=[], generate=False, store=False)
        assert loops_of(server).held_tokens == 0


COMPACTION = [{"type": "compaction", "compact_threshold": 1000}]


@pytest.mark.parametrize("store", [False, True])
async def test_a_compacted_chain_holds_its_new_context_alone(*, store: bool) -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (_, server), server.connect() as socket:
        settings: dict[str, Any] = {"context_management": COMPACTION, "store": store}
        _, second = await turns(socket, "word " * 900, "and " * 200, **settings)
        assert [item["type"] for item in second["output"]] == ["compaction", "message"]
        loops = loops_of(server)
        assert (loops.paused, loops.listed[0].turns) == (1, 3)
        assert loops.held_tokens < 900
        await turns(socket, "go on", after=second["id"], store=store)
        assert loops_of(server).paused == 1


@pytest.mark.parametrize("store", [False, True])
async def test_a_turn_that_fails_after_its_summary_leaves_no_loop(*, store: bool) -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (fake, server), server.connect() as socket:
        (one,) = await turns(socket, "word " * 900, store=store)
        fake.script(Say(("a summary",)), Stop())
        fake.script(Refuse(400))
        asked = {"input": "and " * 200, "previous_response_id": one["id"], "context_management": COMPACTION}
        assert (await socket.turn(**asked, store=store))[-1]["type"] == "response.failed"
        await until(lambda: loops_of(server).held_tokens == 0)
        await turns(socket, "go on", after=one["id"] if store else None, store=store)
        assert loops_of(server).paused == 1


async def test_a_window_that_a_client_compacts_holds_nothing() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (_, server):
        status, _ = await server.compact(model="smollm2", input="word " * 50)
        assert status == 200
        await until(lambda: loops_of(server).held_tokens == 0)


async def test_a_resident_loop_goes_on_while_as_many_wait_as_may() -> None:
    async with (
        in_front_of(FakeVllm(), kv_tokens=700, max_waiting=1) as (fake, server),
        server.connect(abandoned=True) as busy,
        server.connect() as resident,
        server.connect(abandoned=True) as waiting,
        server.connect() as late,
    ):
        (one,) = await turns(resident, "hi")
        fake.script(Say(("a",)), Stall())
        await busy.create(input="word " * 200, store=False)
        await fake.stalled.wait()
        await waiting.create(input="word " * 500, store=False)
        await waiting.until("response.in_progress")
        assert (await late.error(input="word " * 500, store=False))["error"]["code"] == "rate_limit_exceeded"
        assert loops_of(server).waiting == 1
        await turns(resident, "and?", after=one["id"])
        assert loops_of(server).waiting == 1


async def test_a_loop_that_is_steered_keeps_its_place_before_one_that_waits() -> None:
    async with (
        in_front_of(FakeVllm(), kv_tokens=700) as (fake, server),
        server.connect() as steered,
        server.connect() as waiting,
    ):
        rest = asyncio.Event()
        fake.script(Say(("a", "b"), rest=rest), Stop())
        await steered.create(input="one " * 400, store=False)
        begun = await steered.until("response.output_text.delta")
        await waiting.create(input="two " * 400, store=False)
        await until(lambda: loops_of(server).waiting == 1)
        target = begun[0]["response"]["id"]
        await steered.send(type="response.steer", previous_response_id=target, input="three")
        await steered.until("response.steer.accepted")
        rest.set()
        await steered.until("response.completed")
        await steered.until("response.completed")
        await waiting.until("response.completed")
        asked = [decoded(prompt) for prompt in fake.prompts]
        assert [text.count("one ") > 300 for text in asked] == [True, True, False]
        assert "three" in asked[1]


ENDS = ("response.completed", "response.failed", "response.incomplete")
ROLLOUTS = {"OpenAI-Beta": "slipring_rollout=v1"}
WITH_AND_WITHOUT_SESSIONS = pytest.mark.parametrize("make", [FakeVllm, FakeVllmWithSessions])
STORED_OR_NOT = pytest.mark.parametrize("store", [False, True])


async def settled(server: Running) -> Any:
    """The loops, once nothing refers to a turn that has ended."""
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    return loops_of(server)


async def rolled_out(socket: Socket, fake: Any, **asked: Any) -> dict[str, Any]:
    """A response of two steps, between which its client answers a call."""
    fake.script(Call("get_weather", '{"city": "Rome"}'), Stop())
    await socket.create(tools=[LENIENT], rollout=True, **asked)
    waits = (await socket.until("response.done"))[-1]
    (call,) = waits["required_input"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    await socket.send(type="response.append", response_id=waits["response_id"], input=[output])
    return dict((await socket.until(*ENDS))[-1]["response"])


@STORED_OR_NOT
@WITH_AND_WITHOUT_SESSIONS
async def test_a_turn_of_several_steps_does_not_end_its_loop(make: type[FakeVllm], *, store: bool) -> None:
    fake = make()
    async with (
        in_front_of(fake, kv_tokens=4000) as (_, server),
        server.connect(headers=ROLLOUTS) as socket,
    ):
        after: dict[str, Any] = {}
        for turn in range(1, 4):
            response = await rolled_out(socket, fake, input="word " * 50, store=store, **after)
            after = {"previous_response_id": response["id"]}
            loops = await settled(server)
            assert (loops.paused, [each.turns for each in loops.listed]) == (1, [2 * turn])
        if isinstance(fake, FakeVllmWithSessions):
            assert len(fake.opened) == len(fake.contexts) == 1
    await until(lambda: store or loops_of(server).held_tokens == 0)


@WITH_AND_WITHOUT_SESSIONS
async def test_a_history_sent_again_after_hosted_calls_continues_its_loop(
    make: type[FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)
    fake, tools = make(), FakeServer(modern=True)
    await fake.start()
    try:
        engine = fake.engine(kv_tokens=4000)
        async with serving(tools) as served, serve(engine, mcp=(registered(served),)) as server:
            history: list[dict[str, Any]] = []
            for turn in range(1, 4):
                fake.script(Call("fake__add", '{"a": 1, "b": 2}'), Stop())
                history.append({"role": "user", "content": "word " * 50})
                _, response = await server.post(input=history, tools=[mcp()], store=False)
                assert response["status"] == "completed"
                history += response["output"]
                loops = await settled(server)
                assert (loops.paused, [each.turns for each in loops.listed]) == (1, [2 * turn])
    finally:
        await fake.close()


@pytest.mark.parametrize("step", ["first", "last"])
async def test_a_loop_that_is_steered_in_any_step_goes_before_one_that_waits(step: str) -> None:
    async with (
        in_front_of(FakeVllm(), kv_tokens=900) as (fake, server),
        server.connect(headers=ROLLOUTS) as steered,
        server.connect() as waiting,
    ):
        first, last = asyncio.Event(), asyncio.Event()
        fake.script(Say(("a", "b"), rest=first), Call("get_weather", '{"city": "Rome"}'), Stop())
        fake.script(Say(("c", "d"), rest=last), Stop())
        await steered.create(input="one " * 400, tools=[LENIENT], rollout=True, store=False)
        target = (await steered.until("response.output_text.delta"))[0]["response"]["id"]

        async def steer() -> None:
            await steered.send(type="response.steer", previous_response_id=target, input="three")
            await steered.until("response.steer.accepted")

        if step == "first":
            await steer()
        first.set()
        (call,) = (await steered.until("response.done"))[-1]["required_input"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        await steered.send(type="response.append", response_id=target, input=[output])
        await until(lambda: len(fake.requests) == 2)
        await waiting.create(input="two " * 500, store=False)
        await until(lambda: loops_of(server).waiting == 1)
        if step == "last":
            await steer()
        last.set()
        for _ in range(2):
            await steered.until(*ENDS)
        await waiting.until(*ENDS)
        assert ["three" in decoded(prompt) for prompt in fake.prompts] == [False, False, True, False]


async def test_a_response_that_ends_before_its_engine_is_asked_does_not_split_its_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATOR)
    fake, tools = FakeVllm(), FakeServer(modern=True)
    await fake.start()
    try:
        engine = fake.engine(kv_tokens=4000)
        async with (
            serving(tools) as served,
            serve(engine, mcp=(registered(served),)) as server,
            server.connect() as socket,
        ):
            one = await socket.response(input="one " * 400, store=False)
            listed, listing = asyncio.Event(), tools.on["tools/list"]

            async def late(exchange: Any) -> Any:
                await listed.wait()
                return await listing(exchange)

            tools.on["tools/list"] = late
            await socket.create(input="two", tools=[mcp()], store=False, previous_response_id=one["id"])
            target = (await socket.until("response.in_progress"))[0]["response"]["id"]
            await socket.send(type="response.steer", previous_response_id=target, input="three")
            await socket.until(*ENDS)
            listed.set()
            await socket.until(*ENDS)
            loops = await settled(server)
            assert (loops.paused, [each.turns for each in loops.listed]) == (1, [2])
    finally:
        await fake.close()


async def test_jobs_run_where_none_may_wait() -> None:
    idle = in_front_of(FakeVllm(), kv_tokens=4000, max_waiting=0)
    async with idle as (_, server), server.connect() as socket:
        await turns(socket, "one", "two")
