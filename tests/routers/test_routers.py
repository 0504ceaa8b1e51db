"""Real routers in front of two servers: a chain and its forks stay on one replica, chains spread over both.

``SLIPRING_TEST_ROUTERS`` names the directory of their executables. Run by ``make test-router``.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import FakeTokenServer, decoded
from tests.engines.fakes.vllm import FakeVllm
from tests.free_port import free_port
from tests.harness import Running, serve

pytestmark = pytest.mark.router

CHAINS = 100
TURNS = 3


@dataclass(frozen=True)
class Router:
    """A router and the policy that it is started with."""

    command: tuple[str, ...]
    policy: str
    kind: type[FakeTokenServer]
    """The servers that it is in front of."""

    def __str__(self) -> str:
        return f"{self.command[0]} {self.policy}"


ROUTERS = [
    # It takes no token ids in `/v1/completions`, so it cannot be in front of vLLM.
    Router(("smg", "launch"), "consistent_hashing", FakeSglang),
    Router(("smg", "launch"), "manual", FakeSglang),
    Router(("vllm-router",), "consistent_hash", FakeVllm),
]


@asynccontextmanager
async def routed(router: Router, *urls: str) -> AsyncIterator[str]:
    """A router in front of these servers, once it has accepted them."""
    directory = os.environ.get("SLIPRING_TEST_ROUTERS")
    if not directory:
        pytest.fail("SLIPRING_TEST_ROUTERS is not set: it names a directory of executables", pytrace=False)
    name, *rest = router.command
    port, metrics = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        *(f"{directory}/{name}", *rest, "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", router.policy, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *("--log-level", "error", "--worker-urls", *urls),
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(120), aiohttp.ClientSession() as http:
            while not await has_workers(http, url, urls):
                assert process.returncode is None, "the router has ended"
                await asyncio.sleep(0.2)
        yield url
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 60)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def has_workers(http: aiohttp.ClientSession, url: str, urls: tuple[str, ...]) -> bool:
    """Whether a router lists all servers, and none as unhealthy."""
    try:
        async with http.get(f"{url}/workers") as answer:
            listed = await answer.text()
    except aiohttp.ClientError:
        return False
    return all(each in listed for each in urls) and '"is_healthy":false' not in listed.replace(" ", "")


@asynccontextmanager
async def replicas(router: Router) -> AsyncIterator[tuple[list[FakeTokenServer], Running]]:
    """Two servers, behind a router, behind slipring."""
    fakes = [router.kind(), router.kind()]
    try:
        for fake in fakes:
            await fake.start()
        async with routed(router, *(fake.url for fake in fakes)) as url:
            options = fakes[0].options()
            engine = fakes[0].maker.from_options(
                f"{url},tokenizer={options.tokenizer},model={options.model},context={options.context}"
            )
            async with serve(engine) as server:
                yield fakes, server
    finally:
        for fake in fakes:
            await fake.close()


async def run_chain(server: Running, number: int) -> None:
    async with server.connect() as socket:
        after: dict[str, str] = {}
        for turn in range(TURNS):
            said = f"chain {number:03} turn {turn}"
            response = await socket.response(input=said, store=False, **after)
            assert response["status"] == "completed", response["error"]
            after = {"previous_response_id": response["id"]}
        await socket.response(input="a fork", store=False, stream_id="fork", **after)


@pytest.mark.parametrize("router", ROUTERS, ids=str)
async def test_a_chain_stays_on_its_replica_and_chains_spread(router: Router) -> None:
    async with replicas(router) as (fakes, server):
        for first in range(0, CHAINS, 10):
            await asyncio.gather(*(run_chain(server, number) for number in range(first, first + 10)))
        seen = [[decoded(prompt) for prompt in fake.prompts] for fake in fakes]
        placed = [
            [sum(f"chain {number:03} turn 0" in prompt for prompt in prompts) for prompts in seen]
            for number in range(CHAINS)
        ]
        # All turns of a chain and its fork, on one replica or the other.
        assert {tuple(sorted(counts)) for counts in placed} == {(0, TURNS + 1)}
        on_first = sum(counts[0] > 0 for counts in placed)
        assert CHAINS // 4 <= on_first <= CHAINS - CHAINS // 4
