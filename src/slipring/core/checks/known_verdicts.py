"""Verdicts about items that tenants have sent or received lately, by what the items contain.

Clients that keep no ids send their whole history with every turn, and any client may try a turn again. An
item that was inspected under the same policy for the same tenant is not inspected a second time. No tenant
learns what another has sent: nothing is shared between them. Past a bound on bytes, the tenant that uses the
most loses the verdicts that were used longest ago.
"""

from collections import OrderedDict

from slipring.core.byte_ledger import Ledger
from slipring.core.checks.verdicts import Verdict

Known = tuple[Verdict, ...]
"""The verdicts about an item if one of them flags it; empty if none does."""
_ENTRY_BYTES = 250
_VERDICT_BYTES = 300
_SCORE_BYTES = 120


class KnownVerdicts:
    """The known verdicts of all tenants of a process."""

    __slots__ = ("_by_tenant", "_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._by_tenant: dict[str, OrderedDict[bytes, Known]] = {}
        """Per tenant by policy and item, those used longest ago first."""

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def find(self, tenant: str, policy: bytes, digest: bytes) -> Known | None:
        """The verdicts about an item with this digest, under a policy with that one; None if it was never
        inspected."""
        known = self._by_tenant.get(tenant)
        key = policy + digest
        if known is None or key not in known:
            return None
        known.move_to_end(key)
        return known[key]

    def remember(self, tenant: str, policy: bytes, digest: bytes, verdicts: Known) -> None:
        """All checks of a policy have inspected an item."""
        known = self._by_tenant.setdefault(tenant, OrderedDict())
        key = policy + digest
        if key in known:
            self._bytes.remove(tenant, _size(known.pop(key)))
        kept = verdicts if any(verdict.flagged for verdict in verdicts) else ()
        known[key] = kept
        self._bytes.add(tenant, _size(kept))
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self._drop_oldest(largest)

    def _drop_oldest(self, tenant: str) -> None:
        known = self._by_tenant[tenant]
        _, dropped = known.popitem(last=False)
        if not known:
            del self._by_tenant[tenant]
        self._bytes.remove(tenant, _size(dropped))


def _size(known: Known) -> int:
    scores = sum(len(verdict.scores) for verdict in known)
    return _ENTRY_BYTES + _VERDICT_BYTES * len(known) + _SCORE_BYTES * scores
