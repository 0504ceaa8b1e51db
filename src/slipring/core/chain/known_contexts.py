"""Contexts that tenants had here lately, by what they contain.

Many clients keep no ids: with every turn they send their whole history again. If its beginning is a context
that an engine has processed for the same tenant, model and head, the engine can continue from there.
This module finds such a context by a digest of its items, and keeps what an engine needs to continue it:
positions, no items. Contexts are kept for a bounded time and within a bounded number of bytes. Past that
bound, the tenant that uses the most bytes loses the context that was used longest ago.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from slipring.core.byte_ledger import Ledger
from slipring.core.chain.head import Head
from slipring.core.chain.retention import Retention
from slipring.core.chain.state import Position, echoed_bytes
from slipring.protocol.item_digests import content_digest, digest_of
from slipring.protocol.items import Item
from slipring.protocol.responses import Response

NOTHING_YET = b""
"""The digest of a context without items."""
_AFTER = "digest_after"
_CONTEXT_BYTES = 2000
"""A context and its response object, without head and position."""


def extended(digest: bytes, items: Iterable[Item]) -> bytes:
    """The digest of a context after these items; ``digest`` is that of the context before them."""
    for item in items:
        for each in (item,) if item.opened is None else item.opened:
            digest = digest_of(digest + content_digest(each))
    return digest


def boundaries(digest: bytes, items: Sequence[Item], content_digests: Mapping[int, bytes]) -> list[bytes]:
    """The digests of a context after each of these items; ``digest`` is that of the context before them.
    ``content_digests``: those of items that were digested before, by ``id()``."""
    digests: list[bytes] = []
    for item in items:
        content = content_digests.get(id(item)) if item.opened is None else None
        digest = extended(digest, (item,)) if content is None else _after(digest, item, content)
        digests.append(digest)
    return digests


def _after(digest: bytes, item: Item, content: bytes) -> bytes:
    """The digest of a context after an item. Kept with the item: in a history that is sent again, the same
    items come before it."""
    kept: tuple[bytes, bytes] | None = item.__dict__.get(_AFTER)
    if kept is None or kept[0] != digest:
        kept = item.__dict__[_AFTER] = digest, digest_of(digest + content)
    return kept[1]


def start_key(model: str, head_digest: bytes) -> bytes:
    """What the keys of all contexts with this model and head begin with, before the digest of their items:
    contexts of other models and heads have other tokens."""
    return digest_of(head_digest + model.encode())


class KnownContext:
    """A context that an engine has processed."""

    __slots__ = (
        "answer_items",
        "head",
        "key",
        "parent",
        "position",
        "response",
        "root_id",
        "size_bytes",
        "until",
    )

    def __init__(
        self,
        key: bytes,
        *,
        response: Response,
        head: Head,
        position: Position,
        root_id: str | None,
        parent: "KnownContext | None",
        answer_items: int,
    ) -> None:
        self.key = key
        self.response = response
        """The response that had this context, without its output and its usage."""
        self.head = head
        self.position = position
        self.root_id = root_id
        """Id of the first response of its chain; None if every continuation is the beginning of a chain."""
        self.parent = parent
        """The context that it extends, if the memory of its position is shared with it."""
        self.answer_items = answer_items
        """How many items at its end are the answer of ``response``."""
        self.until = 0.0
        """When it is forgotten, unless it is used before."""
        size = _CONTEXT_BYTES + position.size_bytes
        if parent is not None:
            size -= min(parent.position.size_bytes, position.size_bytes)
        if parent is None or parent.head is not head:
            size += head.size_bytes
        if parent is None or parent.response is not response:
            size += echoed_bytes(response)
        self.size_bytes: int = size


_Contexts = OrderedDict[bytes, KnownContext]


class KnownContexts:
    """The known contexts of all tenants of a process."""

    __slots__ = ("_by_tenant", "_bytes", "_duration_s", "_keys", "_retention")

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        """With a duration or a limit of 0, no context is ever known."""
        self._duration_s = duration_s
        self._bytes = Ledger(limit_bytes, limit_bytes)
        self._retention: Retention[KnownContext] = Retention()
        self._by_tenant: dict[str, _Contexts] = {}
        """Per tenant by key, the one used longest ago first."""
        self._keys: dict[tuple[str, str], list[bytes]] = {}
        """By tenant and response id: the keys of its contexts."""

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    @property
    def is_on(self) -> bool:
        """Whether contexts are kept at all."""
        return bool(self._duration_s and self._bytes.limit_bytes)

    @property
    def limit_bytes(self) -> int:
        return self._bytes.limit_bytes

    @property
    def used_bytes(self) -> int:
        return self._bytes.used_bytes

    def deepest(
        self, tenant: str, start: bytes, digests: Sequence[bytes], now: float
    ) -> tuple[int, KnownContext] | None:
        """The longest known beginning of a history: how many of its items it has, and the context.

        ``start``: the ``start_key`` of the history; ``digests``: its ``boundaries``. At least one item must
        follow a context that ends with an answer.
        """
        contexts = self._by_tenant.get(tenant)
        if contexts is None:
            return None
        for count in range(len(digests), 0, -1):
            found = contexts.get(start + digests[count - 1])
            if found is None or found.until <= now or (found.answer_items and count == len(digests)):
                continue
            self._renew(contexts, found, now)
            return count, found
        return None

    def find(self, tenant: str, key: bytes) -> KnownContext | None:
        """The known context with this key."""
        contexts = self._by_tenant.get(tenant)
        return contexts.get(key) if contexts is not None else None

    def remember(self, tenant: str, context: KnownContext, now: float) -> KnownContext:
        """Keep a context; returns it, or the one with the same key that is known already."""
        contexts = self._by_tenant.get(tenant)
        if contexts is None:
            contexts = self._by_tenant[tenant] = OrderedDict()
        known = contexts.get(context.key)
        if known is not None:
            self._renew(contexts, known, now)
            return known
        contexts[context.key] = context
        context.until = now + self._duration_s
        self._keys.setdefault((tenant, context.response.id), []).append(context.key)
        self._bytes.add(tenant, self._retention.hold(context))
        while not self._bytes.fits(0) and (largest := self._bytes.largest()) is not None:
            self._drop(largest, next(iter(self._by_tenant[largest])))
        return context

    def forget(self, tenant: str, response_id: str) -> None:
        """Drop the contexts of a response, because it was deleted."""
        for key in list(self._keys.get((tenant, response_id), ())):
            self._drop(tenant, key)

    def sweep(self, now: float) -> None:
        """Drop the contexts whose time is over."""
        for tenant in list(self._by_tenant):
            while (contexts := self._by_tenant.get(tenant)) and (oldest := next(iter(contexts.values()))):
                if oldest.until > now:
                    break
                self._drop(tenant, oldest.key)

    def _renew(self, contexts: _Contexts, context: KnownContext, now: float) -> None:
        contexts.move_to_end(context.key)
        context.until = now + self._duration_s

    def _drop(self, tenant: str, key: bytes) -> None:
        contexts = self._by_tenant[tenant]
        context = contexts.pop(key)
        if not contexts:
            del self._by_tenant[tenant]
        place = (tenant, context.response.id)
        self._keys[place].remove(key)
        if not self._keys[place]:
            del self._keys[place]
        if freed_bytes := self._retention.release(context):
            self._bytes.remove(tenant, freed_bytes)
