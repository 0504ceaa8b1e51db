"""Verdicts about items that tenants have sent or received lately, by what the items contain.

Clients that keep no ids send their whole history with every turn, and any client may try a turn again. An
item that was inspected under the same policy for the same tenant is not inspected a second time. No tenant
learns what another has sent: nothing is shared between them. Past a bound on bytes, the tenant that uses the
most loses the verdicts that were used longest ago.
"""

from collections import Counter, OrderedDict

from msgspec import Struct

from slipring.core.byte_ledger import Ledger
from slipring.core.checks.verdicts import Verdict


class Known(Struct, frozen=True):
    """What is known about an item that all checks of a policy have inspected, or that one has refused."""

    verdicts: tuple[Verdict, ...] = ()
    """Empty if none of them flags it."""
    behind: bytes = b""
    """Identifies what was sent behind it in the request that was last refused for it."""


_ENTRY_BYTES = 250
_VERDICT_BYTES = 300
_SCORE_BYTES = 120


class KnownVerdicts:
    """The known verdicts of all tenants of a process."""

    __slots__ = ("_by_tenant", "_bytes", "_flagged")

    def __init__(self, limit_bytes: int) -> None:
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._by_tenant: dict[str, OrderedDict[bytes, Known]] = {}
        """Per tenant by policy and item, those used longest ago first."""
        self._flagged: Counter[str] = Counter()
        """Per tenant, how many items were flagged."""

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def has_flagged(self, tenant: str) -> bool:
        """Whether a flagged item of the tenant is known."""
        return self._flagged[tenant] > 0

    def find(self, tenant: str, policy: bytes, digest: bytes) -> Known | None:
        """What is known about an item with this digest, under a policy with that one; None if it was never
        inspected."""
        known = self._by_tenant.get(tenant)
        key = policy + digest
        if known is None or key not in known:
            return None
        known.move_to_end(key)
        return known[key]

    def remember(
        self, tenant: str, policy: bytes, digest: bytes, verdicts: tuple[Verdict, ...], behind: bytes = b""
    ) -> None:
        """All checks of a policy have inspected an item, or one has refused it, which had this behind it."""
        key = policy + digest
        if key in self._by_tenant.get(tenant, ()):
            self._drop(tenant, key)
        is_flagged = any(verdict.flagged for verdict in verdicts)
        kept = Known(verdicts, behind) if is_flagged else _CLEAN
        self._by_tenant.setdefault(tenant, OrderedDict())[key] = kept
        self._bytes.add(tenant, _size(kept))
        self._flagged[tenant] += is_flagged
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self._drop(largest, next(iter(self._by_tenant[largest])))

    def _drop(self, tenant: str, key: bytes) -> None:
        known = self._by_tenant[tenant]
        dropped = known.pop(key)
        self._bytes.remove(tenant, _size(dropped))
        self._flagged[tenant] -= bool(dropped.verdicts)
        if not known:
            del self._by_tenant[tenant], self._flagged[tenant]


_CLEAN = Known()


def _size(known: Known) -> int:
    scores = sum(len(verdict.scores) for verdict in known.verdicts)
    return _ENTRY_BYTES + _VERDICT_BYTES * len(known.verdicts) + _SCORE_BYTES * scores + len(known.behind)
