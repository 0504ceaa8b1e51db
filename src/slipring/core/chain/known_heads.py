"""Heads that tenants used here lately, so that tools that a client sends with every request are read once.

A chain keeps its head itself: this is for requests without a parent. Only tools that clients run are known,
and only for the model that they were sent for, because which others are accepted depends on that. Heads are
kept for as long as known contexts, a few per tenant and within a bounded number of bytes. Past that bound,
the tenant that uses the most bytes loses the head that was used longest ago.
"""

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.head import Head
from slipring.protocol.requests import CreateRequest

_MOST_PER_TENANT = 8
"""A request is compared with each of them."""


class _Kept:
    __slots__ = ("head", "model", "until")

    def __init__(self, model: str | None, head: Head, until: float) -> None:
        self.model = model
        self.head = head
        self.until = until


class KnownHeads:
    """The heads of all tenants of a process."""

    __slots__ = ("_by_tenant", "_bytes", "_duration_s")

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        """With a duration or a limit of 0, no head is ever known."""
        self._duration_s = duration_s
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._by_tenant: dict[str, list[_Kept]] = {}
        """The head used longest ago first."""

    @property
    def limit_bytes(self) -> int:
        return self._bytes.limit_bytes

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def find(self, tenant: str, request: CreateRequest) -> Head | None:
        """A head with the tools of the request, and with its instructions if there is one."""
        found: Head | None = None
        for kept in reversed(self._by_tenant.get(tenant, ())):
            if kept.model == request.model and kept.head.has_tools_of(request):
                if kept.head.instructions == request.instructions:
                    return kept.head
                found = found or kept.head
        return found

    def remember(self, tenant: str, model: str | None, head: Head, now: float) -> None:
        """Keep a head of a request for this model, or keep it for longer. One with tools that a server may
        have to run is not kept."""
        if not self._duration_s or not head.tools.callables or not head.tools.are_clients:
            return
        heads = self._by_tenant.setdefault(tenant, [])
        for place, kept in enumerate(heads):
            if kept.head is head and kept.model == model:
                kept.until = now + self._duration_s
                heads.append(heads.pop(place))
                return
        heads.append(_Kept(model, head, now + self._duration_s))
        self._bytes.add(tenant, head.size_bytes)
        if len(heads) > _MOST_PER_TENANT:
            self._drop_oldest(tenant)
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self._drop_oldest(largest)

    def forget(self, tenant: str) -> None:
        """Drop the heads of a tenant."""
        while tenant in self._by_tenant:
            self._drop_oldest(tenant)

    def sweep(self, now: float) -> None:
        """Drop the heads whose time is over."""
        for tenant in list(self._by_tenant):
            while (heads := self._by_tenant.get(tenant)) and heads[0].until <= now:
                self._drop_oldest(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        heads = self._by_tenant[tenant]
        self._bytes.remove(tenant, heads.pop(0).head.size_bytes)
        if not heads:
            del self._by_tenant[tenant]
