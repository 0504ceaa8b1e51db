"""Verdicts about items that tenants have sent or received lately, by what the checks saw of them.

Clients that keep no ids send their whole history with every turn, and any client may try a turn again. An
item is not inspected a second time if it was inspected for the same tenant under the same policy, and if the
checks would see the same as before: the item, and the earlier texts if they read those. Tenants share
nothing, so none learns what another has sent. Past a bound on bytes, the tenant that uses the most loses the
verdicts that were used longest ago.
"""

from collections import Counter

from msgspec import Struct

from slipring.core.checks.verdicts import Verdict
from slipring.core.tenant_caches import TenantEntries


class Known(Struct, frozen=True):
    """What is known about an item that all checks of a policy have inspected, or that one has refused."""

    verdicts: tuple[Verdict, ...] = ()
    """Empty if none of them flags it."""
    behind: bytes = b""
    """Identifies what was sent behind it in the request that was last refused for it."""


_ENTRY_BYTES = 250
_VERDICT_BYTES = 300
_SCORE_BYTES = 120


class KnownVerdicts(TenantEntries[bytes, Known]):
    """The known verdicts of all tenants of a process, by policy and item."""

    __slots__ = ("_flagged",)

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._flagged: Counter[str] = Counter()
        """Per tenant, how many items were flagged."""

    def has_flagged(self, tenant: str) -> bool:
        """Whether a flagged item of the tenant is known."""
        return self._flagged[tenant] > 0

    def find(self, tenant: str, policy: bytes, digest: bytes) -> Known | None:
        """What is known about an item with this digest, under a policy with that one; None if it was never
        inspected."""
        return self._find(tenant, policy + digest)

    def remember(
        self, tenant: str, policy: bytes, digest: bytes, verdicts: tuple[Verdict, ...], behind: bytes = b""
    ) -> None:
        """All checks of a policy have inspected an item, or one has refused it, which had this behind it."""
        key = policy + digest
        if key in self._by_tenant.get(tenant, ()):
            self._drop(tenant, key)
        is_flagged = any(verdict.flagged for verdict in verdicts)
        self._keep(tenant, {key: Known(verdicts, behind) if is_flagged else _CLEAN})

    def _hold(self, tenant: str, value: Known) -> int:
        self._flagged[tenant] += bool(value.verdicts)
        return _size(value)

    def _release(self, tenant: str, value: Known) -> int:
        self._flagged[tenant] -= bool(value.verdicts)
        if tenant not in self._by_tenant:
            del self._flagged[tenant]
        return _size(value)


_CLEAN = Known()


def _size(known: Known) -> int:
    scores = sum(len(verdict.scores) for verdict in known.verdicts)
    return _ENTRY_BYTES + _VERDICT_BYTES * len(known.verdicts) + _SCORE_BYTES * scores + len(known.behind)
