"""Workers that share one embedded engine, as real processes."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.commands.test_cli import Process
from tests.engines.llama.test_llama_engine import ASK, GREEDY
from tests.harness import TERMINAL
from tests.server.process.test_workers import children_of, connected, health_by_pid, is_alive, until, workers

ENGINE, WORKER = "/slipring/engines/llama/child_program.py", "slipring.server.process.worker_start"


def with_model(path: str) -> tuple[str, str]:
    return ("--engine", f"llama:{path},slots=1,context=512,threads=1")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def engines_of(server: Process) -> list[int]:
    """The embedded engines of a server, whichever of its processes has started them."""
    parents = [server.process.pid, *children_of(server.process.pid)]
    below = {child for parent in parents if is_alive(parent) for child in children_of(parent)}
    return [pid for pid in below if ENGINE in command_of(pid) and is_alive(pid)]


class Chain:
    """A conversation over one socket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws
        self._latest: str | None = None

    async def turn(self) -> dict[str, Any]:
        """Send one more message and return the response."""
        await self._ws.send_json(
            {"type": "response.create", "input": ASK, "previous_response_id": self._latest, **GREEDY}
        )
        while True:
            event = await self._ws.receive_json(timeout=300)
            if event["type"] == "error":
                return {"status": "failed", **event}
            if event["type"] in TERMINAL:
                response = event["response"]
                if response["status"] != "failed":
                    self._latest = response["id"]
                assert isinstance(response, dict)
                return response


@asynccontextmanager
async def chains(server: Process) -> AsyncIterator[list[Chain]]:
    """Chains on sockets of all workers."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made: list[Chain] = []
        while not made or len(await connected(server)) < 2:
            ws = await stack.enter_async_context(http.ws_connect(f"{server.url}/responses"))
            made.append(Chain(ws))
        yield made


async def answers_again(chain: Chain) -> dict[str, Any]:
    """Repeat a turn until it succeeds: the engine may be restarting, and the chain may have to start over."""
    while (response := await chain.turn())["status"] == "failed":
        chain._latest = None
    return response


async def all_well(server: Process) -> None:
    await health_by_pid(
        server.url,
        lambda answers: len(answers) == 2 and all(body["status"] == "ok" for body in answers.values()),
    )


async def test_one_engine_serves_all_workers_and_is_restarted_for_all(tiny_path: str) -> None:
    async with workers(*with_model(tiny_path)) as server:
        (engine,) = engines_of(server)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine, number)  # as Ctrl-C and service managers do: running responses need it
        for pid in children_of(server.process.pid):
            assert command_of(pid).endswith((f"{ENGINE}\0", f"-m\0{WORKER}\0")), "and no key"
        async with chains(server) as made:
            for chain in made:
                first, second = await chain.turn(), await chain.turn()
                assert first["output"]
                assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
            os.kill(engine, signal.SIGKILL)
            await until(lambda: engines_of(server) not in ([], [engine]))
            await all_well(server)
            for chain in made:
                assert (await answers_again(chain))["output"]
        (engine,) = engines_of(server)
        assert await server.stop() == 0
        assert not is_alive(engine)


async def test_a_replacement_worker_uses_the_same_engine(tiny_path: str) -> None:
    async with workers(*with_model(tiny_path)) as server:
        (engine,) = engines_of(server)
        first, second = set(children_of(server.process.pid)) - {engine}
        os.kill(first, signal.SIGKILL)
        await until(lambda: not is_alive(first))
        answers = await health_by_pid(server.url, lambda answers: len(answers.keys() - {first}) == 2)
        assert second in answers
        async with chains(server) as made:
            for chain in made:
                assert (await chain.turn())["output"]
        assert engines_of(server) == [engine]


async def test_the_engine_exits_when_the_supervisor_is_killed(tiny_path: str) -> None:
    async with workers(*with_model(tiny_path)) as server:
        pids = children_of(server.process.pid)
        assert len(pids) == 3
        server.process.kill()
        await until(lambda: not any(map(is_alive, pids)))


async def test_an_engine_that_hangs_is_restarted_by_the_supervisor(tiny_path: str, tmp_path: Path) -> None:
    # Every interpreter imports sitecustomize: the only way to patch a constant in another process.
    (tmp_path / "sitecustomize.py").write_text(
        "import slipring.engines.llama.api as api\napi._SILENCE_TIMEOUT_S = 5.0\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with workers(*with_model(tiny_path), PYTHONPATH=path) as server, chains(server) as made:
        (engine,) = engines_of(server)
        os.kill(engine, signal.SIGSTOP)
        failed = await made[0].turn()
        assert failed["status"] == "failed"
        await until(lambda: engines_of(server) not in ([], [engine]))
        await all_well(server)
        for chain in made:
            assert (await answers_again(chain))["output"]
