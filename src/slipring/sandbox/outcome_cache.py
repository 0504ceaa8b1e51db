"""Outcomes of earlier calls, refusals included: what was compiled once is not compiled again.

Each tenant finds only its own: whether somebody else has sent the same cannot be told from the time it takes.
"""

from collections import OrderedDict

from slipring.sandbox.pipe_messages import Outcome

_SHARE = 8
"""A tenant may fill this part of the whole."""
_ENTRY_BYTES = 500
"""What an entry takes beside its outcome."""

Key = tuple[str, bytes]
"""A tenant, and the digest of a call."""


class Cache:
    """Outcomes within a bound on their size; those that were used least recently are dropped."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Key, tuple[Outcome, int]] = OrderedDict()
        self._tenants: dict[str, OrderedDict[Key, int]] = {}
        self._tenant_bytes: dict[str, int] = {}
        self.used_bytes = 0

    def find(self, key: Key) -> Outcome | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        self._tenants[key[0]].move_to_end(key)
        return found[0]

    def keep(self, key: Key, outcome: Outcome, size_bytes: int) -> None:
        """Keep an outcome of this encoded size, unless it is larger than all that its tenant may keep."""
        size_bytes += _ENTRY_BYTES
        share = self._most_bytes // _SHARE
        if size_bytes > share:
            return
        self._drop(key)
        tenant = key[0]
        self._entries[key] = outcome, size_bytes
        self._tenants.setdefault(tenant, OrderedDict())[key] = size_bytes
        self._charge(tenant, size_bytes)
        while self._tenant_bytes[tenant] > share:
            self._drop(next(iter(self._tenants[tenant])))
        while self.used_bytes > self._most_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        found = self._entries.pop(key, None)
        if found is None:
            return
        tenant = key[0]
        del self._tenants[tenant][key]
        self._charge(tenant, -found[1])
        if not self._tenants[tenant]:
            del self._tenants[tenant], self._tenant_bytes[tenant]

    def _charge(self, tenant: str, size_bytes: int) -> None:
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + size_bytes
        self.used_bytes += size_bytes
