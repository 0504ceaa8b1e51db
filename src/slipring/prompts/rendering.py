"""Rendering by delta: the token ids of a context, made by appending to those of its parent.

``tokens(child) = tokens(parent) + render(delta)``. Ids that an engine emitted are kept as emitted. The head
is kept apart from the body, so that new instructions or tools re-render the head only. A context whose parent
was not rendered with this vocabulary and dialect is rendered from its items, and says why.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct

from slipring.core.generation import Job
from slipring.core.head import Head
from slipring.prompts.dialect import Block, Control, Dialect, Fragment
from slipring.prompts.tokenizer import Tokenizer
from slipring.protocol.items import Item


class Body(Struct, frozen=True, eq=False):
    """The ids of a context without its head: what is new, and a pointer to what came before."""

    parent: "Body | None"
    ids: tuple[int, ...]
    total: int
    block: Block

    def then(self, ids: Iterable[int], block: Block) -> "Body":
        own = tuple(ids)
        return Body(self, own, self.total + len(own), block)

    def pieces(self) -> Iterator[tuple[int, ...]]:
        """The ids of each step, oldest first."""
        steps = []
        node: Body | None = self
        while node is not None:
            steps.append(node.ids)
            node = node.parent
        return reversed(steps)


EMPTY = Body(None, (), 0, Block.NONE)


class Rendered(Struct, frozen=True, eq=False):
    """A context as tokens. The position that a tokens engine leaves with a response."""

    writer: str
    """Dialect and vocabulary that the ids belong to."""
    head: Head
    head_ids: tuple[int, ...]
    body: Body

    @property
    def total(self) -> int:
        return len(self.head_ids) + self.body.total

    def pieces(self) -> Iterator[tuple[int, ...]]:
        return chain((self.head_ids,), self.body.pieces())

    def ids(self) -> list[int]:
        """All ids. Costs the whole context: for engines that must be sent them."""
        return list(chain.from_iterable(self.pieces()))

    def spoken(self, ids: Iterable[int]) -> "Rendered":
        """This context after the model has spoken, in the message that its prompt opened."""
        return Rendered(self.writer, self.head, self.head_ids, self.body.then(ids, Block.ASSISTANT))


class Rendering(Struct, frozen=True):
    """What rendering a job gave, and what it took."""

    context: Rendered
    """The context as it is: what a warmup prepares."""
    prompt: Rendered
    """The context with the model's turn opened: what it speaks after."""
    new_tokens: int
    fallback: str | None = None
    """Why all items had to be rendered, where they had."""


class Renderer:
    """Writes contexts for one model."""

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer) -> None:
        self.dialect = dialect
        self.tokenizer = tokenizer
        self._writer = f"{dialect.name} {tokenizer.fingerprint}"

    def render(self, job: Job) -> Rendering:
        """Append a job's new items to its parent's tokens, or render everything where that cannot be."""
        position = job.parent.position if job.parent is not None else None
        fallback: str | None = None
        if job.parent is None:
            start, items = self._start(job.head), job.input
        elif isinstance(position, Rendered) and position.writer == self._writer:
            start, items = self._with_head(position, job.head), job.input
        else:
            start, items = self._start(job.head), tuple(job.context())
            fallback = "the parent was not rendered by this model"
        context = self._append(start, items)
        opened = context.body.then(
            self.encode(self.dialect.write_prompt(context.body.block)), Block.ASSISTANT
        )
        prompt = Rendered(context.writer, context.head, context.head_ids, opened)
        kept = 0 if fallback or job.parent is None else start.body.total
        if job.parent is not None and start is position:
            kept += len(start.head_ids)
        return Rendering(context, prompt, prompt.total - kept, fallback)

    def encode(self, fragments: Iterable[Fragment]) -> list[int]:
        """Ids of fragments: control tokens by name, each text by itself."""
        ids: list[int] = []
        for fragment in fragments:
            if isinstance(fragment, Control):
                ids.append(self.tokenizer.control(fragment.token))
            else:
                ids += self.tokenizer.encode(fragment)
        return ids

    def stop_ids(self) -> frozenset[int]:
        tokenizer = self.tokenizer
        return frozenset(
            tokenizer.control(token) for token in self.dialect.stop if tokenizer.has_control(token)
        )

    def _start(self, head: Head) -> Rendered:
        return Rendered(self._writer, head, tuple(self.encode(self.dialect.write_head(head))), EMPTY)

    def _with_head(self, position: Rendered, head: Head) -> Rendered:
        if position.head is head or position.head == head:
            return position
        ids = tuple(self.encode(self.dialect.write_head(head)))
        return Rendered(self._writer, head, ids, position.body)

    def _append(self, start: Rendered, items: tuple[Item, ...]) -> Rendered:
        fragments, block = self.dialect.write_items(start.body.block, items)
        if not fragments and block is start.body.block:
            return start
        body = start.body.then(self.encode(fragments), block)
        return Rendered(start.writer, start.head, start.head_ids, body)
