"""Recognises what a client sends again: single items, whole histories, and where a history departs.

- ``KnownItems``: items that tenants sent lately, so that one which comes again is neither decoded nor read
  again.
- ``KnownContexts``: contexts that engines have processed, found by a digest of all their items. A turn
  (``Recognition``) whose input begins with one continues it.
- ``KnownHistories``: a context that is not found says nothing about the item that differs. So an outline of
  the latest histories of each tenant is kept, ten bytes for an item and no content, which says where a new
  one departs from them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import UNSET, Struct, structs

from slipring.core.byte_ledger import ChainLedger
from slipring.core.chain import input_items
from slipring.core.chain.instructions_and_tools import Head, raw_tools
from slipring.core.chain.state import OutputByJob, Position, ResponseState, echoed_bytes
from slipring.core.generation import Finished
from slipring.core.tenant_caches import TimedEntries
from slipring.protocol.items.item_digests import (
    OUTLINE_BYTES,
    content_digest,
    digest_of,
    item_outline,
    joined_thoughts_digest,
    outlined_field,
)
from slipring.protocol.items.items import Item, in_context, last_compaction, may_be_models, shown
from slipring.protocol.requests import NOTHING_KNOWN, CreateRequest, Known, Piece
from slipring.protocol.responses import Response
from slipring.protocol.turn_report import Departure

MOST_ITEMS = 4000
"""Of a history that is compared and kept."""
NOTHING_YET = b""
"""The digest of a context without items."""
_ENTRY_BYTES = 150
"""The entries of what was sent: under its bytes, and when it is dropped."""
_COMPUTED_BYTES = 400
"""What is computed of an item that is sent again, beyond what counts for every item: digests, an outline."""
_HISTORY_BYTES = 400
"""A known history, without the outline of its items."""
_CONTEXT_BYTES = 2000
"""A context and its response object, without head and position."""
_THOUGHT_BYTES = 150
_MOST_HISTORIES = 16
"""Of a tenant: each is compared with a history that is not recognised."""
_HISTORIES_FRACTION = 64
"""Outlines of histories may use one part in this many of what contexts may, in addition."""
_MOST_UNFIT = 8
"""Contexts with other thoughts than a history that are looked at for it: each takes as long as the history is
long."""
_MOST_OUTPUT_BYTES = 512 * 1024
"""Output is digested on the event loop, which takes a millisecond for this much. Only rollouts have more."""
_AFTER = "digest_after"

# Single items.


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
            return value.size_bytes + len(value.json) * _COMPUTED_BYTES + _ENTRY_BYTES
        sent = value.sent
        spelled = 0 if sent is value.raw else len(sent)
        return value.size_bytes + spelled + _COMPUTED_BYTES + _ENTRY_BYTES

    _release = _hold


# Where a history departs from earlier ones.


class Outline(Struct, frozen=True, eq=False):
    """A history without its content."""

    head: tuple[str, bytes, bytes]
    """The model, and digests of instructions and tools."""
    items: bytes
    context: bytes
    """The key of the context that ended with it, as it is known."""

    @property
    def size_bytes(self) -> int:
        return _HISTORY_BYTES + len(self.items)

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


# Contexts, by the digests of their items.


def extended_digest(digest: bytes, items: Iterable[Item], *, with_thoughts: bool = True) -> bytes:
    """The digest of a context after these items; ``digest`` is that of the context before them."""
    for item in items:
        if with_thoughts or not is_thought(item):
            for each in (item,) if item.opened is None else item.opened:
                digest = digest_of(digest + content_digest(each))
    return digest


def boundary_digests(digest: bytes, items: Iterable[Item], *, with_thoughts: bool = True) -> list[bytes]:
    """The digests of a context after each of these items; ``digest`` is that of the context before them.
    Without thoughts, these do not change the digest."""
    digests: list[bytes] = []
    for item in items:
        if with_thoughts or not is_thought(item):
            digest = _digest_after(digest, item)
        digests.append(digest)
    return digests


def _digest_after(digest: bytes, item: Item) -> bytes:
    """The digest of a context after an item. Kept with an item that stands for itself: in a history that is
    sent again, the same items come before it."""
    if item.opened is not None:
        return extended_digest(digest, (item,))
    kept: tuple[bytes, bytes] | None = item.__dict__.get(_AFTER)
    if kept is None or kept[0] != digest:
        kept = item.__dict__[_AFTER] = digest, digest_of(digest + content_digest(item))
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
                unknown.setdefault(extended_digest(NOTHING_YET, (item,)), index)
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
    return (extended_digest(NOTHING_YET, (item,)) for item in items if is_thought(item))


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

        ``start``: the ``start_key`` of the history; ``digests``: the ``boundary_digests`` of its items. At
        least one item must follow a context that ends with an answer.
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


# The context of one turn.


class Recognition:
    """What is known of one turn's context, before and after its answer."""

    __slots__ = (
        "_input",
        "_input_digest",
        "_is_opening",
        "_known",
        "_outline",
        "_tenant",
        "_with_thoughts",
        "departed",
        "items",
        "match",
    )

    def __init__(self, known: KnownContexts, tenant: str) -> None:
        self._known = known
        self._tenant = tenant
        self.match: KnownContext | None = None
        """The context that the input begins with."""
        self.items = 0
        """How many items of the input it has."""
        self._input_digest: bytes | None = None
        """The digest of the context with the input; None if the turn's contexts are not to be known."""
        self._input: tuple[Item, ...] = ()
        """The items of the request."""
        self._with_thoughts = True
        """Whether thoughts are part of what contexts are known by."""
        self._is_opening = False
        """Whether no model has answered before."""
        self._outline: Outline | None = None
        """Of the input, if it is a whole history."""
        self.departed: Departure | None = None
        """Where the input departs from an earlier history."""

    def look_up(
        self, request: CreateRequest, items: tuple[Item, ...], model: str, now: float, head: Head | None
    ) -> None:
        """Look for the longest known context that these items, of a turn without a parent, begin with.
        ``head``: one that was read before, and may be that of the request."""
        if not self._known.is_on:
            return
        digests = self._digest_input(NOTHING_YET, request, items)
        self._is_opening = not any(map(may_be_models, items))
        digest = head.digest if head is not None and head.is_of(request) else Head.digest_of(request)
        start = start_key(model, digest, with_thoughts=self._with_thoughts)
        found = self._known.deepest(self._tenant, start, items, digests, now)
        if found is not None:
            self.items, self.match = found
        self._compare(request, model, now)

    def _compare(self, request: CreateRequest, model: str, now: float) -> None:
        """Compare the history with earlier ones, unless it continues the latest one of its chain."""
        histories, match = self._known.histories, self.match
        before = histories.find(self._tenant, match.root_id) if match is not None else None
        if before is not None and match is not None and before.context == match.key:
            added = outline_of(self._counted(self._input[self.items :]))
            self._outline = structs.replace(before, items=before.items + added)
            return
        counted = self._counted(self._input)
        if len(counted) > MOST_ITEMS:
            return
        self._outline = Outline(head_outline(model, request), outline_of(counted), b"")
        found = histories.departure(self._tenant, self._outline.head, counted, self._outline.items, now)
        if found is not None and found.item is not UNSET and len(counted) < len(self._input):
            found = structs.replace(found, item=_index_of(self._input, found.item))
        self.departed = None if found is not None and found.field == "memory" and match is not None else found

    def _counted(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """The items that contexts are known by."""
        return items if self._with_thoughts else tuple(item for item in items if not is_thought(item))

    def follow(self, parent: ResponseState, request: CreateRequest, items: tuple[Item, ...]) -> None:
        """Note the context of a turn that continues ``parent`` with these items."""
        if self._known.is_on and parent.digest is not None:
            self._digest_input(parent.digest, request, items)

    def _digest_input(self, before: bytes, request: CreateRequest, items: tuple[Item, ...]) -> list[bytes]:
        """Digest the input; returns the digests of the context after each item."""
        self._input, self._with_thoughts = items, not request.restores_thoughts
        digests = boundary_digests(before, items, with_thoughts=self._with_thoughts)
        self._input_digest = digests[-1] if digests else before
        return digests

    def parent(self, items: tuple[Item, ...], response_id: str) -> ResponseState | None:
        """The state that the job of this response continues: the recognised context, made up of the client's
        own items."""
        match = self.match
        if match is None:
            return None
        context = shown(items[: self.items])
        answer_start = len(context) - match.answer_items
        if match.thoughts is not None:
            answer_start = _answer_start(context, match.answer_items)
        state = ResponseState(
            response=match.response,
            parent=None,
            head=match.head,
            input=context[:answer_start],
            output=context[answer_start:],
            carry=input_items.NOTHING,  # the turn validates all items, from the first on
            position=match.position,
        )
        state.root_id = match.root_id or response_id
        return state

    def remember(
        self,
        state: ResponseState,
        finished: Finished,
        *,
        is_shared: bool,
        now: float,
        unanswered: int | None = None,
    ) -> None:
        """Set the digest of a finished response, and let later requests continue its contexts.

        ``is_shared``: whether the engine has extended the position of the context that its job continued.
        ``unanswered``: where in the output the last step begins, if the engine has not processed what the
        calls of that step returned. Its position is then not that of any items: a history is continued
        before that step.
        """
        digested = self._digest_output(state, unanswered)
        if digested is None:
            return
        prompt_digest, digest, steps = digested
        if unanswered is None:
            state.digest = digest
        if finished.context is None:
            return
        start = self._start_key(state.response.model, state.head)
        before = self._continued(state, start) if is_shared else None
        root_id = (self.match.root_id if self.match is not None else None) or state.root_id
        # Many chains may begin with the same question: each of them is a chain of its own.
        is_opening = self._is_opening and not steps.earlier
        sent = self._input if before is None else self._input[self.items :]
        thoughts = self._thoughts(before.thoughts if before is not None else None, sent, steps.earlier)
        response = structs.replace(state.response, output=[], usage=None)
        asked = KnownContext(
            start + prompt_digest,
            response=response,
            head=state.head,
            position=finished.context,
            root_id=None if is_opening else root_id,
            parent=before,
            answer_items=0,
            thoughts=thoughts,
        )
        asked = self._known.remember(self._tenant, asked, now)
        # An answer of thoughts alone is not part of what its context is known by.
        if digest != prompt_digest and finished.position is not None:
            answered = KnownContext(
                start + digest,
                response=response,
                head=state.head,
                position=finished.position,
                root_id=root_id,
                parent=asked,
                answer_items=sum(self._with_thoughts or not is_thought(item) for item in steps.answer),
                thoughts=self._thoughts(thoughts, (), steps.answer),
            )
            self._known.remember(self._tenant, answered, now)
            if self._outline is not None and last_compaction(state.output) is None:
                items = self._outline.items + outline_of(self._counted(state.output))
                outline = structs.replace(self._outline, items=items, context=answered.key)
                self._known.histories.remember(self._tenant, root_id, outline, now)

    def _digest_output(
        self, state: ResponseState, unanswered: int | None
    ) -> tuple[bytes, bytes, OutputByJob] | None:
        """The digests of the context that the last job got, and of that with its answer, and the output by
        job; None if the contexts are not to be known."""
        if self._input_digest is None or _raw_bytes(state.output) > _MOST_OUTPUT_BYTES:
            return None
        output, steps = state.output, state.steps
        made = last_compaction(output)
        if unanswered is not None:
            added = output[0 if made is None else made + 1 : unanswered]
            steps = OutputByJob(tuple(in_context(added)), (), ())
        elif steps.unread:
            return None  # the engine's position does not cover the whole context
        if made is None:
            prompt_digest = self._extended(self._input_digest, steps.earlier)
        else:
            compacted = tuple(in_context(output[made : made + 1]))
            prompt_digest = self._extended(NOTHING_YET, compacted + steps.earlier)
        return prompt_digest, self._extended(prompt_digest, steps.answer), steps

    def _extended(self, digest: bytes, items: tuple[Item, ...]) -> bytes:
        return extended_digest(digest, items, with_thoughts=self._with_thoughts)

    def _start_key(self, model: str, head: Head) -> bytes:
        return start_key(model, head.digest, with_thoughts=self._with_thoughts)

    def _thoughts(
        self, before: Thoughts | None, sent: tuple[Item, ...], answered: tuple[Item, ...]
    ) -> Thoughts | None:
        """The thoughts of a context that adds these items to another; None if its key has them."""
        return None if self._with_thoughts else Thoughts(before, sent, answered)

    def _continued(self, state: ResponseState, start: bytes) -> KnownContext | None:
        """The known context that the response continued. ``start``: the ``start_key`` of the response."""
        parent = state.parent
        if parent is None or parent.digest is None:
            return self.match
        if parent.head is not state.head or parent.response.model != state.response.model:
            start = self._start_key(parent.response.model, parent.head)
        return self._known.find(self._tenant, start + parent.digest)


def _index_of(items: tuple[Item, ...], number: int) -> int:
    """The index of an item among all, by its number among those that are no thoughts."""
    return next(islice((at for at, item in enumerate(items) if not is_thought(item)), number, None))


def _answer_start(context: tuple[Item, ...], count: int) -> int:
    """Where the answer at the end of a context begins, which has so many items beside its thoughts."""
    start = len(context)
    while start and (count or is_thought(context[start - 1])):
        start -= 1
        count -= not is_thought(context[start])
    return start


def _raw_bytes(items: tuple[Item, ...]) -> int:
    return sum(len(item.raw) for item in items)
