"""Rendering by delta: the token ids of a context, made by appending to those of its parent.

``tokens(child) = tokens(parent) + render(delta)``. Ids that an engine emitted are kept as emitted. A context
that cannot be appended to its parent (the parent was rendered by another model, the model's template rewrites
what was said before) is rendered from its items, and says why. How items are written is the business of the
two kinds of renderer, ``prompts.folding`` and ``prompts.templates``.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.core.generation import Job
from slipring.prompts.parsing.parser import CallFormat
from slipring.prompts.tokenization.token_budget import BOUNDLESS, Encoder, Room, TooManyTokens
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items import Item, kept_tools
from slipring.protocol.requests import TextFormat

_STEP_BYTES = 400
_TOKEN_BYTES = 11
"""An id, and its digits with a comma."""


class Step(Struct, frozen=True, eq=False):
    """Some ids, and the same as JSON without its brackets: engines are sent them with every later turn."""

    ids: "array[int]"
    """Unsigned, four bytes a token; a tuple would take forty."""
    json: bytes

    @classmethod
    def of(cls, ids: Iterable[int]) -> "Step":
        listed = list(ids)
        return cls(array("I", listed), wire.encode(listed)[1:-1])


class Body(Struct, frozen=True, eq=False):
    """The ids of a context without its head: what is new, and a pointer to what came before."""

    parent: "Body | None"
    step: Step
    total: int
    size_bytes: int
    tail: object
    """What the renderer has to know of all this to go on."""

    def then(self, ids: Iterable[int], tail: object) -> "Body":
        step = Step.of(ids)
        count = len(step.ids)
        size_bytes = self.size_bytes + _STEP_BYTES + _TOKEN_BYTES * count
        return Body(self, step, self.total + count, size_bytes, tail)

    def lineage(self) -> Iterator["Body"]:
        """This body and those it continues, newest first."""
        node: Body | None = self
        while node is not None:
            yield node
            node = node.parent

    def steps(self) -> Iterator[Step]:
        """Oldest first."""
        return reversed([node.step for node in self.lineage()])


def empty(tail: object) -> Body:
    """The body of a context that has only a head."""
    return Body(None, Step.of(()), 0, _STEP_BYTES, tail)


class Preface(Struct, frozen=True, eq=False):
    """What stands before the body, as tokens."""

    head: Head
    format: TextFormat
    step: Step

    def covers(self, job: Job) -> bool:
        """Whether a job's context begins with the very same."""
        same_head = self.head is job.head or self.head == job.head
        return same_head and self.format == job.settings.format


class Rendered(Struct, frozen=True, eq=False):
    """A context as tokens. The position that a tokens engine leaves with a response."""

    writer: str
    """Renderer and vocabulary that the ids belong to."""
    preface: Preface
    body: Body

    @property
    def total(self) -> int:
        return len(self.preface.step.ids) + self.body.total

    @property
    def size_bytes(self) -> int:
        return self.body.size_bytes + _TOKEN_BYTES * len(self.preface.step.ids)

    def steps(self) -> Iterator[Step]:
        return chain((self.preface.step,), self.body.steps())

    def ids(self) -> list[int]:
        """All ids. Costs the whole context."""
        return list(chain.from_iterable(step.ids for step in self.steps()))

    def json(self) -> bytes:
        """All ids as a JSON array, made of ready pieces."""
        return b"[" + b",".join(self.json_pieces()) + b"]"

    def json_pieces(self) -> list[bytes]:
        """The same without its brackets, in pieces to be joined by commas."""
        # Every turn asks for all steps of its chain: nothing but a walk along it.
        pieces: list[bytes] = []
        node: Body | None = self.body
        while node is not None:
            if written := node.step.json:
                pieces.append(written)
            node = node.parent
        if self.preface.step.json:
            pieces.append(self.preface.step.json)
        pieces.reverse()
        return pieces

    def then(self, ids: Iterable[int], tail: object) -> "Rendered":
        """This context and some more."""
        return Rendered(self.writer, self.preface, self.body.then(ids, tail))


class Rendering(Struct, frozen=True):
    """What rendering a job gave, and what it took."""

    context: Rendered
    """The context as it is: what a warmup prepares."""
    prompt: Rendered
    """The context with the model's turn opened: what it speaks after."""
    new_tokens: int
    fallback: str | None = None
    """Why all items had to be rendered, where they had."""
    dropped_items: int = 0
    """Left out, the oldest first, to make the rest fit."""

    def spoken(self, ids: Iterable[int]) -> Rendered:
        """The context after the model has spoken, in the message that the prompt opened."""
        return self.prompt.then(ids, self.prompt.body.tail)


class Said(dict[int, bytes]):
    """What tokens say, by their ids: each is found once."""

    def __init__(self, find: Callable[[int], bytes]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, id: int) -> bytes:
        said = self._find(id)
        if said:  # an id that says nothing may be any number
            self[id] = said
        return said

    def together(self, ids: Iterable[int]) -> bytes:
        return b"".join([self[id] for id in ids])


class Rewritten(Exception):
    """The delta cannot be appended: what stands before it would have to be written differently."""


class Renderer(ABC):
    """Writes contexts for one model, and knows how its answers are to be read."""

    calls: CallFormat
    always_appends: bool = False
    """Whether ``append`` never asks for everything to be written again."""

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._writer = f"{name} {vocabulary.fingerprint}"
        self._marks: dict[int, bytes] | None = None
        self.said = Said(self.bytes_of)

    @abstractmethod
    def stop_ids(self) -> frozenset[int]:
        """Control tokens that end an answer."""

    @abstractmethod
    def start(self, head: Head, format: TextFormat, items: Sequence[Item], encoder: Encoder) -> Rendered:
        """Write a context from its very beginning."""

    @abstractmethod
    def append(self, position: Rendered, job: Job, encoder: Encoder) -> Rendered:
        """Write a job's new items after its parent's tokens, or raise ``Rewritten``."""

    @abstractmethod
    def open(self, context: Rendered) -> Rendered:
        """Make it the model's turn to speak."""

    def wrote(self, position: Rendered) -> bool:
        """Whether a context's ids are this renderer's."""
        return position.writer == self._writer

    def opens_thought(self, prompt: Rendered) -> bool:
        """Whether a prompt ends inside a thought, so that the model begins by thinking."""
        return False

    def render(self, job: Job, room: Room = BOUNDLESS) -> Rendering:
        """Append a job's new items to its parent's tokens, or render everything where that cannot be.

        Raises ``TooManyTokens`` once it is clear that the context does not fit."""
        if job.parent is None:
            return self._in_full(job, job.input, self._encoder(room))
        position = job.parent.position
        if not isinstance(position, Rendered) or not self.wrote(position):
            reason = "the parent was not rendered by this model"
            return self._in_full(job, tuple(job.context()), self._encoder(room), reason)
        covered = position.preface.covers(job)
        kept = position.total if covered else position.body.total
        try:
            context = self.append(position, job, Encoder(self.vocabulary, room, used=kept))
        except Rewritten as rewritten:
            return self._in_full(job, tuple(job.context()), self._encoder(room), str(rewritten))
        prompt = self.open(context)
        return Rendering(context, prompt, prompt.total - kept)

    def shorten(self, job: Job, room: Room) -> Rendering | None:
        """A job's context without its oldest items, as much of it as there is room for; None where not even
        the last item fits. Calls and their outputs stay or go together, and tools that were added stay."""
        items = tuple(job.context())
        cuts = _cuts(items)
        fits: Rendering | None = None
        known: dict[str, list[int]] = {}
        low, high = 0, len(cuts)
        while low < high:
            middle = (low + high) // 2
            cut = cuts[middle]
            brought = filter(None, map(kept_tools, items[:cut]))
            kept = (*brought, *items[cut:])
            encoder = Encoder(self.vocabulary, room, known=known)
            dropped = len(items) - len(kept)
            try:
                tried = self._in_full(job, kept, encoder, "the oldest items were dropped", dropped)
            except TooManyTokens:
                tried = None
            if tried is not None and tried.prompt.total <= room.tokens:
                fits, high = tried, middle
            else:
                low = middle + 1
        return fits

    def _encoder(self, room: Room) -> Encoder:
        return Encoder(self.vocabulary, room)

    def bytes_of(self, id: int) -> bytes:
        """What a token of an answer says; the marks of calls and thoughts say themselves."""
        if self._marks is None:
            self._marks = self._mark_bytes()
        said = self._marks.get(id)
        return said if said is not None else self.vocabulary.bytes_of(id)

    def mark_of(self, id: int) -> str:
        """The mark that a token is, or nothing."""
        if self._marks is None:
            self._marks = self._mark_bytes()
        return self._marks.get(id, b"").decode()

    def _mark_bytes(self) -> dict[int, bytes]:
        calls, vocabulary = self.calls, self.vocabulary
        marks = (calls.call_open, calls.call_close, calls.think_open, calls.think_close, calls.prefix)
        return {
            vocabulary.control(mark): mark.encode() for mark in marks if mark and vocabulary.has_control(mark)
        }

    def _in_full(
        self,
        job: Job,
        items: Sequence[Item],
        encoder: Encoder,
        reason: str | None = None,
        dropped_items: int = 0,
    ) -> Rendering:
        context = self.start(job.head, job.settings.format, items, encoder)
        prompt = self.open(context)
        return Rendering(context, prompt, prompt.total, reason, dropped_items)


def _cuts(items: Sequence[Item]) -> list[int]:
    """Where the beginning may be cut off: not between a call and its output, not behind the last item."""
    answered = {item.call_id: index for index, item in enumerate(items) if item.type.endswith("_output")}
    cuts, reach = [], 0
    for index, item in enumerate(items[:-1]):
        if item.call_id is not None:
            reach = max(reach, answered.get(item.call_id, index))
        if reach <= index:
            cuts.append(index + 1)
    return cuts
