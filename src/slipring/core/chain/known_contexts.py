"""Recognises a history that a client sends again: finds the context that an engine has processed for it.

Many clients keep no ids: with every turn they send their whole history again. If its beginning is a context
that an engine has processed for the same tenant, model and head, the engine can continue from there.
This module finds such a context by a digest of its items, and keeps what an engine needs to continue it:
positions, no items. Contexts are kept for a bounded time and within a bounded number of bytes. Past that
bound, the tenant that uses the most bytes loses the context that was used longest ago.

``KnownItems`` are the items and messages of such histories: one that comes again in the same bytes has what
was computed of it before, and is neither decoded nor translated again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slipring.core.byte_ledger import ChainLedger
from slipring.core.chain.cache_diagnostics import KnownHistories
from slipring.core.chain.head import Head
from slipring.core.chain.state import Position, echoed_bytes
from slipring.core.tenant_entries import TimedEntries
from slipring.protocol.endpoints.resent_messages import NOTHING_KNOWN, Known, Piece
from slipring.protocol.item_digests import content_digest, digest_of, joined_thoughts_digest
from slipring.protocol.items import Item
from slipring.protocol.responses import Response

NOTHING_YET = b""
"""The digest of a context without items."""
_AFTER = "digest_after"
_THOUGHT_BYTES = 150
_CONTEXT_BYTES = 2000
"""A context and its response object, without head and position."""
_ITEM_BYTES = 200
"""The entries of a known item, about 100 bytes, and what is computed only of items without a parent."""
_HISTORIES_FRACTION = 64
"""Outlines of histories may use one part in this many of what contexts may, in addition."""
_MOST_UNFIT = 8
"""Contexts with other thoughts than a history that are looked at for it: each takes as long as the history is
long."""


def extended(digest: bytes, items: Iterable[Item], *, with_thoughts: bool = True) -> bytes:
    """The digest of a context after these items; ``digest`` is that of the context before them."""
    for item in items:
        if with_thoughts or not is_thought(item):
            for each in (item,) if item.opened is None else item.opened:
                digest = digest_of(digest + content_digest(each))
    return digest


def boundaries(
    digest: bytes,
    items: Sequence[Item],
    content_digests: Mapping[int, bytes],
    *,
    with_thoughts: bool = True,
) -> list[bytes]:
    """The digests of a context after each of these items; ``digest`` is that of the context before them.
    ``content_digests``: those of items that were digested before, by ``id()``. Without thoughts, these do not
    change the digest."""
    digests: list[bytes] = []
    for item in items:
        if not with_thoughts and is_thought(item):
            digests.append(digest)
            continue
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


def start_key(model: str, head_digest: bytes, *, with_thoughts: bool = True) -> bytes:
    """What the keys of all contexts with this model and head begin with, before the digest of their items:
    contexts of other models and heads have other tokens, and so may those whose thoughts do not count."""
    key = digest_of(head_digest + model.encode())
    return key if with_thoughts else digest_of(key)


def is_thought(item: Item) -> bool:
    return item.type == "reasoning"


class Thoughts:
    """The thoughts in a context of whose key they are no part, as digests."""

    __slots__ = ("_answered", "_before", "_sent", "size_bytes")

    def __init__(self, before: "Thoughts | None", sent: Iterable[Item], answered: Sequence[Item]) -> None:
        """``before``: those of the context that this one continues. ``sent``: the items that its client has
        added, and that were not recognised; ``answered``: those that the model has. A client may join the
        thoughts of an answer to one."""
        self._before = before
        self._sent = frozenset(_digests_of(sent))
        joined = joined_thoughts_digest(answered)
        own = (*_digests_of(answered), *(() if joined is None else (digest_of(NOTHING_YET + joined),)))
        self._answered = frozenset(own)
        self.size_bytes = _THOUGHT_BYTES * (len(self._sent) + len(self._answered))

    def departs_at(self, items: Sequence[Item]) -> int | None:
        """Where a history departs from the context: at the first of its thoughts that the context does not
        have, or at its end if it leaves out one that is not the model's own. None if it may be continued by
        the context."""
        unknown: dict[bytes, int] = {}
        for index, item in enumerate(items):
            if is_thought(item):
                unknown.setdefault(extended(NOTHING_YET, (item,)), index)
        given = frozenset(unknown)
        known: Thoughts | None = self
        while known is not None:
            if not known._sent <= given:
                return len(items)
            for each in (*known._sent, *known._answered):
                unknown.pop(each, None)
            known = known._before
        return min(unknown.values(), default=None)


def _digests_of(items: Iterable[Item]) -> Iterator[bytes]:
    return (extended(NOTHING_YET, (item,)) for item in items if is_thought(item))


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
        "thoughts",
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
        thoughts: Thoughts | None = None,
    ) -> None:
        self.key = key
        self.response = response
        """The response that had this context, without its output and its usage."""
        self.head = head
        self.position = position
        self.root_id = root_id
        """Id of the first response of its chain; None if every continuation is the beginning of a chain."""
        self.parent = parent
        """The context that it extends. Its position may share memory with that of this one."""
        self.answer_items = answer_items
        """How many items at its end are the answer of ``response``; thoughts do not count if ``thoughts`` is
        set."""
        self.thoughts = thoughts
        """Set if its key has no thoughts: those that a history which repeats it may contain or leave out."""
        size = _CONTEXT_BYTES
        size += position.size_bytes if parent is None else position.unshared_bytes(parent.position)
        if parent is None or parent.head is not head:
            size += head.size_bytes
        if parent is None or parent.response is not response:
            size += echoed_bytes(response)
        if thoughts is not None:
            size += thoughts.size_bytes
        self.size_bytes: int = size


class KnownContexts(TimedEntries[bytes, KnownContext]):
    """The known contexts of all tenants of a process."""

    __slots__ = ("_keys", "_retention", "histories")

    def __init__(self, duration_s: float, limit_bytes: int) -> None:
        super().__init__(duration_s, limit_bytes)
        self._retention: ChainLedger[KnownContext] = ChainLedger()
        self._keys: dict[tuple[str, str], list[bytes]] = {}
        """By tenant and response id: the keys of its contexts."""
        self.histories = KnownHistories(duration_s, limit_bytes // _HISTORIES_FRACTION)
        """What histories looked like that ended with these contexts."""

    def deepest(
        self, tenant: str, start: bytes, items: Sequence[Item], digests: Sequence[bytes], now: float
    ) -> tuple[int, KnownContext] | None:
        """The longest known beginning of a history: how many of its items it has, and the context.

        ``start``: the ``start_key`` of the history; ``digests``: the ``boundaries`` of its items. At least
        one item must follow a context that ends with an answer.
        """
        contexts = self._by_tenant.get(tenant)
        if contexts is None:
            return None
        until = self._until[tenant]
        count, left = len(digests), _MOST_UNFIT
        while count and left:
            found = contexts.get(start + digests[count - 1])
            if found is None or until[found.key] <= now or (found.answer_items and count == len(digests)):
                count -= 1
                continue
            departs_at = found.thoughts.departs_at(items[:count]) if found.thoughts is not None else None
            if departs_at is None:
                self._renew(tenant, found.key, now)
                return count, found
            count, left = min(departs_at, count - 1), left - 1
        return None

    def find(self, tenant: str, key: bytes) -> KnownContext | None:
        contexts = self._by_tenant.get(tenant)
        return contexts.get(key) if contexts is not None else None

    def remember(self, tenant: str, context: KnownContext, now: float) -> KnownContext:
        """Keep a context; returns it, or the one with the same key that is known already."""
        known = self.find(tenant, context.key)
        if known is None:
            self._keep_until(tenant, {context.key: context}, now)
            return context
        self._renew(tenant, known.key, now)
        return known

    def forget_response(self, tenant: str, response_id: str) -> None:
        """Drop the contexts of a response, because it was deleted."""
        self.histories.forget(tenant)
        for key in list(self._keys.get((tenant, response_id), ())):
            self._drop(tenant, key)

    def sweep(self, now: float) -> None:
        super().sweep(now)
        self.histories.sweep(now)

    def _hold(self, tenant: str, value: KnownContext) -> int:
        self._keys.setdefault((tenant, value.response.id), []).append(value.key)
        return self._retention.hold(value)

    def _release(self, tenant: str, value: KnownContext) -> int:
        place = (tenant, value.response.id)
        self._keys[place].remove(value.key)
        if not self._keys[place]:
            del self._keys[place]
        return self._retention.release(value)


class KnownItems(TimedEntries[bytes, Item | Piece]):
    """The known items and messages of all tenants of a process, by the bytes that were sent."""

    __slots__ = ()

    def of(self, tenant: str) -> Known:
        """What a tenant has sent, by its bytes. May be read in another thread."""
        return self._by_tenant.get(tenant, NOTHING_KNOWN)

    def remember(self, tenant: str, pieces: Known, now: float) -> None:
        """Keep what a request consists of, or keep it for longer."""
        if pieces and self.is_on:
            self._keep_until(tenant, pieces, now)

    def _hold(self, tenant: str, value: Item | Piece) -> int:
        if isinstance(value, Piece):
            return value.size_bytes + _ITEM_BYTES
        sent = value.sent
        return value.size_bytes + (0 if sent is value.raw else len(sent)) + _ITEM_BYTES

    _release = _hold
