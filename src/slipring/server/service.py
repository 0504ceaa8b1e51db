"""The service: what all connections of a process share, and the clients that it serves.

It owns no connection. Transports register their clients with ``Service.serving``, and the server's ticker
calls ``Service.tick`` about once a second.
"""

import asyncio
import logging
import math
import os
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from msgspec import UNSET

from slipring.base.errors import ApiError
from slipring.base.tenant_slots import TenantSlots
from slipring.config.settings import Config
from slipring.core.betas import NO_BETAS, Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.instructions_and_tools import KnownHeads
from slipring.core.chain.resent_history import KnownContexts, KnownItems
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import Positions
from slipring.core.chain.state_cache import ConnectionCache, SharedScopes
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import NoPolicies
from slipring.core.ports import Mint, Ports
from slipring.core.session.session import Session
from slipring.engines.catalog import Catalog
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.protocol.endpoints.reply_bodies import TraceCounts
from slipring.safety.inspector import Inspector
from slipring.sandbox.pipe_messages import SandboxLimits
from slipring.sandbox.sandbox import Sandbox
from slipring.server.access.auth import Caller, Keyring
from slipring.server.access.content_encryption import KeyedSeal, new_key
from slipring.server.access.model_permissions import Permitted, Selection
from slipring.server.access.quotas import Quotas
from slipring.server.clock import clock, now, shared_now
from slipring.server.connections.open_connections import (
    Connections,
    raise_descriptor_limit,
    room_for_connections,
)
from slipring.server.document_reading import DocumentReader
from slipring.server.hosted_tools.permitted_servers import Registry
from slipring.server.hosted_tools.runner import ToolRunner
from slipring.server.image_fetching import ImageFetcher
from slipring.server.inspection_runner import Audits, CallerPolicies
from slipring.server.observation import turn_log
from slipring.server.observation.ended_turns import (
    ContentObserver,
    EndedTurn,
    Observer,
    RecordingCounts,
    TurnContent,
)
from slipring.server.parking import Parking
from slipring.server.peers import Peers
from slipring.server.prefill_runner import Prefills
from slipring.server.process.shutdown import shutting_down
from slipring.server.random_ids import minter, new_node_id
from slipring.server.request_decoding import RequestDecoder
from slipring.server.state_lookup import Source, StateLookup
from slipring.stores.store import Store

log = logging.getLogger("slipring")

_ITEMS_SHARE, _HEADS_SHARE = 4, 16
"""Known items and heads may use ``recognised_bytes`` divided by these, and known contexts the rest."""
_RECENT_HTTP_TURNS = 64
_CHECKED_AT_ONCE = 100
"""Clients that are checked before the event loop may do other work."""
_ACTIVE_S = 2.0
"""A client with a running response is checked every second."""


class Client(Protocol):
    """A client that is being served, over any transport."""

    @property
    def in_flight(self) -> int:
        """Responses that are running for it."""

    def tick(self) -> float | None:
        """Enforce deadlines. Returns in how many seconds the next one is due, if nothing happens before;
        None: call again with the next tick."""

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        """The server is about to stop: finish running responses within ``grace_s``, refuse new ones."""


class Service:
    """The shared parts of one server, and its current clients."""

    def __init__(
        self, config: Config, catalog: Catalog, store: Store, positions: Positions | None = None
    ) -> None:
        """Raises ``StartupError`` if a registered MCP server cannot be used."""
        limits = config.limits
        self.config = config
        self.catalog = catalog
        self.store = store
        self.keyring = Keyring(store.keys, config.api_key, config.allow_origin)
        self.quotas = Quotas(store.keys, shared_now)
        self.scopes = SharedScopes(limits.tenant_cache_bytes, limits.process_cache_bytes)
        self.parking = Parking(limits.parked_s, limits.parked_bytes)
        self.items = KnownItems(limits.recognised_s, limits.recognised_bytes // _ITEMS_SHARE)
        self.heads = KnownHeads(limits.recognised_s, limits.recognised_bytes // _HEADS_SHARE)
        contexts_bytes = limits.recognised_bytes - self.items.limit_bytes - self.heads.limit_bytes
        self.known = KnownContexts(limits.recognised_s, contexts_bytes)
        self.node_id = new_node_id()
        self.mint: Mint = minter(self.node_id)
        self.peers = Peers(self.node_id, store.cluster, positions)
        self.requests = Ledger(limits.tenant_request_bytes, limits.request_bytes)
        """Bytes of requests that are being received, wait or are served."""
        room = room_for_connections(raise_descriptor_limit(), limits.max_connections)
        self.connections = Connections(limits, room, self.requests, now)
        self.decoder = RequestDecoder(
            self.requests, self.items, digests=limits.recognised_s > 0, inspects=bool(config.checks)
        )
        self.retrieval_slots = TenantSlots(limits.tenant_retrievals)
        """Stored objects that are read and encoded. Each may be as large as a request, and several copies of
        it exist meanwhile; once encoded, its bytes count as unread by the client."""
        self.sandbox = Sandbox(
            SandboxLimits(
                timeout_s=limits.compile_timeout_s,
                memory_bytes=limits.compile_memory_bytes,
                processes=limits.compile_processes,
                waiting=limits.max_compiles_waiting,
                call_bytes=limits.max_compiled_bytes,
                result_bytes=limits.max_compiled_bytes,
                cache_bytes=limits.compile_cache_bytes,
            )
        )
        self.compiler = Compiler(self.sandbox, limits.max_grammar_states)
        """Compiles the grammars and schemas of clients, in the sandbox."""
        self.tool_runner = ToolRunner(Registry(config, os.environ), limits)
        self.images = ImageFetcher(config.image_host, limits.max_frame_bytes)
        """Fetches images that requests name by URL."""
        self.documents = DocumentReader(limits, self.decoder)
        """Reads PDF files for models that take no files."""
        self.seal: Seal = KeyedSeal([new_key()])
        """Uses a temporary key until the server has started."""
        self.inspector = Inspector(
            config.checks, config.policies, catalog, clock, cache_bytes=limits.verdict_cache_bytes
        )
        """Runs the safety checks."""
        self.audits = Audits(self.inspector, store.responses)
        self.verdicts = KnownVerdicts(limits.verdict_cache_bytes)
        self.prefills = Prefills()
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Set the clients and all counts to those of a server that has just started."""
        self.clients: set[Client] = set()
        self.timers: ClientTimers[Client] = ClientTimers()
        self.sockets = 0
        """Number of open WebSockets."""
        self.sockets_opened = 0
        """Number of WebSockets that have been opened; the last one has this number."""
        self.recent_http_turns: deque[EndedTurn] = deque(maxlen=_RECENT_HTTP_TURNS)
        """The latest turns over HTTP. Each socket keeps its own."""
        self.turn_observers: list[Observer] = []
        self.content_observers: list[ContentObserver] = []
        self.traces: TraceCounts | None = None
        """Set while turns are traced."""
        self.recorded: RecordingCounts | None = None
        """Set while turns are recorded with their content."""
        self.render_fallbacks: Counter[str] = Counter()
        """How often a context was rendered in full although its parent was in memory, by reason."""
        self.lookups: Counter[Source] = Counter()
        """Where responses were found that turns continue, other than in the memory of their connection."""
        responses = self.store.responses
        self.stored_states = StateLookup(responses, self.lookups)
        self.socket_states = StateLookup(responses, self.lookups, self.parking, self.peers)
        self.refusals: Counter[str] = Counter()
        """Requests and messages that were answered with an error and are no turns, by code."""
        self.draining = False
        """Whether the server is shutting down: new requests are refused."""
        self._idle = asyncio.Event()
        self._active_at = -math.inf

    def open_session(self, caller: Caller, betas: Betas) -> Session:
        """A new session for a WebSocket connection."""
        limits = self.config.limits
        cache = ConnectionCache(
            limits.connection_cache_bytes,
            self.scopes.of(caller.tenant),
            compressible_bytes=limits.connection_compressed_bytes,
        )
        return self._session(caller, cache, betas)

    def open_exchange(self, caller: Caller, betas: Betas = NO_BETAS) -> Session:
        """A new session for a single request: it remembers nothing."""
        return self._session(caller, self.scopes.exchange(caller.tenant), betas)

    def _session(self, caller: Caller, cache: ConnectionCache, betas: Betas) -> Session:
        session = Session(
            tenant=caller.tenant,
            models=self.models_of(caller),
            limits=self.config.limits,
            ports=Ports(
                mint=self.mint,
                clock=clock,
                seal=self.seal,
                requests=self.requests,
                known=self.known,
                heads=self.heads,
                items=self.items,
                ignored_tools=self.ignored_tools,
                fetches_images=self.images.is_on,
                reads_documents=self.documents.is_on,
                verdicts=self.verdicts,
            ),
            cache=cache,
            now=now(),
            betas=betas,
            policies=CallerPolicies(self.inspector, caller) if self.inspector.checks else NoPolicies(),
        )
        # Stored keys may change or be revoked between turns, and the first one may be created while guests
        # are connected. Configured keys do not change.
        session.shared.asks_each_turn = caller.key is not None or (caller.is_guest and self.store.is_shared)
        return session

    @property
    def ignored_tools(self) -> frozenset[str]:
        """Types of tools that requests may list although nothing answers them."""
        return frozenset(self.config.ignored_tool)

    def models_of(self, caller: Caller) -> Selection:
        if caller.key is None or not caller.key.models:
            return self.catalog
        return Permitted(self.catalog, caller.key.models)

    async def admit_turn(self, caller: Caller, *, counts: bool = True) -> None:
        """Count one more turn of a caller. Raises if its key was revoked or a quota is used up. Unless it
        ``counts``: it is part of a request that was admitted, and only the key matters."""
        key = await self.keyring.recheck(caller)
        if key is not None and counts:
            await self.quotas.admit(key)

    def forget_sent(self, tenant: str) -> None:
        """Forget what a tenant has sent lately, because some of it was deleted: no index says what."""
        self.heads.forget(tenant)
        self.items.forget(tenant)
        self.documents.forget(tenant)

    async def require_room(self, caller: Caller) -> None:
        """Raise if a caller's key was revoked or a quota is used up."""
        key = await self.keyring.recheck(caller)
        if key is not None:
            await self.quotas.require_room(key)

    def turn_ended(self, turn: EndedTurn, content: TurnContent | None = None) -> None:
        """Log and count a turn: its tokens towards the key's quota, its fallback for ``/health``.

        ``content``: only needed if there are ``content_observers``.
        """
        turn_log.write(turn)
        if not turn.origin.connection:
            self.recent_http_turns.append(turn)
        for observe in self.turn_observers:
            observe(turn)
        for observe_content in self.content_observers:
            observe_content(turn, content)
        report, caller = turn.report, turn.caller
        if report.fallback is not UNSET:
            self.render_fallbacks[report.fallback] += 1
        if report.tokens is not UNSET and caller.key is not None:
            self.quotas.spend(caller.key, report.tokens, turn.counted_tokens)

    async def sync_keys(self) -> None:
        """Exchange key usage with the store: write what was used here, read new keys and others' usage."""
        await self.keyring.refresh()
        await self.quotas.exchange()

    @contextmanager
    def serving(self, client: Client) -> Iterator[None]:
        """Register a client while the block runs."""
        self.clients.add(client)
        self.wake(client)
        if self.draining:  # the client arrived while the server was closing its listener
            client.wind_down(shutting_down(), grace_s=0)
        try:
            yield
        finally:
            self.clients.discard(client)
            self.timers.remove(client)
            if not self.clients:
                self._idle.set()

    def wake(self, client: Client) -> None:
        """Check a client with the next tick, because something has happened to it."""
        self._active_at = clock = asyncio.get_running_loop().time()
        self.timers.advance(client, clock)

    def is_active(self) -> bool:
        """Whether a client has sent something lately, or has a running response. Does not look at clients:
        there may be thousands, all idle."""
        return asyncio.get_running_loop().time() - self._active_at < _ACTIVE_S

    async def tick(self) -> None:
        """Call ``tick`` of all clients that are due, a few at a time."""
        clock = asyncio.get_running_loop().time
        for count, client in enumerate(self.timers.take_due(clock()), 1):
            if client in self.clients:  # it may have disconnected during the loop
                self._check(client, clock())
            if count % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _check(self, client: Client, clock: float) -> None:
        try:
            delay_s = client.tick()
        except Exception:
            log.exception("checking the deadlines of a client failed")
            delay_s = None
        if delay_s is None:
            self._active_at = clock
        self.timers.set(client, clock + (delay_s or 0.0))

    async def wait_until_idle(self) -> None:
        """Wait until no client is being served."""
        while self.clients:
            self._idle.clear()
            await self._idle.wait()


T = TypeVar("T")


class ClientTimers(Generic[T]):
    """One due time per client, rounded up to a second: a client is never returned before its time."""

    __slots__ = ("_bucket_of", "_buckets")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._bucket_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def set(self, client: T, due: float) -> None:
        """Set a client's due time, replacing the one set before; infinity removes it."""
        self.remove(client)
        if due == math.inf:
            return
        number = math.ceil(due)
        self._bucket_of[client] = number
        self._buckets.setdefault(number, {})[client] = None

    def advance(self, client: T, due: float) -> None:
        """Set a client's due time, unless it is due earlier already."""
        if (number := self._bucket_of.get(client)) is None or number > due + 1:
            self.set(client, due)

    def remove(self, client: T) -> None:
        """Remove a client's due time, if it has one."""
        number = self._bucket_of.pop(client, None)
        if number is None:
            return
        bucket = self._buckets[number]
        del bucket[client]
        if not bucket:
            del self._buckets[number]

    def take_due(self, now: float) -> list[T]:
        """Remove and return the clients that are due, the earliest first."""
        due = sorted(number for number in self._buckets if number <= now)
        clients = [client for number in due for client in self._buckets.pop(number)]
        for client in clients:
            del self._bucket_of[client]
        return clients
