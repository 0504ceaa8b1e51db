"""An in-memory cache of stored response states, bounded in bytes.

Continuing a cached chain needs no read of the whole chain, and keeps what the database cannot hold: an
engine's live position. The caller must check that a cached response still exists: another process may have
deleted it.
"""

from slipring.core.chain.retention import Retention
from slipring.core.chain.state import ResponseState
from slipring.core.tenant_entries import TenantEntries


class RecentStates(TenantEntries[str, ResponseState]):
    """The most recently used states of each tenant, by response id. Data that several states share is counted
    once."""

    __slots__ = ("_retention",)

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._retention: Retention[ResponseState] = Retention()

    def find(self, tenant: str, response_id: str) -> ResponseState | None:
        return self._find(tenant, response_id)

    def remember(self, tenant: str, state: ResponseState) -> None:
        self.forget(tenant, state.id)
        self._keep(tenant, {state.id: state})

    def forget(self, tenant: str, response_id: str) -> None:
        if response_id in self._by_tenant.get(tenant, ()):
            self._drop(tenant, response_id)

    def _hold(self, tenant: str, value: ResponseState) -> int:
        return self._retention.hold(value)

    def _release(self, tenant: str, value: ResponseState) -> int:
        return self._retention.release(value)
