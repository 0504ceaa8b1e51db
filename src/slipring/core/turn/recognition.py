"""Recognises the beginning of a turn's input as a context that its tenant had here lately.

A turn without a parent may send a history that an engine has already processed. Its job then continues that
context, as though the client had named it, with the client's own items as the context's items. Nothing else
of the turn changes: all items are validated, and the response is stored, with the input that the client sent.

Clients of some APIs leave out the thoughts of the model (``CreateRequest.restores_thoughts``). Their contexts
are known by the other items alone: the model reads its own thoughts again, as in a chain. Thoughts that such
a client does send must be those.
"""

from itertools import islice

from msgspec import UNSET, structs

from slipring.core.chain import input_items
from slipring.core.chain.cache_diagnostics import MOST_ITEMS, Outline, head_outline, outline_of
from slipring.core.chain.head import Head
from slipring.core.chain.known_contexts import (
    NOTHING_YET,
    KnownContext,
    KnownContexts,
    Thoughts,
    boundaries,
    extended,
    is_thought,
    start_key,
)
from slipring.core.chain.state import OutputByJob, ResponseState
from slipring.core.generation import Finished
from slipring.protocol.items import Item, in_context, last_compaction
from slipring.protocol.pictures.item_pictures import may_be_models
from slipring.protocol.requests import CreateRequest
from slipring.protocol.turn_report import Departure

_MOST_OUTPUT_BYTES = 512 * 1024
"""Output is digested on the event loop, which takes a millisecond for this much. Only rollouts have more."""


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
            found = structs.replace(found, item=_place(self._input, found.item))
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
        sent = dict(zip(map(id, request.items), request.content_digests, strict=True))
        digests = boundaries(before, items, sent, with_thoughts=self._with_thoughts)
        self._input_digest = digests[-1] if digests else before
        return digests

    def parent(self, items: tuple[Item, ...], response_id: str) -> ResponseState | None:
        """The state that the job of this response continues: the recognised context, made up of the client's
        own items."""
        match = self.match
        if match is None:
            return None
        context = tuple(in_context(items[: self.items]))
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
        if self._input_digest is None or _size(state.output) > _MOST_OUTPUT_BYTES:
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
        return extended(digest, items, with_thoughts=self._with_thoughts)

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


def _place(items: tuple[Item, ...], number: int) -> int:
    """The index of an item among all, by its number among those that are no thoughts."""
    return next(islice((at for at, item in enumerate(items) if not is_thought(item)), number, None))


def _answer_start(context: tuple[Item, ...], count: int) -> int:
    """Where the answer at the end of a context begins, which has so many items beside its thoughts."""
    start = len(context)
    while start and (count or is_thought(context[start - 1])):
        start -= 1
        count -= not is_thought(context[start])
    return start


def _size(items: tuple[Item, ...]) -> int:
    return sum(len(item.raw) for item in items)
