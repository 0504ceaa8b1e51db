"""Starts of engines in front of servers: constructors open nothing, and starts do not block the loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from slipring.base.errors import StartupError
from slipring.engines.catalog import open_engine, open_owner
from tests.engines.fakes.server import started
from tests.engines.fakes.vllm import FakeVllm

KINDS = ("chat", "responses", "vllm", "sglang", "llama")


@pytest.mark.parametrize("kind", KINDS)
def test_a_constructor_opens_no_socket(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a socket")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "create_connection", forbidden)
    engine = open_engine(f"{kind}:http://127.0.0.1:9")
    assert engine.models() == []
    open_owner(f"{kind}:http://127.0.0.1:9", 2)


class SlowServer:
    """Answers nothing until it is released; then every request with a list of one model."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.is_released = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.is_asked.set()
        await self.is_released.wait()
        return web.json_response({"data": [{"id": "slow"}]})


@asynccontextmanager
async def slow_server() -> AsyncIterator[tuple[SlowServer, str]]:
    server = SlowServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_with_a_slow_server_does_not_block_the_loop(kind: str) -> None:
    """Engine and server share this loop: if the engine blocked it, the server could never answer."""
    async with slow_server() as (server, url), asyncio.timeout(300):

        async def release() -> None:
            await server.is_asked.wait()
            server.is_released.set()

        releasing = asyncio.create_task(release())
        if kind in ("chat", "responses"):
            async with started(open_engine(f"{kind}:{url}")) as engine:
                assert [model.name for model in engine.models()] == ["slow"]
        else:
            with pytest.raises(StartupError):
                async with started(open_engine(f"{kind}:{url}")):
                    pass
        await releasing


async def test_the_owner_of_a_slow_llama_server_does_not_block_the_loop() -> None:
    async with slow_server() as (server, url), asyncio.timeout(300):
        owner = open_owner(f"llama:{url}", 2)
        assert owner is not None
        starting = asyncio.create_task(owner.start(lambda: None))
        await server.is_asked.wait()
        server.is_released.set()
        with pytest.raises(StartupError, match="0 slots, and 2 workers need one each"):
            await starting


class CountingVllm(FakeVllm):
    """Records the connections of requests to ``/tokenize``."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: set[object] = set()

    async def _tokenize(self, request: web.Request) -> web.Response:
        self.connections.add(request.transport)
        return await super()._tokenize(request)


@pytest.mark.parametrize("threads", [1, 4])
async def test_a_remote_vocabulary_keeps_its_connections(threads: int) -> None:
    fake = CountingVllm()
    await fake.start()
    try:
        async with started(fake.engine(tokenizer="", model="", context=0)) as engine:
            vocabulary = engine.renderer.vocabulary
            before = len(fake.tokenized)

            def tokenize(thread: int) -> None:
                for number in range(100 // threads):
                    vocabulary.encode(f"text number {number} of thread {thread}")

            await asyncio.gather(*(asyncio.to_thread(tokenize, thread) for thread in range(threads)))
            assert len(fake.tokenized) - before == 100
            assert len(fake.connections) <= threads
    finally:
        await fake.close()
