"""A server's life: start, serve, wind down.

Stopping is a visible sequence: no new connections; running responses may finish within the deadline; every
socket is told and closed with 1001; then engine and store are let go.
"""

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from typing import get_args

from aiohttp import web

from slipring.config import Config
from slipring.core.generation import Defaults
from slipring.engines.base import Engine
from slipring.engines.catalog import Catalog, Entry, open_engine
from slipring.engines.packing import positions
from slipring.errors import ApiError, StartupError
from slipring.models import ModelEntry
from slipring.protocol.items import Effort
from slipring.server.app import build_app
from slipring.server.background import Background
from slipring.server.clock import now
from slipring.server.sealing import open_seal
from slipring.server.service import Service, shutting_down
from slipring.stores.base import Store
from slipring.stores.catalog import open_store

log = logging.getLogger("slipring")

_TICK_S = 1.0
_PRUNE_INTERVAL_S, _PRUNE_PAUSE_S = 60.0, 0.1
_DAY_S = 86_400.0
_HTTP_SHUTDOWN_S = 1.0


class Server:
    """One listening server. ``start``, then ``stop``; or ``serve`` for a whole process."""

    def __init__(self, config: Config, *, engine: Engine | None = None, store: Store | None = None) -> None:
        """A server as configured; an ``engine`` or ``store`` of your own takes the place of the named one."""
        self.config = config
        self.catalog = _catalog(config, engine)
        known = positions()
        self._store = store or open_store(
            config.store, config.limits, known, retention_s=config.retention_days * _DAY_S
        )
        self.service = Service.assemble(config, self.catalog, self._store, known)
        self.background = Background(self.service)
        self._upkeep: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.port = config.port

    @property
    def base_url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}/v1"

    async def start(self) -> None:
        """Begin to serve, or raise ``StartupError`` with nothing left behind."""
        refuse_open_door(self.config)
        listener = _listen(self.config.host, self.config.port)
        try:
            await self._store.start()
            self.service.seal = await open_seal(self.config.seal_key_file, self._store)
            for engine in self.catalog.engines:
                await engine.start()
            # A vanished client must end its request, hence cancellation.
            runner = web.AppRunner(
                build_app(self.service, self.background),
                handler_cancellation=True,
                access_log=None,
                shutdown_timeout=_HTTP_SHUTDOWN_S,
            )
            await runner.setup()
            await web.SockSite(runner, listener, backlog=1024).start()
        except BaseException:
            listener.close()
            await self._let_go()
            raise
        self._runner = runner
        self.port = listener.getsockname()[1]
        self._ticker = asyncio.create_task(self._tick())
        self._upkeep = asyncio.create_task(self._keep_up())
        self.background.start()

    async def stop(self) -> None:
        """Wind down within the drain deadline, then let go of everything."""
        self.service.draining = True
        assert self._runner is not None
        assert self._ticker is not None
        for site in list(self._runner.sites):
            await site.stop()
        grace_s = self.config.limits.drain_timeout_s
        for client in list(self.service.clients):
            client.wind_down(shutting_down(), grace_s)
        await self._until_quiet(grace_s + 2 * _TICK_S)
        self._ticker.cancel()
        if self._upkeep is not None:
            self._upkeep.cancel()
        await self.background.close()
        await self._runner.cleanup()
        await self._let_go()

    async def serve(self, on_ready: Callable[["Server"], None]) -> None:
        """Serve until the process is told to stop."""
        stopping = asyncio.Event()

        def on_signal() -> None:
            if stopping.is_set():
                self._hurry.set()  # asked twice: do not wait for anybody
            stopping.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        starting, told = asyncio.create_task(self.start()), asyncio.create_task(stopping.wait())
        await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # a model may load for minutes
            starting.cancel()
            await asyncio.wait([starting])
            return
        try:
            await starting
        finally:
            told.cancel()
        on_ready(self)
        await stopping.wait()
        await self.stop()

    async def _let_go(self) -> None:
        await self.service.peers.close()
        for engine in self.catalog.engines:
            await engine.close()
        await self._store.close()

    async def _until_quiet(self, timeout_s: float) -> None:
        waits = [asyncio.create_task(self.service.quiet()), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            for client in list(self.service.clients):
                client.tick()
            self.service.parking.sweep(now())

    async def _keep_up(self) -> None:
        """Remove what has expired, little by little, and let other nodes know that this one is alive."""
        while True:
            try:
                await self.service.peers.announce()
                removed = await self._store.prune(now())
            except ApiError as error:
                log.warning("the store could not be looked after: %s", error.message)
                removed = 0
            except Exception:
                log.exception("looking after the store failed unexpectedly")
                removed = 0
            await asyncio.sleep(_PRUNE_PAUSE_S if removed else _PRUNE_INTERVAL_S)


def _catalog(config: Config, engine: Engine | None) -> Catalog:
    if engine is None and config.models:
        return Catalog.of_entries([_entry(model) for model in config.models])
    return Catalog.of_engine(engine or open_engine(config.engine), config.model)


def _entry(model: ModelEntry) -> Entry:
    given = dict(model.defaults)
    if given.get("effort") not in (None, *get_args(Effort)):
        known = ", ".join(get_args(Effort))
        raise StartupError(f"models.{model.name}.defaults: 'effort' must be one of {known}")
    return Entry(model.name, model.engine, model.model, model.aliases, Defaults(**given))


def refuse_open_door(config: Config) -> None:
    """Without keys, serve nobody but this machine."""
    if config.api_key or config.insecure_no_auth or _is_loopback(config.host):
        return
    raise StartupError(
        f"refusing to serve on {config.host} without API keys: configure one with --api-key or"
        " SLIPRING_API_KEYS, or say --insecure-no-auth"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot use the address {host}: {error.strerror}") from None
    except UnicodeError:
        raise StartupError(f"cannot use the address {host}: not a host name") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener
