"""A server: starts, serves and stops, and maintains the store meanwhile.

Stopping takes these steps: close the listeners; let running responses finish within the deadline; send every
socket an error and close it with 1001; close engines and store.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, get_args

from aiohttp import web

from slipring.base.errors import StartupError, Unavailable
from slipring.base.garbage_collection import FullCollections, exempt_from_collection
from slipring.base.periodic_tasks import PeriodicTasks
from slipring.config.settings import ADMIN_OFF, Config
from slipring.config.tables import ModelEntry
from slipring.core.generation import Defaults, Hosting
from slipring.engines.base import Engine
from slipring.engines.catalog import Catalog, Entry, open_engine, position_codec
from slipring.engines.tokens.tokenizer_threads import TokenizerThreads
from slipring.protocol.items.items import Effort
from slipring.server.access.auth import require_keys, require_one_tenant
from slipring.server.access.content_encryption import open_seal
from slipring.server.access.quotas import EXCHANGE_INTERVAL_S
from slipring.server.admin.listener import AdminListener
from slipring.server.admin.live_view import LiveView, ServerSource
from slipring.server.background.runs import Background
from slipring.server.clock import now, shared_now
from slipring.server.connections.acceptor import Acceptor
from slipring.server.connections.client_connection import HttpConnection, connection_factory, http_logger
from slipring.server.connections.open_connections import log_reduced_room
from slipring.server.endpoints.app import build_app
from slipring.server.observation.metrics import Metrics
from slipring.server.process.event_loop import LoopLag, shorten_switch_interval
from slipring.server.process.listening_sockets import base_url, bind_shared, listen
from slipring.server.process.memory_trim import MemoryTrimmer, find_malloc_trim
from slipring.server.process.process_metrics import resident_bytes
from slipring.server.process.shutdown import StopRequest, drain, print_wait, run_until
from slipring.server.process.worker_messages import Serving
from slipring.server.service import Service
from slipring.stores.pruning import PRUNE_INTERVAL_S
from slipring.stores.store import Store, open_store

if TYPE_CHECKING:
    from slipring.server.observation.recorder import Recorder
    from slipring.server.tracing.tracer import Tracer

_TICK_S = 1.0
_DAY_S = 86_400.0
_HTTP_SHUTDOWN_S = 1.0
_LINGERING_S = 5.0
"""Time for which the body of a rejected request is still read, so that its client receives the response."""


class Server:
    """One listening server. Call ``start``, then ``stop``; or ``serve``, which returns after a signal."""

    def __init__(
        self,
        config: Config,
        *,
        engine: Engine | None = None,
        store: Store | None = None,
        open_by_name: Callable[[str], Engine] = open_engine,
        number: int = 0,
        has_admin: bool = False,
    ) -> None:
        """``engine`` and ``store`` replace the configured ones; ``open_by_name`` opens configured engines.
        ``number``: of the worker that runs it. ``has_admin``: it serves the admin address itself."""
        self.config = config
        self.catalog = _catalog(config, engine, open_by_name)
        tokenizing = TokenizerThreads(config.limits)
        for served in self.catalog.engines:
            served.tokenizing = tokenizing
        positions = position_codec(self.catalog.engines)
        self._store = store or open_store(
            config.store,
            config.limits,
            positions,
            retention_s=config.retention_days * _DAY_S,
            is_synced=not config.store_unsynced,
        )
        self.service = Service(config, self.catalog, self._store, positions)
        for served in self.catalog.engines:
            served.compiler = self.service.compiler
        self.recorder = _open_recorder(self.service) if config.record else None
        self._tracer = _open_tracer(self.service) if config.traces else None
        self.background = Background(self.service)
        self._maintenance = StoreMaintenance(self.service)
        ledgers = (self.service.requests, self.service.connections.unread)
        self._memory_trimmer = MemoryTrimmer(ledgers, find_malloc_trim())
        self._collections: FullCollections | None = None
        self._lag = LoopLag(self.service.is_active)
        self.metrics = Metrics(self.service)
        self.live = LiveView(self.service, self.metrics, self._lag, number)
        self._has_admin = has_admin and config.admin != ADMIN_OFF
        self._admin: AdminListener | None = None
        self._runner: web.AppRunner | None = None
        self._acceptors: list[Acceptor] = []
        self._ticker = PeriodicTasks()
        self.stop_request = StopRequest()
        self.port = config.port

    @property
    def base_url(self) -> str:
        return base_url(self.config.host, self.port)

    @property
    def admin_url(self) -> str | None:
        """URL of the live page; None if the server does not serve it."""
        return self._admin.url if self._admin is not None else None

    async def start(self) -> None:
        """Start to serve. Raises ``StartupError``, after closing whatever was opened."""
        shorten_switch_interval()
        try:
            listener = await self._open_store_and_port()
        except BaseException:
            await self._close_all()
            raise
        try:
            await self.catalog.start()
            await self.service.inspector.start()
            self.metrics.start(self._lag)
            # Cancellation: a client that disconnects must end its request.
            runner = web.AppRunner(
                build_app(self.service, self.background),
                handler_cancellation=True,
                shutdown_timeout=_HTTP_SHUTDOWN_S,
            )
            await runner.setup()
            assert runner.server is not None
            make = connection_factory(runner.server, self.service.connections, **self._http_options())
            await self._open_peers(make)
            self.port = listener.getsockname()[1]
            await self._open_admin()
            self._accept(listener, make)
        except BaseException:
            for acceptor in self._acceptors:
                await acceptor.close()
            listener.close()
            await self._close_all()
            raise
        self._runner = runner
        log_reduced_room(self.service.connections.room, self.config.limits.max_connections)
        self._lag.start()
        self._ticker.start("the tick of the server", self._tick, _TICK_S)
        self._maintenance.start()
        self.background.start()
        if self._tracer is not None:
            self._tracer.start()

    async def _open_store_and_port(self) -> socket.socket:
        """Start the store, read keys from it, and bind the address, unless keys are required and missing."""
        if self.recorder is not None:
            self.recorder.start()
        await self._store.start()
        try:
            await self.service.keyring.start()
            self.service.seal = await open_seal(self.config.seal_key_file, self._store)
        except Unavailable as error:
            raise StartupError(error.message) from None
        if self.service.keyring.is_open:
            require_keys(self.config)
        require_one_tenant(self.service.keyring, self.catalog.engines)
        open_port = bind_shared if self.config.workers > 1 else listen
        return open_port(self.config.host, self.config.port)

    def _http_options(self) -> dict[str, Any]:
        """aiohttp's options for each HTTP connection."""
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

    async def _open_peers(self, make: Callable[[], HttpConnection]) -> None:
        """Let other nodes fetch states parked here: at the configured URL, or a private port per worker."""
        if self.config.node_url:
            await self.service.peers.open(self.config.node_url)
        elif self.config.workers > 1:
            # The shared port leads to any worker; this one leads to this worker.
            private = listen("127.0.0.1", 0)
            self._accept(private, make)
            await self.service.peers.open(f"http://127.0.0.1:{private.getsockname()[1]}")

    async def _open_admin(self) -> None:
        if not self._has_admin:
            return
        admin = AdminListener(self.config, ServerSource(self.service, self.live, self.metrics, self.base_url))
        await admin.start()
        self._admin = admin

    def describe(self) -> Serving:
        """What is served, for the start-up announcement."""
        keyring = self.service.keyring
        models = tuple(model.name for model in self.catalog)
        return Serving(models, self._store.name, str(keyring), keyring.is_open)

    def take_over_collections(self) -> None:
        """Decide when this process looks for garbage. For a process that has just started, and serves only
        this server."""
        exempt_from_collection()
        self._collections = FullCollections(resident_bytes, self._is_generating)

    def _is_generating(self) -> bool:
        return any(client.in_flight for client in self.service.clients)

    async def stop(self, on_drain: Callable[[int], None] | None = None) -> None:
        """Let running responses and their audits finish within the drain deadline, then close everything.

        Calls ``on_drain`` with the number of responses that it waits for.
        """
        self.service.draining = True
        assert self._runner is not None
        for acceptor in self._acceptors:
            await acceptor.close()
        grace_s = self.config.limits.drain_timeout_s
        await drain(self.service.clients, self._idle, grace_s, self.stop_request, on_drain)
        self._lag.stop()
        await self._ticker.stop()
        await self.background.close()
        await self.service.prefills.close()
        await self._maintenance.stop()
        await self._runner.cleanup()
        await self._close_all()

    async def _idle(self) -> None:
        """Wait until no client is served, and the responses that they have got are audited."""
        await self.service.wait_until_idle()
        await self.service.audits.wait()

    async def serve(self, on_ready: Callable[["Server"], None]) -> None:
        """Serve until a signal stops the process; print what a graceful stop waits for."""
        self.stop_request.install_signal_handlers()
        timeout_s = self.config.limits.drain_timeout_s
        await self.run(on_ready, lambda responses: print_wait(self.stop_request, responses, timeout_s))

    async def run(
        self, on_ready: Callable[["Server"], None], on_drain: Callable[[int], None] | None = None
    ) -> None:
        """Serve until ``stop_request`` is set. ``on_drain`` as for ``stop``."""
        if await run_until(self.stop_request.requested, self.start()):
            on_ready(self)
            await self.stop_request.requested.wait()
            await self.stop(on_drain)

    async def _close_all(self) -> None:
        async with AsyncExitStack() as stack:  # closes each, even if closing another one raises
            stack.push_async_callback(self._store.close)
            stack.push_async_callback(self.service.sandbox.close)
            stack.push_async_callback(self.service.documents.close)
            stack.push_async_callback(self.service.tool_runner.close)
            stack.push_async_callback(self.service.images.close)
            for engine in self.catalog.engines:
                stack.push_async_callback(engine.close)
            stack.push_async_callback(self.service.inspector.close)
            stack.push_async_callback(self.service.audits.close)
            stack.push_async_callback(self.service.peers.close)
            if self.recorder is not None:
                stack.push_async_callback(self.recorder.close)
            if self._admin is not None:
                stack.push_async_callback(self._admin.close)
            if self._tracer is not None:
                stack.push_async_callback(self._tracer.close)

    async def _tick(self) -> None:
        clock = asyncio.get_running_loop().time
        await self.service.tick()
        await self._memory_trimmer.trim(clock())
        self.service.parking.sweep(now())
        self.service.known.sweep(now())
        self.service.heads.sweep(now())
        self.service.items.sweep(now())
        self.service.connections.tick()
        if self._collections is not None and self._collections.run_if_due(clock()):
            self._memory_trimmer.garbage_collected()


def _catalog(config: Config, engine: Engine | None, open_by_name: Callable[[str], Engine]) -> Catalog:
    if engine is None and config.models:
        return Catalog.of_entries([_entry(model) for model in config.models], open_by_name)
    return Catalog.of_engine(engine or open_by_name(config.engine), config.model)


def _open_recorder(service: Service) -> "Recorder":
    """A recorder that observes the turns of a service, not started yet."""
    from slipring.server.observation.recorder import Recorder

    engines = [each.name for each in service.catalog.engines]
    recorder = Recorder(service.config, engines, service.tool_runner.registry.secrets())
    service.content_observers.append(recorder.observe)
    service.recorded = recorder.counts
    return recorder


def _open_tracer(service: Service) -> "Tracer":
    """A tracer that observes the turns of a service, not started yet."""
    try:
        from slipring.server.tracing.tracer import Tracer
    except ModuleNotFoundError as error:
        extra = "pip install '.[otel]' in a checkout of slipring"
        raise StartupError(
            f"--trace-sample, --trace-endpoint: {error.name} is not installed ({extra})"
        ) from None
    tracer = Tracer(service.config, service.node_id)
    service.traces = tracer.counts
    if service.config.trace_content:
        service.content_observers.append(tracer.observe)
    else:
        service.turn_observers.append(tracer.observe)
    return tracer


def _entry(model: ModelEntry) -> Entry:
    given = dict(model.defaults)
    if given.get("effort") not in (None, *get_args(Effort)):
        known = ", ".join(get_args(Effort))
        raise StartupError(f"models.{model.name}.defaults: 'effort' must be one of {known}")
    hosting = next((each for each in get_args(Hosting) if each == model.hosted_tools), None)
    return Entry(model.name, model.engine, model.model, model.aliases, Defaults(**given), hosting)


class StoreMaintenance:
    """What a server does with the store beside serving clients: it prunes it, announces this node, and
    exchanges key usage with other nodes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks = PeriodicTasks()

    def start(self) -> None:
        # Not part of the server's tick, which must not wait for a slow store.
        self._tasks.start(
            "exchanging key usage with the store", self._service.sync_keys, EXCHANGE_INTERVAL_S, at_stop=True
        )
        self._tasks.start("pruning the store", self._prune, PRUNE_INTERVAL_S)

    async def stop(self) -> None:
        """Stop, after writing the last key usage. Call this when no client is served any more."""
        await self._tasks.stop()

    async def _prune(self) -> None:
        """Announce this node, then delete expired rows."""
        await self._service.peers.announce()
        await self._service.store.pruning.prune(shared_now)
