"""What all connections of a process share: engines, store, keys, quotas, memory bounds, clock and ids."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET

from slipring.config import Config
from slipring.core.betas import NONE, Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import Positions
from slipring.core.chain.state_cache import ConnectionCache, NoMemory, SharedScopes
from slipring.core.ports import Means, Mint
from slipring.core.session.session import Session
from slipring.engines.catalog import Catalog
from slipring.engines.constraints.compiler import Compiler
from slipring.errors import ApiError, Unavailable
from slipring.protocol.timing import TurnReport
from slipring.sandbox.compile_limits import Bounds
from slipring.sandbox.sandbox import Sandbox
from slipring.server.access.auth import Caller, Keyring
from slipring.server.access.model_permissions import Permitted, Selection
from slipring.server.access.quotas import Quotas
from slipring.server.access.seal_keys import KeyedSeal, new_key
from slipring.server.client_timers import Alarms
from slipring.server.clock import clock, now, shared_now
from slipring.server.cluster.ids import minter, new_node_id
from slipring.server.cluster.parking import Parking
from slipring.server.cluster.peers import Peers
from slipring.server.connections.file_descriptors import raise_limit, room_for_connections
from slipring.server.connections.registry import Connections
from slipring.server.endpoints.retrieval_slots import Retrieving
from slipring.server.request_decoding import Reading
from slipring.stores.base import Store

log = logging.getLogger("slipring")

_LOOKED_AT_ONCE = 100
"""Clients, before everything else that is to be done has its turn."""


def shutting_down() -> ApiError:
    """What everybody is told when the server stops."""
    return Unavailable("The server is shutting down. Connect again.", code="server_shutting_down")


class Client(Protocol):
    """Somebody who is being served, over whatever transport."""

    def tick(self) -> float | None:
        """Look after deadlines. Returns in how many seconds the next one is, if nothing happens before; None:
        with the next tick, as long as something is being done."""

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        """The server is about to stop: finish what runs, take nothing new."""


@dataclass(slots=True)
class Service:
    """One server's shared parts, and the clients that it serves just now."""

    config: Config
    catalog: Catalog
    store: Store
    keyring: Keyring
    quotas: Quotas
    scopes: SharedScopes
    parking: Parking
    peers: Peers
    requests: Ledger
    """Bytes of requests: while they come, wait and are served."""
    connections: Connections
    reading: Reading
    retrieving: Retrieving
    node_id: str
    mint: Mint
    sandbox: Sandbox
    compiler: Compiler
    """Compiles what clients define, in the sandbox."""
    seal: Seal
    """By a key of its own until the server has started."""
    clients: set[Client] = field(default_factory=set)
    alarms: Alarms[Client] = field(default_factory=Alarms)
    sockets: int = 0
    render_fallbacks: Counter[str] = field(default_factory=Counter)
    """How often a context was rendered in full though its parent was at hand, by reason."""
    draining: bool = False
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def assemble(
        cls, config: Config, catalog: Catalog, store: Store, positions: Positions | None = None
    ) -> "Service":
        limits = config.limits
        node_id = new_node_id()
        requests = Ledger(limits.tenant_request_bytes, limits.request_bytes)
        room = room_for_connections(raise_limit(), limits.max_connections)
        sandbox = Sandbox(
            Bounds(
                timeout_s=limits.compile_timeout_s,
                memory_bytes=limits.compile_memory_bytes,
                processes=limits.compile_processes,
                waiting=limits.max_compiles_waiting,
                call_bytes=limits.max_compiled_bytes,
                cache_bytes=limits.compile_cache_bytes,
            )
        )
        return cls(
            config=config,
            catalog=catalog,
            store=store,
            keyring=Keyring(store.keys, config.api_key, config.allow_origin),
            quotas=Quotas(store.keys, shared_now),
            scopes=SharedScopes(limits.tenant_cache_bytes, limits.process_cache_bytes),
            parking=Parking(limits.parked_s, limits.parked_bytes),
            peers=Peers(node_id, store.cluster, positions),
            requests=requests,
            connections=Connections(limits, room, requests, now),
            reading=Reading(requests),
            retrieving=Retrieving(limits.tenant_retrievals),
            node_id=node_id,
            mint=minter(node_id),
            sandbox=sandbox,
            compiler=Compiler(sandbox, limits.max_grammar_states),
            seal=KeyedSeal([new_key()]),
        )

    def open_session(self, caller: Caller, betas: Betas) -> Session:
        """The session of a connection that stays."""
        cache = ConnectionCache(self.config.limits.connection_cache_bytes, self.scopes.of(caller.tenant))
        return self._session(caller, cache, betas)

    def open_exchange(self, caller: Caller, betas: Betas = NONE) -> Session:
        """The session of a single request."""
        return self._session(caller, NoMemory(), betas)

    def _session(self, caller: Caller, cache: ConnectionCache, betas: Betas) -> Session:
        session = Session(
            tenant=caller.tenant,
            models=self.models_of(caller),
            limits=self.config.limits,
            means=Means(mint=self.mint, clock=clock, seal=self.seal, requests=self.requests),
            cache=cache,
            now=now(),
            betas=betas,
        )
        # Configured keys stay as they are. Those in a store may change, and the first may come while there
        # are guests.
        session.asks_each_turn = caller.key is not None or (caller.is_guest and self.store.is_shared)
        return session

    def models_of(self, caller: Caller) -> Selection:
        """The models that a caller may use."""
        if caller.key is None or not caller.key.models:
            return self.catalog
        return Permitted(self.catalog, caller.key.models)

    async def check(self, caller: Caller) -> None:
        """Let a caller have one more turn, and count it, or raise what refuses it."""
        key = await self.keyring.recheck(caller)
        if key is not None:
            await self.quotas.admit(key)

    def count(self, report: TurnReport, caller: Caller) -> None:
        if report.fallback is not UNSET:
            self.render_fallbacks[report.fallback] += 1
        if report.tokens is not UNSET and caller.key is not None:
            self.quotas.spend(caller.key, report.tokens.input + report.tokens.output)

    async def compare_notes(self) -> None:
        """Learn from the store what others have done about keys, and tell it what was used here."""
        await self.keyring.refresh()
        await self.quotas.exchange()

    @contextmanager
    def serving(self, client: Client) -> Iterator[None]:
        """Count a client as served, for as long as it is."""
        self.clients.add(client)
        self.wake(client)
        if self.draining:  # it came in while the server was closing its door
            client.wind_down(shutting_down(), grace_s=0)
        try:
            yield
        finally:
            self.clients.discard(client)
            self.alarms.remove(client)
            if not self.clients:
                self._quiet.set()

    def wake(self, client: Client) -> None:
        """Something happens to a client: look at it with the next tick."""
        self.alarms.advance(client, asyncio.get_running_loop().time())

    async def tick(self) -> None:
        """Look at all clients that are due, a few at a time."""
        clock = asyncio.get_running_loop().time
        for count, client in enumerate(self.alarms.take_due(clock()), 1):
            if client in self.clients:  # it may have left while others were looked at
                self._look_at(client, clock())
            if count % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _look_at(self, client: Client, clock: float) -> None:
        try:
            delay_s = client.tick()
        except Exception:
            log.exception("the deadlines of a client could not be looked after")
            delay_s = None
        self.alarms.set(client, clock + (delay_s or 0.0))

    async def quiet(self) -> None:
        """Wait until nobody is being served."""
        while self.clients:
            self._quiet.clear()
            await self._quiet.wait()
