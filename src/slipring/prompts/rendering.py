"""Rendering by delta: the token ids of a context are those of its parent plus those of the new items.

``tokens(child) = tokens(parent) + render(delta)``. Ids that an engine emitted are kept as emitted. If the
delta cannot be appended (another model rendered the parent, the model's template rewrites earlier turns),
the context is rendered from all its items and ``Rendering.fallback`` gives the reason.

A chain keeps some things although a rendering of its whole history would drop or change them: without a
``ChainChoice``, the engine would have to read the last answer again in every turn. Which of these choices the
template of a model makes necessary is found when its renderer is made; ``slipring inspect`` names them.

``templates.template_renderer`` has the ``Renderer`` that runs chat templates.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import ANY_ID, Job, Settings
from slipring.prompts.fallback_reasons import CANNOT_SEE, OTHER_WRITER, CannotAppend
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.tokenization.token_budget import UNLIMITED, BudgetedEncoder, TokenBudget
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items.items import Effort, Item
from slipring.protocol.requests import TextFormat

_STEP_BYTES = 400
_PICTURE_BYTES = 150
_TOKEN_BYTES = 11
"""Estimate per token: four bytes for the id, the rest for its decimal digits and a comma."""


class PlacedPicture(Struct, frozen=True, array_like=True):
    """A picture among the ids of a step."""

    at: int
    """Which of the ids stands for it."""
    digest: str
    tokens: int
    """How many tokens it takes beside that id, as far as was known when it was rendered."""


def picture_id(digest: str) -> int:
    """What stands for a picture among ids, if the template writes no token for one: no id of a vocabulary.
    Contexts with other pictures have other ids."""
    return ANY_ID | int(digest[:8], 16)


class EncodedIds(Struct, frozen=True, eq=False):
    """Token ids, also encoded as JSON without brackets: every later turn sends them to the engine again."""

    ids: "array[int]"
    """Unsigned 32-bit: four bytes per token, where a tuple would take forty."""
    json: bytes
    pictures: tuple[PlacedPicture, ...] = ()

    @classmethod
    def of(cls, ids: Iterable[int], pictures: Iterable[PlacedPicture] = ()) -> "EncodedIds":
        id_list = ids if isinstance(ids, list) else list(ids)
        packed = array("I")
        packed.fromlist(id_list)  # half the time of the constructor
        return cls(packed, wire.encode(id_list)[1:-1], tuple(pictures))


class Body(Struct, frozen=True, eq=False, weakref=True):
    """The ids of a context as a linked list: the newest step and its parent body.

    Engines refer to it weakly, to notice that the last position that holds it is gone."""

    parent: "Body | None"
    step: EncodedIds
    total: int
    """Tokens that an engine reads: one for each id, and those that pictures take beside theirs."""
    size_bytes: int
    tail: object
    """The renderer's own state after these ids, needed to append to them."""
    pictures: int = 0
    """How many pictures there are among all ids."""

    def then(self, ids: Iterable[int], tail: object, pictures: Iterable[PlacedPicture] = ()) -> "Body":
        """Return a body with ``ids`` appended."""
        step = EncodedIds.of(ids, pictures)
        count, seen = len(step.ids), len(step.pictures)
        size_bytes = self.size_bytes + _STEP_BYTES + _TOKEN_BYTES * count + _PICTURE_BYTES * seen
        beside = sum(picture.tokens for picture in step.pictures)
        return Body(self, step, self.total + count + beside, size_bytes, tail, self.pictures + seen)

    def counted(self, total: int) -> "Body":
        """The same ids, with the number of tokens that an engine has counted."""
        step = EncodedIds.of(())
        return Body(self, step, total, self.size_bytes + _STEP_BYTES, self.tail, self.pictures)

    def shared_bytes(self, other: "Body") -> int:
        """The memory of the steps that both begin with. Takes time proportional to the steps after these:
        sizes grow from step to step, so the larger of two bodies is not an ancestor of the smaller."""
        mine, theirs = self, other
        while mine is not theirs:
            if mine.size_bytes >= theirs.size_bytes:
                if mine.parent is None:
                    return 0
                mine = mine.parent
            else:
                assert theirs.parent is not None, "a body without tokens is the smallest"
                theirs = theirs.parent
        return mine.size_bytes

    def continues(self, other: "Body") -> bool:
        """Whether the other is this body or an ancestor of it. Takes time proportional to the steps after
        it."""
        node: Body | None = self
        while node is not None and node.size_bytes > other.size_bytes:
            node = node.parent
        return node is other

    def lineage(self) -> Iterator["Body"]:
        """This body and its ancestors, newest first."""
        node: Body | None = self
        while node is not None:
            yield node
            node = node.parent

    def steps(self) -> Iterator[EncodedIds]:
        """All steps, oldest first."""
        return reversed([node.step for node in self.lineage()])


def empty(tail: object) -> Body:
    """A body without tokens."""
    return Body(None, EncodedIds.of(()), 0, _STEP_BYTES, tail)


class Preface(Struct, frozen=True):
    """The head and the answer format that the ids of a context begin with."""

    head: Head
    format: TextFormat

    def covers(self, job: Job) -> bool:
        """Whether a job has the same head and answer format."""
        same_head = self.head is job.head or self.head == job.head
        return same_head and self.format == job.settings.format


class Rendered(Struct, frozen=True, eq=False):
    """A context as tokens. Token engines keep one with each response, as its position."""

    writer: str
    """Identifies the renderer and the vocabulary that made the ids."""
    preface: Preface
    body: Body

    @property
    def total(self) -> int:
        return self.body.total

    @property
    def size_bytes(self) -> int:
        return self.body.size_bytes

    def unshared_bytes(self, earlier: object) -> int:
        """Memory of what it does not share with another position: all of it after a rewrite."""
        shared = self.body.shared_bytes(earlier.body) if isinstance(earlier, Rendered) else 0
        return self.size_bytes - shared

    @property
    def id_count(self) -> int:
        """How many ids there are: ``total``, without the tokens that pictures take beside their ids."""
        return sum(len(step.ids) for step in self.body.steps()) if self.body.pictures else self.total

    def digests(self) -> list[str]:
        """The digests of all pictures, in their order."""
        if not self.body.pictures:
            return []
        return [picture.digest for step in self.body.steps() for picture in step.pictures]

    def ids(self) -> list[int]:
        """All ids, copied: O(length of the context)."""
        return list(chain.from_iterable(step.ids for step in self.body.steps()))

    def json(self) -> bytes:
        """All ids as a JSON array."""
        return b"[" + b",".join(self.json_pieces()) + b"]"

    def json_pieces(self) -> list[bytes]:
        """The elements of that array as encoded pieces, to be joined by commas."""
        # Hot path, called once per turn: a plain loop over the linked list is faster than ``Body.steps``.
        pieces: list[bytes] = []
        node: Body | None = self.body
        while node is not None:
            if piece := node.step.json:
                pieces.append(piece)
            node = node.parent
        pieces.reverse()
        return pieces

    def first(self, tokens: int) -> "Rendered":
        """The first tokens of this context, or all of them. It can be compared, and not appended to."""
        body = empty(None)
        for step in self.body.steps():
            if (left := tokens - body.total) <= 0:
                break
            body = body.then(step.ids[:left], None)
        return Rendered(self.writer, self.preface, body)

    def then(self, ids: Iterable[int], tail: object, pictures: Iterable[PlacedPicture] = ()) -> "Rendered":
        """Return this context with ``ids`` appended."""
        return Rendered(self.writer, self.preface, self.body.then(ids, tail, pictures))


class Rendering(Struct, frozen=True):
    """The result of rendering a job."""

    context: Rendered
    """The context without an open assistant turn: what a warmup prepares."""
    prompt: Rendered
    """The context with the assistant turn opened: what the model continues."""
    new_tokens: int
    """Tokens of the prompt that were not taken from the parent."""
    fallback: str | None = None
    """Why all items were rendered instead of the delta; None if they were not."""
    dropped_items: int = 0
    """How many of the oldest items were dropped to fit the context window."""

    def with_answer(self, ids: Iterable[int], counted: int | None = None) -> Rendered:
        """Return the prompt followed by the ids that the model emitted. ``counted``: the tokens of the
        prompt, if the engine has counted them."""
        body = self.prompt.body if counted is None else self.prompt.body.counted(counted)
        return Rendered(self.prompt.writer, self.prompt.preface, body.then(ids, body.tail))


class TokenBytes(dict[int, bytes]):
    """Caches the bytes of tokens by id."""

    def __init__(self, look_up: Callable[[int], bytes]) -> None:
        super().__init__()
        self._look_up = look_up

    def __missing__(self, id: int) -> bytes:
        data = self._look_up(id)
        if data:  # unknown ids have no bytes; caching them would let the cache grow without bound
            self[id] = data
        return data

    def join(self, ids: Iterable[int]) -> bytes:
        """The bytes of all ids, concatenated."""
        return b"".join([self[id] for id in ids])


class ChainChoice(Struct, frozen=True):
    """Something that stays in a chain although a rendering of all items drops it."""

    name: str
    kept: str
    reason: str


EMPTY_THOUGHTS = ChainChoice(
    "empty_thoughts",
    "thoughts without content, which the template writes in a prompt or for the latest answers only",
    "they are a few tokens; without them, the engine would read the last answer again in every turn",
)
WHITE_SPACE = ChainChoice(
    "white_space",
    "white space as the model read it, where the template changes it once another message follows",
    "it is a token or two; changed, the engine would read the last answer again in every turn",
)
CALL_TEXTS = ChainChoice(
    "call_texts",
    "texts before calls, which the template never writes",
    "the model goes on with what it said, and the engine need not read the last call again in every step",
)
LOOP_THOUGHTS = ChainChoice(
    "loop_thoughts",
    "thoughts of a tool loop, until a message other than a tool output follows",
    "the model goes on with what it thought, and the engine need not read the last call again in every step",
)
CALL_IDS = ChainChoice(
    "call_ids",
    "calls without ids, as the model wrote them, where the template adds ids once another message follows",
    "the model never writes them; with them, the engine would read the last call again in every step",
)
ALL_THOUGHTS = ChainChoice(
    "all_thoughts",
    "thoughts of all earlier answers",
    "the option thinking=keep says so, or a built-in template for any model writes the context",
)
CHAIN_CHOICES = (EMPTY_THOUGHTS, WHITE_SPACE, CALL_IDS, CALL_TEXTS, LOOP_THOUGHTS, ALL_THOUGHTS)


class Renderer(ABC):
    """Renders contexts for one model and knows the format of its output."""

    output_format: OutputFormat
    appends_quickly: bool = False
    """Whether ``continued`` takes time in proportion to the new items alone."""
    rewrites_answers: bool = False
    """Whether earlier answers are rendered in another way once a user message follows them."""
    chain_choices: tuple[ChainChoice, ...] = ()
    """What chains keep although a rendering of all items drops it."""
    efforts: tuple[Effort, ...] = ()
    """The efforts of reasoning that differ for the model, least first."""
    takes_pictures: bool = False
    """Whether it writes pictures."""
    image_roles: tuple[str, ...] = ()
    """The roles of messages in which it writes pictures, as the API calls them."""

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._writer = f"{name} {vocabulary.fingerprint}"
        self._marks: dict[int, bytes] | None = None
        self.token_bytes = TokenBytes(self.bytes_of)

    @abstractmethod
    def stop_ids(self) -> frozenset[int]:
        """Ids of the control tokens that end an answer."""

    @abstractmethod
    def start(
        self,
        head: Head,
        settings: Settings,
        items: Sequence[Item],
        encoder: BudgetedEncoder,
        *,
        dropped_thoughts: int = 0,
    ) -> Rendered:
        """Render a context from all its items. ``dropped_thoughts``: how many reasoning items there were
        among older ones that were dropped."""

    @abstractmethod
    def append(self, position: Rendered, job: Job, encoder: BudgetedEncoder) -> Rendered:
        """Append a job's new items to its parent's tokens, or raise ``CannotAppend``."""

    @abstractmethod
    def open(self, context: Rendered) -> Rendered:
        """Append the tokens that open the assistant turn."""

    @abstractmethod
    def opens_thought(self, prompt: Rendered) -> bool:
        """Whether a prompt ends inside a thought, so that the answer begins with one."""

    @abstractmethod
    def withheld_thoughts(self, prompt: Rendered) -> Sequence[tuple[int, int]]:
        """The reasoning items of earlier turns that a prompt does not hold: ranges, first and past the last,
        of their numbers in the context."""

    @abstractmethod
    def counted_calls(self, prompt: Rendered) -> int:
        """How many calls a prompt holds, if their ids count them; otherwise 0."""

    def wrote(self, position: Rendered) -> bool:
        """Whether this renderer, or one of the same name and vocabulary, made the ids of ``position``."""
        return position.writer == self._writer

    def render(self, job: Job, budget: TokenBudget = UNLIMITED) -> Rendering:
        """Append a job's new items to its parent's tokens, or render all items if that is not possible.

        Raises ``TooManyTokens`` as soon as it is clear that the context exceeds the budget.
        """
        if job.parent is None:
            return self.render_all(job, job.input, BudgetedEncoder(self.vocabulary, budget))
        try:
            return self.continued(job, budget)
        except CannotAppend as rewritten:
            encoder = BudgetedEncoder(self.vocabulary, budget)
            return self.render_all(job, tuple(job.context()), encoder, str(rewritten))

    def continued(self, job: Job, budget: TokenBudget = UNLIMITED) -> Rendering:
        """Append a job's new items to its parent's tokens. Raises ``CannotAppend``, or as ``render``."""
        position = job.parent.position if job.parent is not None else None
        if not isinstance(position, Rendered) or not self.wrote(position):
            raise CannotAppend(OTHER_WRITER)
        if position.body.pictures and not self.takes_pictures:
            raise CannotAppend(CANNOT_SEE)
        encoder = BudgetedEncoder(self.vocabulary, budget, used=position.total)
        context = self.append(position, job, encoder)
        prompt = self.open(context)
        return Rendering(context, prompt, prompt.total - position.total)

    def bytes_of(self, id: int) -> bytes:
        """The bytes of a token in an answer; markers of calls and thoughts count as text."""
        if self._marks is None:
            self._marks = self._mark_bytes()
        mark = self._marks.get(id)
        return mark if mark is not None else self.vocabulary.bytes_of(id)

    def mark_of(self, id: int) -> str:
        """The marker that a token is, or an empty string."""
        if self._marks is None:
            self._marks = self._mark_bytes()
        return self._marks.get(id, b"").decode()

    def control_ids(self) -> dict[str, int]:
        """The ids of the control tokens that the marks of the output format consist of."""
        if self._marks is None:
            self._marks = self._mark_bytes()
        ids = {mark.decode(): id for id, mark in self._marks.items()}
        return {mark: ids[mark] for mark in sorted(self.output_format.tokens()) if mark in ids}

    def _mark_bytes(self) -> dict[int, bytes]:
        marks = filter(self.vocabulary.has_control, self.output_format.marks())
        return {self.vocabulary.control(mark): mark.encode() for mark in marks}

    def render_all(
        self,
        job: Job,
        items: Sequence[Item],
        encoder: BudgetedEncoder,
        reason: str | None = None,
        dropped_items: int = 0,
    ) -> Rendering:
        """Render a context from these items. ``reason``: why they are not appended to what is rendered.
        ``dropped_items``: how many older items the context has."""
        thoughts = 0
        if dropped_items:
            kept = sum(item.type == "reasoning" for item in items)
            thoughts = sum(item.type == "reasoning" for item in job.context()) - kept
        context = self.start(job.head, job.settings, items, encoder, dropped_thoughts=thoughts)
        prompt = self.open(context)
        return Rendering(context, prompt, prompt.total, reason, dropped_items)
