"""Keeps the cache of a dropped connection, so that a reconnecting client can continue its chains.

A cache is parked as a whole, for ``parked_s``. It stays subject to the cache limits of its tenant and
process, and to ``parked_bytes``. Only its tenant can find its states, and only over a WebSocket: HTTP
requests see stored responses alone. Past the limit, the oldest cache of the tenant that uses the most bytes
is dropped, so that a tenant that parks much evicts its own caches and not those of others.
"""

from collections import OrderedDict
from functools import partial
from itertools import islice

from msgspec import Struct

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.observation import live_messages


class _Parked(Struct, eq=False):
    """The cache of one dropped connection."""

    cache: ConnectionCache
    tenant: str
    response_ids: list[str]
    until: float


_Caches = OrderedDict[_Parked, None]


class Parking:
    """The parked caches of a process. Parking one costs the same however many are parked."""

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        self._duration_s = duration_s
        self._bytes = Ledger(limit_bytes, limit_bytes)
        """Includes what the cache limits evict from parked caches."""
        self._parked: _Caches = OrderedDict()
        self._of_tenant: dict[str, _Caches] = {}
        self._by_id: dict[tuple[str, str], _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    @property
    def limit_bytes(self) -> int:
        return self._bytes.limit_bytes

    def status(self, now: float, most: int) -> list[live_messages.Parked]:
        """What operators see: the parked caches with the least time left, ``most`` of them."""
        return [
            live_messages.Parked(
                parked.tenant, len(parked.cache), parked.cache.used_bytes, parked.until - now
            )
            for parked in islice(self._parked, most)
        ]

    def park(
        self,
        tenant: str,
        cache: ConnectionCache,
        now: float,
        *,
        closed_by_client: bool = False,
        keeps_nothing: bool = False,
    ) -> None:
        """Park the cache of a connection that was cut off or asked to reconnect, without the states that are
        also in the store; none of a client that has closed it properly, or that wants nothing kept."""
        if closed_by_client or keeps_nothing:
            cache.clear()
            return
        for state in cache.states():
            if state.response.store:
                cache.evict(state.id)
        response_ids = [state.id for state in cache.states()]
        if not response_ids or not self._duration_s:
            cache.clear()
            return
        parked = _Parked(cache, tenant, response_ids, now + self._duration_s)
        self._parked[parked] = None
        self._of_tenant.setdefault(tenant, OrderedDict())[parked] = None
        self._by_id.update({(tenant, response_id): parked for response_id in response_ids})
        self._bytes.add(tenant, cache.used_bytes)
        cache.on_freed = partial(self._bytes.remove, tenant)
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self._drop(next(iter(self._of_tenant[largest])))

    def find(self, tenant: str, response_id: str, now: float) -> ResponseState | None:
        """The parked state of a response; None if there is none."""
        parked = self._by_id.get((tenant, response_id))
        if parked is None or parked.until <= now:
            return None
        return parked.cache.find(response_id)

    def sweep(self, now: float) -> None:
        """Drop expired caches."""
        while self._parked and (oldest := next(iter(self._parked))).until <= now:
            self._drop(oldest)

    def _drop(self, parked: _Parked) -> None:
        del self._parked[parked]
        caches = self._of_tenant[parked.tenant]
        del caches[parked]
        if not caches:
            del self._of_tenant[parked.tenant]
        for response_id in parked.response_ids:
            if self._by_id.get((parked.tenant, response_id)) is parked:
                del self._by_id[parked.tenant, response_id]
        parked.cache.clear()
