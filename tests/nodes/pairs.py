"""Two nodes on one PostgreSQL store, and TCP relays in front of them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from slipring.engines.base import Engine
from tests.harness import FAST, Running, serve

_CHUNK = 65536


class Relay:
    """A port that forwards connections to its targets in turn, skipping those that refuse."""

    def __init__(self) -> None:
        self.targets: list[int] = []
        self.port = 0
        self._turns = itertools.count()
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._passing):
            task.cancel()
        if self._passing:
            await asyncio.wait(self._passing)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:  # the relay is closed
            pass
        finally:
            self._passing.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._connect()
        if found is None:
            return
        behind, onward = found
        asking = asyncio.create_task(_pump(reader, onward))
        try:
            await _pump(behind, writer)  # the connection ends when the node closes it
        finally:
            asking.cancel()
            await asyncio.wait([asking])
            onward.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the next target that accepts; stopping and dead nodes refuse."""
        for _ in range(len(self.targets)):
            target = self.targets[next(self._turns) % len(self.targets)]
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", target)
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    opened = Relay()
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def pair(
    store: str, *engines: str | Engine, reachable: bool = False, **settings: Any
) -> AsyncIterator[tuple[Running, Running]]:
    """Two nodes on a store. ``reachable``: each has a ``node_url``."""
    first, second = engines or (FAST, FAST)
    async with AsyncExitStack() as stack:
        nodes = []
        for engine in (first, second):
            front = await stack.enter_async_context(relay()) if reachable else None
            options: dict[str, Any] = {"node_url": front.url} if front is not None else {}
            node = await stack.enter_async_context(serve(engine, store=store, **options, **settings))
            if front is not None:
                front.targets = [node.server.port]
            nodes.append(node)
        yield nodes[0], nodes[1]


async def until(holds: Callable[[], bool], within_s: float = 300) -> None:
    """Poll: another node cannot set an event here."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def node_of(response: dict[str, Any]) -> str:
    """The id of the node that made a response, from the response id."""
    return str(response["id"]).removeprefix("resp_")[:8]
