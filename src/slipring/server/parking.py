"""What connections that were cut remembered, kept for a while: their clients may come back for it.

A connection's memory is parked as a whole, within its old bounds and one of its own. Only its tenant finds
anything there, and only over a socket: to HTTP, a response that was not stored never was.
"""

from collections import OrderedDict

from msgspec import Struct

from slipring.core.cache import ConnectionCache
from slipring.core.state import ResponseState


class _Parked(Struct, eq=False):
    """The memory of one connection."""

    cache: ConnectionCache
    tenant: str
    response_ids: list[str]
    until: float


class Parking:
    """All parked memories of a process, oldest first."""

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        self._duration_s = duration_s
        self._limit_bytes = limit_bytes
        self._parked: OrderedDict[_Parked, None] = OrderedDict()
        self._by_id: dict[tuple[str, str], _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def used_bytes(self) -> int:
        return sum(parked.cache.used_bytes for parked in self._parked)

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
        self._by_id.update({(tenant, response_id): parked for response_id in response_ids})
        while self.used_bytes > self._limit_bytes and self._parked:
            self._forget(next(iter(self._parked)))

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
        for response_id in parked.response_ids:
            if self._by_id.get((parked.tenant, response_id)) is parked:
                del self._by_id[parked.tenant, response_id]
        parked.cache.clear()
