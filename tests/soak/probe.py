"""Measures one small turn beside the echo of a bare aiohttp socket, again and again.

    python -m tests.soak.probe

serves the echo. Both are measured by the same process within the same moment, so what slows the machine down
slows both. The process of the echo is about as busy as a server under the soak, because a busy machine lets
processes wait that compute and not those that sleep.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
_NEVER_MS = 86_400_000.0
_ECHOED = '{"type":"response.output_text.delta","delta":"word"}' * 4


class Probe:
    """Times since the last cut."""

    def __init__(self) -> None:
        self._turns_ms: list[float] = []
        self._echoes_ms: list[float] = []

    def cut(self) -> tuple[float, float]:
        """The times of a turn and of an echo since the last cut, in ms; a day if there was none.

        Both are the 10th percentile, what they take at the best moments: a median would show what else the
        machine did.
        """
        found = tuple(_tenth(each) for each in (self._turns_ms, self._echoes_ms))
        self._turns_ms, self._echoes_ms = [], []
        return found[0], found[1]

    async def run(self, urls: list[str], echo_url: str) -> None:
        headers = {"Authorization": f"Bearer {KEYS['alpha']}"}
        for number in range(sys.maxsize):
            url = urls[number % len(urls)]
            async with (
                connected(url, headers) as socket,
                aiohttp.ClientSession() as http,
                http.ws_connect(echo_url) as echo,
            ):
                for _ in range(_TURNS):
                    await asyncio.sleep(_EVERY_S)
                    chain, sent = Chain(PROBED, "Answer.", store=False), [message("go")]
                    began = time.perf_counter()
                    await echo.send_str(_ECHOED)
                    await echo.receive_str()
                    echoed = time.perf_counter()
                    events = await socket.turn(chain.create(*sent))
                    ended = time.perf_counter()
                    chain.took(sent, events)
                    self._echoes_ms.append((echoed - began) * 1e3)
                    self._turns_ms.append((ended - echoed) * 1e3)


def _tenth(values: list[float]) -> float:
    return sorted(values)[len(values) // 10] if values else _NEVER_MS


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """The URL of an echo, served by another process while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.soak.probe"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
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
