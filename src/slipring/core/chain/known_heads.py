"""Heads that tenants used here lately, so that tools that a client sends with every request are read once.

A chain keeps its head itself: this is for requests without a parent. Only tools that clients run are known,
and only for the model that they were sent for, because which others are accepted depends on that. Heads are
kept for as long as known contexts, a few per tenant and within a bounded number of bytes. Past that bound,
the tenant that uses the most bytes loses the head that was used longest ago.
"""

from slipring.core.chain.head import Head, raw_tools
from slipring.core.tenant_entries import TimedEntries
from slipring.protocol.requests import CreateRequest

_MOST_PER_TENANT = 8
"""A request is compared with each of them."""


class KnownHeads(TimedEntries[tuple[str | None, bytes], Head]):
    """The heads of all tenants of a process, by model and digest."""

    __slots__ = ()

    def find(self, tenant: str, request: CreateRequest) -> Head | None:
        """A head with the tools of the request, and with its instructions if there is one."""
        heads = self._by_tenant.get(tenant)
        if heads is None:
            return None
        tools, found = raw_tools(request), None
        for (model, _), head in reversed(heads.items()):
            if model == request.model and head.tools.raw == tools:
                if head.instructions == request.instructions:
                    return head
                found = found or head
        return found

    def remember(self, tenant: str, model: str | None, head: Head, now: float) -> None:
        """Keep a head of a request for this model, or keep it for longer. One with tools that a server may
        have to run is not kept."""
        if not self.is_on or not head.tools.callables or not head.tools.are_clients:
            return
        key, heads = (model, head.digest), self._by_tenant.get(tenant)
        if heads is not None and key in heads:
            self._renew(tenant, key, now)
            return
        if heads is not None and len(heads) == _MOST_PER_TENANT:
            self._drop(tenant, next(iter(heads)))
        self._keep_until(tenant, {key: head}, now)

    def _hold(self, tenant: str, value: Head) -> int:
        return value.size_bytes

    _release = _hold
