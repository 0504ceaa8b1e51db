"""An in-memory cache of stored response states, bounded in bytes.

Continuing a cached chain needs no read of the whole chain, and keeps what the database cannot hold: an
engine's live position. The caller must check that a cached response still exists: another process may have
deleted it.
"""

from collections import OrderedDict

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.retention import Retention
from slipring.core.chain.state import ResponseState


class RecentStates:
    """The most recently used states of each tenant.

    Data that several states share is counted once. When the cache is over ``limit_bytes``, it evicts the
    least recently used state of the tenant that uses the most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._retention: Retention[ResponseState] = Retention()
        self._tenants: dict[str, OrderedDict[str, ResponseState]] = {}

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def find(self, tenant: str, response_id: str) -> ResponseState | None:
        states = self._tenants.get(tenant)
        if states is None or response_id not in states:
            return None
        states.move_to_end(response_id)
        return states[response_id]

    def remember(self, tenant: str, state: ResponseState) -> None:
        self.forget(tenant, state.id)
        self._tenants.setdefault(tenant, OrderedDict())[state.id] = state
        self._bytes.add(tenant, self._retention.hold(state))
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self.forget(largest, next(iter(self._tenants[largest])))

    def forget(self, tenant: str, response_id: str) -> None:
        states = self._tenants.get(tenant)
        state = states.pop(response_id, None) if states is not None else None
        if state is None:
            return
        if not states:
            del self._tenants[tenant]
        freed_bytes = self._retention.release(state)
        if freed_bytes:
            self._bytes.remove(tenant, freed_bytes)
