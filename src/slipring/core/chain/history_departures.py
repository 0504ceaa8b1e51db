"""Where a history that a client sends again departs from the ones that its tenant had here lately.

Known contexts are found by a digest of all their items: one that is not found says nothing about the item
that differs. So an outline of the latest histories of each tenant is kept, ten bytes for an item, and no
content.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.core.chain.head import raw_tools
from slipring.core.tenant_entries import TimedEntries
from slipring.protocol.item_digests import (
    OUTLINE_BYTES,
    digest_of,
    item_outline,
    outlined_field,
)
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.turn_report import Departure

MOST_ITEMS = 4000
"""Of a history that is compared and kept."""


_MOST_HISTORIES = 16
"""Of a tenant: each is compared with a history that is not recognised."""


_ENTRY_BYTES = 400


class Outline(Struct, frozen=True, eq=False):
    """A history without its content."""

    head: tuple[str, bytes, bytes]
    """The model, and digests of instructions and tools."""
    items: bytes
    context: bytes
    """The key of the context that ended with it, as it is known."""

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + len(self.items)

    def same_items(self, items: bytes) -> int:
        """How many items at the beginning of another history are the same."""
        low, high = 0, min(len(self.items), len(items)) // OUTLINE_BYTES
        while low < high:
            middle = (low + high + 1) // 2
            end = middle * OUTLINE_BYTES
            if self.items[:end] == items[:end]:
                low = middle
            else:
                high = middle - 1
        return low

    def resumes(self, items: bytes) -> bool:
        """Whether only the first item of another history differs, as far as the second one shows."""
        second = slice(OUTLINE_BYTES, 2 * OUTLINE_BYTES)
        return bool(items[second]) and self.items[second] == items[second]


def outline_of(items: Sequence[Item]) -> bytes:
    return b"".join(map(item_outline, items))


def head_outline(model: str, request: CreateRequest) -> tuple[str, bytes, bytes]:
    """The part of a request before its items."""
    return model, digest_of((request.instructions or "").encode()), digest_of(raw_tools(request))


class KnownHistories(TimedEntries[str, Outline]):
    """The latest histories of all tenants of a process, by the first response of their chain."""

    __slots__ = ()

    def remember(self, tenant: str, root_id: str, outline: Outline, now: float) -> None:
        """Keep a history instead of the one that it continues."""
        entries = self._by_tenant.get(tenant)
        if entries is not None and root_id in entries:
            self._drop(tenant, root_id)
        elif entries is not None and len(entries) >= _MOST_HISTORIES:
            self._drop(tenant, next(iter(entries)))
        if len(outline.items) <= MOST_ITEMS * OUTLINE_BYTES:
            self._keep_until(tenant, {root_id: outline}, now)

    def find(self, tenant: str, root_id: str | None) -> Outline | None:
        entries = self._by_tenant.get(tenant)
        return entries.get(root_id) if entries is not None and root_id is not None else None

    def departure(
        self, tenant: str, head: tuple[str, bytes, bytes], items: Sequence[Item], outline: bytes, now: float
    ) -> Departure | None:
        """Where a history departs from the one that it has most in common with; None if it departs from none:
        it continues that one or is a part of it, or has nothing in common with any."""
        entries = self._by_tenant.get(tenant)
        if entries is None:
            return None
        until = self._until[tenant]
        kept = [entry for root_id, entry in entries.items() if until[root_id] > now]
        best = max(reversed(kept), key=lambda entry: entry.same_items(outline), default=None)
        if best is None:
            return None
        same = best.same_items(outline)
        if not same:
            best = next((entry for entry in reversed(kept) if entry.resumes(outline)), None)
            if best is None:
                return None
        for name, one, other in zip(("model", "instructions", "tools"), best.head, head, strict=True):
            if one != other:
                return Departure(name)
        place = slice(same * OUTLINE_BYTES, (same + 1) * OUTLINE_BYTES)
        before, after = best.items[place], outline[place]
        if not before:
            return Departure("memory")
        if not after:
            return None
        return Departure(outlined_field(before, after, items[same]), same, items[same].type)

    def _hold(self, tenant: str, value: Outline) -> int:
        return value.size_bytes

    _release = _hold
