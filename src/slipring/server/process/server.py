"""A server's life: start, serve, wind down.

Stopping is a visible sequence: no new connections; running responses may finish within the deadline; every
socket is told and closed with 1001; then engine and store are let go.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, get_args

from aiohttp import web

from slipring.config import Config
from slipring.core.generation import Defaults
from slipring.engines.base import Engine
from slipring.engines.catalog import Catalog, Entry, open_engine
from slipring.engines.packing import positions
from slipring.engines.tokens.tokenizing import Tokenizing
from slipring.errors import StartupError, Unavailable
from slipring.models import ModelEntry
from slipring.protocol.items import Effort
from slipring.server.access.seal_keys import open_seal
from slipring.server.background.runs import Background
from slipring.server.clock import now
from slipring.server.cluster.maintenance import Upkeep
from slipring.server.connections.acceptor import Acceptor
from slipring.server.connections.file_descriptors import tell_room
from slipring.server.connections.http_connection import HttpConnection, connection_factory
from slipring.server.endpoints.app import build_app
from slipring.server.process.listener import base_url, join, listen, refuse_open_door
from slipring.server.process.memory_trim import FreedMemory, find_trim
from slipring.server.process.runtime import favour_the_loop, http_logger
from slipring.server.process.shutdown import Stopping
from slipring.server.process.worker_messages import Serving
from slipring.server.service import Service, shutting_down
from slipring.stores.base import Store
from slipring.stores.catalog import open_store

_TICK_S = 1.0
_DAY_S = 86_400.0
_HTTP_SHUTDOWN_S = 1.0
_LINGERING_S = 5.0
"""How long the body of a refused request is still read, so that its client gets to see the answer."""


class Server:
    """One listening server. ``start``, then ``stop``; or ``serve`` for a whole process."""

    def __init__(
        self,
        config: Config,
        *,
        engine: Engine | None = None,
        store: Store | None = None,
        open_by_name: Callable[[str], Engine] = open_engine,
    ) -> None:
        """A server as configured; an ``engine`` or ``store`` of your own takes the place of the named one.
        ``open_by_name`` makes the engines that the configuration names."""
        self.config = config
        self.catalog = _catalog(config, engine, open_by_name)
        tokenizing = Tokenizing(config.limits)
        for served in self.catalog.engines:
            served.tokenizing = tokenizing
        known = positions()
        self._store = store or open_store(
            config.store, config.limits, known, retention_s=config.retention_days * _DAY_S
        )
        self.service = Service.assemble(config, self.catalog, self._store, known)
        for each in self.catalog.engines:
            each.compiler = self.service.compiler
        self.background = Background(self.service)
        self._upkeep = Upkeep(self.service)
        counted = (self.service.requests, self.service.connections.unread)
        self._freed_memory = FreedMemory(counted, find_trim())
        self._runner: web.AppRunner | None = None
        self._acceptors: list[Acceptor] = []
        self._ticker: asyncio.Task[None] | None = None
        self.stopping = Stopping()
        self.port = config.port

    @property
    def base_url(self) -> str:
        return base_url(self.config.host, self.port)

    async def start(self) -> None:
        """Begin to serve, or raise ``StartupError`` with nothing left behind."""
        favour_the_loop()
        try:
            listener = await self._unlock()
        except BaseException:
            await self._let_go()
            raise
        try:
            for engine in self.catalog.engines:
                await engine.start()
            # A vanished client must end its request, hence cancellation.
            runner = web.AppRunner(
                build_app(self.service, self.background),
                handler_cancellation=True,
                shutdown_timeout=_HTTP_SHUTDOWN_S,
            )
            await runner.setup()
            assert runner.server is not None
            make = connection_factory(runner.server, self.service.connections, **self._http_options())
            await self._open_to_peers(make)
            self._accept(listener, make)
        except BaseException:
            for acceptor in self._acceptors:
                await acceptor.close()
            listener.close()
            await self._let_go()
            raise
        self._runner = runner
        tell_room(self.service.connections.room, self.config.limits.max_connections)
        self.port = listener.getsockname()[1]
        self._ticker = asyncio.create_task(self._tick())
        self._upkeep.start()
        self.background.start()

    async def _unlock(self) -> socket.socket:
        """Get the store ready and the address taken, for those who may come in."""
        await self._store.start()
        try:
            await self.service.keyring.start()
            self.service.seal = await open_seal(self.config.seal_key_file, self._store)
        except Unavailable as error:
            raise StartupError(error.message) from None
        if self.service.keyring.is_open:
            refuse_open_door(self.config)
        open_port = join if self.config.workers > 1 else listen
        return open_port(self.config.host, self.config.port)

    def _http_options(self) -> dict[str, Any]:
        """What every HTTP connection is told, in aiohttp's terms."""
        return {
            "access_log": None,
            "logger": http_logger(),
            "keepalive_timeout": self.config.limits.keepalive_timeout_s,
            "lingering_time": _LINGERING_S,
        }

    def _accept(self, listener: socket.socket, make: Callable[[], HttpConnection]) -> None:
        acceptor = Acceptor(listener, self.service.connections, make)
        self._acceptors.append(acceptor)
        acceptor.start()

    async def _open_to_peers(self, make: Callable[[], HttpConnection]) -> None:
        """Let other nodes ask for what was parked here: at a URL that is given, or among workers."""
        if self.config.node_url:
            await self.service.peers.open(self.config.node_url)
        elif self.config.workers > 1:
            # The port that all share leads to any of them; this one leads here.
            private = listen("127.0.0.1", 0)
            self._accept(private, make)
            await self.service.peers.open(f"http://127.0.0.1:{private.getsockname()[1]}")

    def describe(self) -> Serving:
        """What is served, for whoever announces it."""
        keyring = self.service.keyring
        models = tuple(model.name for model in self.catalog)
        return Serving(models, self._store.name, str(keyring), keyring.is_open)

    async def stop(self) -> None:
        """Wind down within the drain deadline, then let go of everything."""
        self.service.draining = True
        assert self._runner is not None
        assert self._ticker is not None
        for acceptor in self._acceptors:
            await acceptor.close()
        grace_s = self.config.limits.drain_timeout_s
        for client in list(self.service.clients):
            client.wind_down(shutting_down(), grace_s)
        await self._until_quiet(grace_s + 2 * _TICK_S)
        self._ticker.cancel()
        await self.background.close()
        await self._upkeep.stop()
        await self._runner.cleanup()
        await self._let_go()

    async def serve(self, on_ready: Callable[["Server"], None]) -> None:
        """Serve until the process is told to stop."""
        self.stopping.heed_signals()
        await self.run(on_ready)

    async def run(self, on_ready: Callable[["Server"], None]) -> None:
        """Serve until ``stopping`` is asked to, by whomever."""
        if await self.stopping.unless_asked(self.start()):
            on_ready(self)
            await self.stopping.asked.wait()
            await self.stop()

    async def _let_go(self) -> None:
        async with AsyncExitStack() as last:  # each of them, whatever becomes of the others
            last.push_async_callback(self._store.close)
            last.push_async_callback(self.service.sandbox.close)
            for engine in self.catalog.engines:
                last.push_async_callback(engine.close)
            last.push_async_callback(self.service.peers.close)

    async def _until_quiet(self, timeout_s: float) -> None:
        waits = [asyncio.create_task(self.service.quiet()), asyncio.create_task(self.stopping.hurried.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _tick(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(
                _TICK_S - clock() % _TICK_S
            )  # until a second begins: that is when alarms are due
            await self.service.tick()
            await self._freed_memory.give_back(clock())
            self.service.parking.sweep(now())
            self.service.connections.tick()


def _catalog(config: Config, engine: Engine | None, open_by_name: Callable[[str], Engine]) -> Catalog:
    if engine is None and config.models:
        return Catalog.of_entries([_entry(model) for model in config.models], open_by_name)
    return Catalog.of_engine(engine or open_by_name(config.engine), config.model)


def _entry(model: ModelEntry) -> Entry:
    given = dict(model.defaults)
    if given.get("effort") not in (None, *get_args(Effort)):
        known = ", ".join(get_args(Effort))
        raise StartupError(f"models.{model.name}.defaults: 'effort' must be one of {known}")
    return Entry(model.name, model.engine, model.model, model.aliases, Defaults(**given))
