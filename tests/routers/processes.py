"""Routers as processes, with the options that a chain needs to stay where it is."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from tests.free_port import free_port

DIRECTORY = "SLIPRING_TEST_ROUTERS"
"""Names the directory of the routers' executables."""


@dataclass(frozen=True)
class Router:
    """A router and the policy that it is started with."""

    command: tuple[str, ...]
    policy: str

    def __str__(self) -> str:
        return f"{self.command[0]} {self.policy}"


CONSISTENT = Router(("smg", "launch"), "consistent_hashing")
MANUAL = Router(("smg", "launch"), "manual")
VLLM_ROUTER = Router(("vllm-router",), "consistent_hash")

HEALTH = {
    # Servers that are there, are asked for every second; one that does not answer once gets nothing more.
    "--worker-startup-check-interval": 1,
    "--health-check-interval-secs": 1,
    "--health-check-timeout-secs": 2,
    "--health-failure-threshold": 1,
    "--health-success-threshold": 1,
}


@asynccontextmanager
async def routed(router: Router, *urls: str) -> AsyncIterator[str]:
    """A router in front of these servers, once it has accepted them."""
    directory = os.environ.get(DIRECTORY)
    if not directory:
        pytest.fail(f"{DIRECTORY} is not set: it names a directory of executables", pytrace=False)
    name, *rest = router.command
    port, metrics = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        *(f"{directory}/{name}", *rest, "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", router.policy, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *(word for option, value in HEALTH.items() for word in (option, str(value))),
        *("--log-level", "error", "--worker-urls", *urls),
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(300), aiohttp.ClientSession() as http:
            while not await has_workers(http, url, urls):
                assert process.returncode is None, "the router has ended"
                await asyncio.sleep(0.2)
        yield url
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 300)
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
