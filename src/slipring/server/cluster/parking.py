"""What connections that were cut remembered, kept for a while: their clients may come back for it.

A connection's memory is parked as a whole, within its old bounds and one of its own. Only its tenant finds
anything there, and only over a socket: to HTTP, a response that was not stored never was. Past the bound, the
tenant that uses the most gives way: a tenant that parks much pushes out its own memories, not another's.
"""

from collections import OrderedDict
from functools import partial

from msgspec import Struct

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache


class _Parked(Struct, eq=False):
    """The memory of one connection."""

    cache: ConnectionCache
    tenant: str
    response_ids: list[str]
    until: float


_Memories = OrderedDict[_Parked, None]


class Parking:
    """All parked memories of a process."""

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        self._duration_s = duration_s
        self._bytes = Ledger(limit_bytes, limit_bytes)
        """Follows what the bounds of the caches evict from parked memories."""
        self._parked: _Memories = OrderedDict()
        self._of_tenant: dict[str, _Memories] = {}
        self._by_id: dict[tuple[str, str], _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def park(self, tenant: str, cache: ConnectionCache, now: float) -> None:
        """Keep what a connection remembered, but for what the store has anyway."""
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
            self._forget(next(iter(self._of_tenant[largest])))

    def find(self, tenant: str, response_id: str, now: float) -> ResponseState | None:
        parked = self._by_id.get((tenant, response_id))
        if parked is None or parked.until <= now:
            return None
        return parked.cache.find(response_id)

    def sweep(self, now: float) -> None:
        """Forget what nobody came back for."""
        while self._parked and (oldest := next(iter(self._parked))).until <= now:
            self._forget(oldest)

    def _forget(self, parked: _Parked) -> None:
        del self._parked[parked]
        memories = self._of_tenant[parked.tenant]
        del memories[parked]
        if not memories:
            del self._of_tenant[parked.tenant]
        for response_id in parked.response_ids:
            if self._by_id.get((parked.tenant, response_id)) is parked:
                del self._by_id[parked.tenant, response_id]
        parked.cache.clear()
