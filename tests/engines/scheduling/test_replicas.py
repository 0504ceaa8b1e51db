"""Chains of real sockets over several replicas behind a router: each stays where its context is, loops are
counted there, and one whose replica is gone pays for one prefill."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from slipring.core.limits import Limits
from tests.engines.chains import turns
from tests.engines.fakes.router import FakeRouter
from tests.engines.fakes.server import Say, Stall
from tests.engines.fakes.tokens import FakeTokenServer, decoded
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions, session_of
from tests.harness import Running, serve
from tests.server.raw import until

pytestmark = pytest.mark.usefixtures("compiled_here")

KV_TOKENS = 4000


class Fleet(NamedTuple):
    fakes: list[Any]
    router: FakeRouter
    server: Running

    @property
    def loops(self) -> Any:
        (engine,) = self.server.service.catalog.engines
        return engine.status().loops

    @property
    def held(self) -> dict[str, int]:
        return {each.name: each.held_tokens for each in self.loops.replicas}

    def replica_of(self, said: str) -> Any:
        """The fake that has read this text, and the only one."""
        (found,) = [fake for fake in self.fakes if any(said in decoded(prompt) for prompt in fake.prompts)]
        return found


@asynccontextmanager
async def fleet(kind: type[FakeTokenServer], count: int = 2, **options: Any) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fakes = [kind() for _ in range(count)]
        for number, fake in enumerate(fakes):
            fake.replica = f"r{number};kv_tokens={KV_TOKENS}"
            await fake.start()
            stack.push_async_callback(fake.close)
        router = await stack.enter_async_context(FakeRouter([fake.url for fake in fakes]))
        patient = {"first_token_timeout_s": 600.0, "idle_timeout_s": 600.0, **options}
        known = fakes[0].options(**patient)
        engine = kind.maker(type(known)(**{**vars_of(known), "url": router.url}))
        limits = Limits(ping_interval_s=0, recognised_s=0, parked_s=0)
        yield Fleet(fakes, router, await stack.enter_async_context(serve(engine, limits=limits)))


def vars_of(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


async def test_loops_are_counted_where_they_are() -> None:
    async with fleet(FakeVllm, kv_tokens=KV_TOKENS) as it, AsyncExitStack() as stack:
        for number in range(4):
            socket = await stack.enter_async_context(it.server.connect())
            await turns(socket, f"chain {number} " * 50, "go on")
        loops = it.loops
        assert (loops.paused, loops.capacity_tokens) == (4, 2 * KV_TOKENS * 95 // 100)
        assert set(it.held) == {"r0", "r1"}
        assert it.held["r0"] == it.held["r1"] == loops.held_tokens // 2
        assert sorted(each.replica for each in loops.listed) == ["r0", "r0", "r1", "r1"]


async def test_the_size_of_a_cache_is_what_its_answers_say() -> None:
    async with fleet(FakeVllm, kv_tokens=0) as it, it.server.connect() as socket:
        # This server does not report the size otherwise, and is not scheduled then.
        await turns(socket, "hi")
        assert it.loops is None
    WithSize = type("WithSize", (FakeVllm,), {"replica": ""})
    async with fleet(WithSize, kv_tokens=100) as it, it.server.connect() as socket:
        await turns(socket, "hi")
        assert [each.capacity_tokens for each in it.loops.replicas] == [95, 95]  # as the option says


async def test_a_loop_waits_for_room_on_its_replica_alone() -> None:
    async with (
        fleet(FakeVllm, kv_tokens=700) as it,
        it.server.connect(abandoned=True) as first,
        it.server.connect() as second,
        it.server.connect() as third,
    ):
        one = (await turns(first, "first"))[0]
        two = (await turns(second, "second"))[0]
        it.replica_of("first").script(Say(("a",)), Stall())
        await first.create(input="word " * 300, previous_response_id=one["id"], store=False)
        await it.replica_of("first").stalled.wait()
        # A third chain goes to the first one's replica by the router; slipring expects it where room is.
        await turns(second, "word " * 300, after=two["id"])
        await turns(third, "third")
        assert it.loops.waiting == 0


async def test_a_chain_its_session_its_fork_and_its_prefill_reach_one_replica() -> None:
    async with fleet(FakeVllmWithSessions, kv_tokens=KV_TOKENS) as it:
        async with it.server.connect() as socket:
            _, two = await turns(socket, "the question", "and then")
            fake = it.replica_of("the question")
            assert session_of(fake.requests[-1]) is not None
            await socket.response(
                input="a fork", previous_response_id=two["id"], stream_id="fork", store=False
            )
            await turns(socket, "more", after=two["id"])
            assert it.replica_of("a fork") is it.replica_of("more") is fake
            assert len(fake.contexts) == len(fake.opened) >= 1
        # Each session is ended where it is.
        await until(lambda: not fake.contexts)
        assert it.router.unrouted == []


@pytest.mark.parametrize("is_missed", [True, False])
async def test_a_replica_that_dies_costs_each_of_its_chains_one_prefill(is_missed: bool) -> None:
    async with fleet(FakeVllmWithSessions, count=3, kv_tokens=KV_TOKENS) as it, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(it.server.connect()) for _ in range(6)]
        latest = [(await turns(socket, f"chain {at}", "go on"))[-1] for at, socket in enumerate(sockets)]
        dead = it.fakes[0]
        moved = [at for at in range(6) if it.replica_of(f"chain {at}") is dead]
        assert len(moved) == 2
        it.router.out.add(dead.url)
        if not is_missed:
            it.router.dead.add(dead.url)
        before = {id(fake): len(fake.requests) for fake in it.fakes}
        for at, socket in enumerate(sockets):
            latest[at] = (await turns(socket, "later", after=latest[at]["id"]))[-1]
        later = [request for fake in it.fakes for request in fake.requests[before[id(fake)] :]]
        # A moved chain asks for its session, which is not there, and is sent whole into a new one.
        whole = [request for request in later if request.get("held", 0) == 0]
        assert len(whole) == len(moved)
        assert it.loops.paused == 6
        assert set(it.held) == {"r1", "r2"}
        for at, socket in enumerate(sockets):
            latest[at] = (await turns(socket, "and later", after=latest[at]["id"]))[-1]
        # One that went on without a session has opened one since, where its context is by now.
        assert it.loops.paused == 6
        assert all(fake.requests[-1]["held"] or session_of(fake.requests[-1]) for fake in it.fakes[1:])
        assert len(dead.requests) == before[id(dead)]


async def test_a_replica_that_was_restarted_is_another_one() -> None:
    async with fleet(FakeVllm, count=1, kv_tokens=KV_TOKENS) as it, it.server.connect() as socket:
        (one,) = await turns(socket, "word " * 100)
        assert set(it.held) == {"r0"}
        it.fakes[0].replica = "r1"
        await turns(socket, "go on", after=one["id"])
        assert set(it.held) == {"r1"}
        assert it.loops.paused == 1
