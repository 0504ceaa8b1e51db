"""Cache of verdicts, so that a text that is sent again is not inspected again.

Tenants do not share entries: otherwise the response time would reveal what another tenant has sent.
"""

from collections import OrderedDict

from slipring.core.checks.verdicts import Verdict

Key = tuple[str, str, bytes]
"""A check's name and version, and the digest of a subject."""


class VerdictCache:
    """The latest verdicts of each tenant, bounded in number per tenant and in total."""

    def __init__(self, per_tenant: int = 4096, total: int = 65_536) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._tenants: OrderedDict[str, OrderedDict[Key, Verdict]] = OrderedDict()
        """The least recently used tenant first."""
        self.size = 0

    def find(self, tenant: str, key: Key) -> Verdict | None:
        own = self._tenants.get(tenant)
        found = own.get(key) if own is not None else None
        if own is not None and found is not None:
            own.move_to_end(key)
            self._tenants.move_to_end(tenant)
        return found

    def put(self, tenant: str, key: Key, verdict: Verdict) -> None:
        own = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        self.size += key not in own
        own[key] = verdict
        own.move_to_end(key)
        if len(own) > self._per_tenant:
            own.popitem(last=False)
            self.size -= 1
        while self.size > self._total:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest verdict of the tenant that has used the cache least recently."""
        tenant, own = next(iter(self._tenants.items()))
        own.popitem(last=False)
        self.size -= 1
        if not own:
            del self._tenants[tenant]
