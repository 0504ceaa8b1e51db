"""What all connections of a process share: engines, store, keys, quotas, memory bounds, clock and ids."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET

from slipring.config import Config
from slipring.core.betas import NONE, Betas
from slipring.core.cache import ConnectionCache, NoMemory, SharedScopes
from slipring.core.means import Means, Mint
from slipring.core.sealing import Seal
from slipring.core.session import Session
from slipring.core.state import Positions
from slipring.engines.catalog import Catalog
from slipring.errors import ApiError, Unavailable
from slipring.protocol.timing import TurnReport
from slipring.server.auth import Caller, Keyring
from slipring.server.clock import clock, now, shared_now
from slipring.server.ids import minter, new_node_id
from slipring.server.parking import Parking
from slipring.server.peers import Peers
from slipring.server.permissions import Permitted, Selection
from slipring.server.quotas import Quotas
from slipring.server.reading import Reading
from slipring.server.sealing import KeyedSeal, new_key
from slipring.stores.base import Store


def shutting_down() -> ApiError:
    """What everybody is told when the server stops."""
    return Unavailable("The server is shutting down. Connect again.", code="server_shutting_down")


class Client(Protocol):
    """Somebody who is being served, over whatever transport."""

    def tick(self) -> None:
        """About a second has passed."""

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
    node_id: str
    mint: Mint
    seal: Seal
    """By a key of its own until the server has started."""
    reading: Reading = field(default_factory=Reading)
    clients: set[Client] = field(default_factory=set)
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
        return cls(
            config=config,
            catalog=catalog,
            store=store,
            keyring=Keyring(store.keys, config.api_key, config.allow_origin),
            quotas=Quotas(store.keys, shared_now),
            scopes=SharedScopes(limits.tenant_cache_bytes, limits.process_cache_bytes),
            parking=Parking(limits.parked_s, limits.parked_bytes),
            peers=Peers(node_id, store.cluster, positions),
            node_id=node_id,
            mint=minter(node_id),
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
            means=Means(mint=self.mint, clock=clock, seal=self.seal),
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
        if self.draining:  # it came in while the server was closing its door
            client.wind_down(shutting_down(), grace_s=0)
        try:
            yield
        finally:
            self.clients.discard(client)
            if not self.clients:
                self._quiet.set()

    async def quiet(self) -> None:
        """Wait until nobody is being served."""
        while self.clients:
            self._quiet.clear()
            await self._quiet.wait()
