"""Real routers in front of two and four servers: a chain, its session and its forks stay on one replica,
chains spread, and a replica that dies costs each of its chains one prefill.

``SLIPRING_TEST_ROUTERS`` names the directory of their executables. Run by ``make test-router``;
``make routers`` does the same with real vLLM servers.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from slipring.core.limits import Limits
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer, decoded
from tests.engines.fakes.vllm import FakeVllm
from tests.engines.fakes.vllm_sessions import FakeVllmWithSessions
from tests.harness import Running, Socket, serve
from tests.routers.processes import CONSISTENT, MANUAL, VLLM_ROUTER, Router, routed
from tests.server.raw import until

pytestmark = pytest.mark.router

CHAINS = 100
TURNS = 3
KV_TOKENS = 40_000

# smg takes no token ids in `/v1/completions`, so it cannot be in front of vLLM with this engine.
CASES = [
    *((router, FakeSglang, count) for router in (CONSISTENT, MANUAL) for count in (2, 4)),
    *((VLLM_ROUTER, kind, count) for kind in (FakeVllm, FakeVllmWithSessions) for count in (2, 4)),
]


class Fleet(NamedTuple):
    """Servers behind a router, behind slipring."""

    fakes: list[Any]
    server: Running

    @property
    def loops(self) -> Any:
        (engine,) = self.server.service.catalog.engines
        return engine.status().loops

    def readers(self, said: str) -> list[Any]:
        """The servers that have read a text."""
        return [fake for fake in self.fakes if any(said in decoded(prompt) for prompt in fake.prompts)]


@asynccontextmanager
async def fleet(router: Router, kind: type[FakeTokenServer], count: int) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fakes = [kind() for _ in range(count)]
        for number, fake in enumerate(fakes):
            if kind is not FakeSglang:
                fake.replica = f"r{number};kv_tokens={KV_TOKENS}"
            await fake.start()
            stack.push_async_callback(fake.close)
        url = await stack.enter_async_context(routed(router, *(fake.url for fake in fakes)))
        options = fakes[0].options()
        engine = kind.maker.from_options(
            f"{url},tokenizer={options.tokenizer},model={options.model},context={options.context},"
            f"kv_tokens={KV_TOKENS}"
        )
        limits = Limits(recognised_s=0, parked_s=0)
        yield Fleet(fakes, await stack.enter_async_context(serve(engine, limits=limits)))


async def run_chain(server: Running, number: int) -> None:
    async with server.connect() as socket:
        after: dict[str, str] = {}
        for turn in range(TURNS):
            said = f"chain {number:03} turn {turn}"
            response = await socket.response(input=said, store=False, **after)
            assert response["status"] == "completed", response["error"]
            after = {"previous_response_id": response["id"]}
        await socket.response(input="a fork", store=False, stream_id="fork", **after)


def named(case: Any) -> str:
    return case.__name__ if isinstance(case, type) else str(case)


@pytest.mark.parametrize(("router", "kind", "count"), CASES, ids=named)
async def test_a_chain_stays_on_its_replica_and_chains_spread(
    router: Router, kind: type[FakeTokenServer], count: int
) -> None:
    async with fleet(router, kind, count) as it:
        for first in range(0, CHAINS, 10):
            await asyncio.gather(*(run_chain(it.server, number) for number in range(first, first + 10)))
        # All turns of a chain and its fork, on one replica.
        placed = [it.readers(f"chain {number:03} turn 0") for number in range(CHAINS)]
        assert all(len(readers) == 1 for readers in placed)
        shares = [sum(readers[0] is fake for readers in placed) for fake in it.fakes]
        assert min(shares) >= CHAINS // count // 4
        replicas = it.loops.replicas
        assert len(replicas) == count
        assert all(each.name for each in replicas)
        # Every session was ended on the replica where it was.
        if kind is FakeVllmWithSessions:
            await until(lambda: not any(fake.contexts for fake in it.fakes))
            assert sum(len(fake.opened) for fake in it.fakes) > 0


@pytest.mark.parametrize(("router", "kind", "count"), CASES, ids=named)
async def test_a_replica_that_dies_costs_each_of_its_chains_one_prefill(
    router: Router, kind: type[FakeTokenServer], count: int
) -> None:
    async with fleet(router, kind, count) as it, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(it.server.connect()) for _ in range(6 * count)]
        latest: list[dict[str, Any]] = [{}] * len(sockets)

        async def turn(at: int, socket: Socket, said: str) -> None:
            after = {"previous_response_id": latest[at]["id"]} if latest[at] else {}
            latest[at] = await socket.response(input=f"chain {at:03} {said}.", store=False, **after)
            assert latest[at]["status"] == "completed", latest[at]["error"]

        async def all_turns(said: str) -> None:
            await asyncio.gather(*(turn(at, socket, said) for at, socket in enumerate(sockets)))

        for number in range(2):
            await all_turns(f"turn {number}")
        dead = it.fakes[0]
        moved = [at for at in range(len(sockets)) if dead in it.readers(f"chain {at:03} ")]
        await dead.close()
        dead_prompts = len(dead.prompts)
        for number in range(2, 5):
            await all_turns(f"turn {number}")
        assert len(dead.prompts) == dead_prompts
        for at in range(len(sockets)):
            readers = it.readers(f"chain {at:03} turn 0")
            assert len(readers) == (2 if at in moved else 1)
        assert it.loops.paused == len(sockets)
        assert len(it.loops.replicas) == count - 1
        await dead.start()  # for its end
