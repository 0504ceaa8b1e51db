"""A lower bound for the cost of a server: a bare aiohttp WebSocket that sends recorded frames.

    python -m slipring.commands.bench.subject.bare_server TOKENS_PER_S

It gets the frames of one answer, and sends them for every message that it receives, each delta at the pace of
the simulated engine. It ends when its standard input does.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import WSMsgType, web

from slipring.commands.argument_parser import CommandFailed
from slipring.commands.bench.client.exchange import FIRST_TOKENS, TERMINAL, Fields, decode, encode
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.subject.endpoint import OpenEndpoint
from slipring.commands.bench.subject.processes import Meter

_ENDS = (*TERMINAL, "error")


@asynccontextmanager
async def start_bare(frames: Sequence[str], tokens_per_s: float) -> AsyncIterator[OpenEndpoint]:
    """Run a bare server in a process of its own until the block ends. Raises ``CommandFailed``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slipring.commands.bench.subject.bare_server", str(tokens_per_s)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the bench alone
    )
    try:
        assert process.stdout is not None
        if not (url := (await process.stdout.readline()).decode().strip()):
            raise CommandFailed(f"the bare server exited with code {await process.wait()}")
        async with aiohttp.ClientSession() as http:
            await http.post(f"{url}/frames", json=list(frames))
        yield OpenEndpoint(url, Meter(process.pid))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def recorded_frames(access: Access, fields: Fields) -> list[str]:
    """The frames of one answer over a WebSocket."""
    frames: list[str] = []
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(access.url, headers=access.headers(), max_msg_size=0) as socket,
    ):
        await socket.send_frame(encode({"type": "response.create", **fields}), WSMsgType.TEXT)
        async with asyncio.timeout(access.timeout_s):
            while not frames or decode(frames[-1]).get("type") not in _ENDS:
                frames.append(await socket.receive_str())
    return frames


async def _serve(tokens_per_s: float) -> None:
    frames: list[tuple[str, bool]] = []
    """Each with whether it is a delta, which waits for its time."""

    async def take(request: web.Request) -> web.Response:
        frames[:] = [(frame, decode(frame).get("type") in FIRST_TOKENS) for frame in await request.json()]
        return web.Response()

    async def send(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):  # its client has left
            async for _ in socket:
                await answer(socket)
        return socket

    async def answer(socket: web.WebSocketResponse) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        for frame, is_delta in frames:
            if is_delta and tokens_per_s:
                due += 1 / tokens_per_s
                if (wait_s := due - clock()) > 0:
                    await asyncio.sleep(wait_s)
            await socket.send_str(frame)

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/frames", take)
    app.router.add_get("/responses", send)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    from slipring.commands.bench.command import loop_factory
    from slipring.commands.bench.subject.machine import raise_file_limit

    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(float(sys.argv[1])))
