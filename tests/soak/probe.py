"""Measures one small turn beside the echo of a bare aiohttp socket, again and again.

    python -m tests.soak.probe

serves the echo. Both are measured by the same process within the same moment, so what slows the machine down
slows both. The process of the echo is about as busy as a server under the soak, because a busy machine lets
processes wait that compute and not those that sleep. Linux counts how long each process waits for a CPU: only
those times count in which the processes waited least.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import aiohttp
from aiohttp import web

from tests.soak.chains import Chain, message
from tests.soak.clients import KEYS
from tests.soak.sockets import connected

PROBED = "probed"
"""The model of the probe, which answers at once."""
_TURNS = 20
"""Turns on one socket, after which another is opened."""
_EVERY_S = 0.1
_BUSY_S, _BUSY_EVERY_S = 0.002, 0.01
"""The process of the echo computes so long, and so often."""
_ECHOED = '{"type":"response.output_text.delta","delta":"word"}' * 4


class Probed(Protocol):
    """A server that is probed."""

    url: str

    def pids(self) -> list[int]:
        """Its processes."""


class Waiting:
    """How long the event loops of this process and of others have waited for a CPU."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._paths = [Path(f"/proc/{pid}/schedstat") for pid in (os.getpid(), *pids)]

    def read_ms(self) -> list[float]:
        """Of this process, and of each other one. 0 for one that has ended, and where nothing is counted."""
        return [_waited_ms(path) for path in self._paths]


def _waited_ms(path: Path) -> float:
    with suppress(OSError, ValueError, IndexError):
        return int(path.read_text().split()[1]) / 1e6
    return 0.0


class Times:
    """Times that something took, and how much of each the processes involved waited for a CPU."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []

    def add(self, took_ms: float, before_ms: Sequence[float], after_ms: Sequence[float]) -> None:
        """``before_ms``, ``after_ms``: of ``Waiting``. Of several other processes, any may have answered: the
        longest wait counts."""
        own, *others = (after - before for before, after in zip(before_ms, after_ms, strict=True))
        self._found.append(((own + max(others, default=0.0)) / took_ms, took_ms))

    def undisturbed_ms(self) -> float:
        """The median of the quarter in which the smallest share was waiting; 0 if there is none."""
        least = sorted(self._found)[: len(self._found) // 4 + 1]
        return statistics.median(took_ms for _, took_ms in least) if least else 0.0


class Probe:
    """Times since the last cut."""

    def __init__(self) -> None:
        self._turns, self._echoes = Times(), Times()

    def cut(self) -> tuple[float, float]:
        """The times of an undisturbed turn and of such an echo since the last cut, in ms; 0 if there was
        none."""
        turns, echoes = self._turns, self._echoes
        self._turns, self._echoes = Times(), Times()
        return turns.undisturbed_ms(), echoes.undisturbed_ms()

    async def run(self, servers: Sequence[Probed], echo_url: str, echo_pid: int) -> None:
        headers = {"Authorization": f"Bearer {KEYS['alpha']}"}
        for number in range(sys.maxsize):
            server = servers[number % len(servers)]
            of_echo, of_server = Waiting([echo_pid]), Waiting(server.pids())
            async with (
                connected(server.url, headers) as socket,
                aiohttp.ClientSession() as http,
                http.ws_connect(echo_url) as echo,
            ):
                for _ in range(_TURNS):
                    await asyncio.sleep(_EVERY_S)
                    chain, sent = Chain(PROBED, "Answer.", store=False), [message("go")]
                    before, began = of_echo.read_ms(), time.perf_counter()
                    await echo.send_str(_ECHOED)
                    await echo.receive_str()
                    took_ms = (time.perf_counter() - began) * 1e3
                    self._echoes.add(took_ms, before, of_echo.read_ms())
                    before, began = of_server.read_ms(), time.perf_counter()
                    events = await socket.turn(chain.create(*sent))
                    took_ms = (time.perf_counter() - began) * 1e3
                    self._turns.add(took_ms, before, of_server.read_ms())
                    chain.took(sent, events)


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[str, int]]:
    """The URL of an echo, and the process that serves it while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.soak.probe"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip(), process.pid
    finally:
        process.kill()
        await process.wait()


async def _serve() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(compress=False)
        await ws.prepare(request)
        async for received in ws:
            await ws.send_str(received.data)
        return ws

    app = web.Application()
    app.router.add_get("/", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
    busy = asyncio.create_task(_compute())
    await asyncio.to_thread(sys.stdin.read)  # until the soak ends, even if it is killed
    busy.cancel()


async def _compute() -> None:
    while True:
        await asyncio.sleep(_BUSY_EVERY_S)
        end = time.thread_time() + _BUSY_S
        while time.thread_time() < end:
            pass


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
