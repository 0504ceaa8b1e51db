"""The beginning of a context whose end is not known yet.

The context is rendered twice, with two different endings. The tokens that both begin with are those of every
likely ending. Nothing depends on that being right: when the request comes, its context is rendered as always,
and an engine that has processed tokens which are not in it processes others instead.
"""

from msgspec import Struct, structs

from slipring.core.generation import Prefill
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.rendering_codec import common_tokens
from slipring.prompts.tokenization.token_budget import TokenBudget
from slipring.protocol import wire
from slipring.protocol.items import items
from slipring.protocol.items.item_pictures import pictures
from slipring.protocol.items.items import CallOutput, Item, plain_text

_ENDINGS = ("\n0", ".0")
"""Two endings of a text after a place at which it is split before blanks and marks. They have no token in
common, and end with what no template removes."""
_MESSAGES = ("0", "Z")


class Foreseen(Struct, frozen=True):
    """The certain beginning of a context."""

    context: Rendered
    parent: Rendered | None
    """The context that it continues; None if the parent's tokens are rendered anew."""

    def first(self, tokens: int) -> Rendered:
        """The first tokens of the context, but not fewer than the parent has."""
        context, body = self.context, self.context.body
        assert body.parent is not None
        step = body.step.ids[: tokens - (context.total - len(body.step.ids))]
        return Rendered(context.writer, context.preface, body.parent.then(step, body.tail))


def foresee(renderer: Renderer, prefill: Prefill, budget: TokenBudget) -> Foreseen | None:
    """Render what is certain of a context; None if it adds nothing to that of its parent, or has pictures.

    Raises ``TooManyTokens``, or ``InvalidRequest`` if the template refuses what is expected.
    """
    job = prefill.job
    if any(map(pictures, job.input)):
        return None
    endings = _growing(renderer, job.input) if prefill.expects == "output" else _user_messages(job.input)
    one, other = (renderer.render(structs.replace(job, input=ending), budget) for ending in endings)
    is_appended = one.fallback is None and other.fallback is None
    if prefill.expects == "user" and is_appended:
        return None  # the template rewrites nothing in this conversation
    body = one.context.body
    if body.parent is None or one.fallback != other.fallback or body.pictures:
        return None
    ids, others = body.step.ids, other.context.body.step.ids
    certain = ids[: common_tokens(ids.tobytes(), others.tobytes())]
    context = Rendered(one.context.writer, one.context.preface, body.parent.then(certain, body.tail))
    position = job.parent.position if job.parent is not None and is_appended else None
    return Foreseen(context, position if isinstance(position, Rendered) else None)


def _growing(renderer: Renderer, known: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    """The items with two endings of the last one, the output of a call."""
    *before, last = known
    body = last.body()
    assert isinstance(body, CallOutput)
    text = plain_text(body.output)
    certain = text[: renderer.vocabulary.certain_chars(text)]
    return [
        (*before, _item(type=last.type, call_id=body.call_id, output=certain + ending)) for ending in _ENDINGS
    ]


def _user_messages(known: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    """The items, followed by two messages that a user might send."""
    return [(*known, _item(type="message", role="user", content=text)) for text in _MESSAGES]


def _item(**fields: str) -> Item:
    return items.read_items([wire.raw(fields)])[0]
