"""Contexts of dialects that are written here: a fold over the items, so that a delta is always appended.

The head is kept apart from the body: new instructions, tools or formats re-render the head only.
"""

from collections.abc import Iterable, Sequence

from slipring.core.generation import Job
from slipring.core.head import Head
from slipring.prompts.dialect import Block, Control, Dialect, Fragment, Mark
from slipring.prompts.rendering import Preface, Rendered, Renderer, Step, empty
from slipring.prompts.tokenizer import Vocabulary
from slipring.protocol.items import Item
from slipring.protocol.requests import TextFormat


class FoldingRenderer(Renderer):
    """Writes contexts in a dialect. The tail of a body is the ``Block`` that it leaves open."""

    always_appends = True

    def __init__(self, dialect: Dialect, vocabulary: Vocabulary) -> None:
        super().__init__(dialect.name, vocabulary)
        self.dialect = dialect
        self.calls = dialect.calls
        self._stop_ids: frozenset[int] | None = None

    def stop_ids(self) -> frozenset[int]:
        if self._stop_ids is None:
            known = filter(self.vocabulary.has_control, self.dialect.stop)
            self._stop_ids = frozenset(map(self.vocabulary.control, known))
        return self._stop_ids

    def start(self, head: Head, format: TextFormat, items: Sequence[Item]) -> Rendered:
        return self._write(Rendered(self._writer, self._preface(head, format), empty(Block.NONE)), items)

    def append(self, position: Rendered, job: Job) -> Rendered:
        if not position.preface.covers(job):
            preface = self._preface(job.head, job.settings.format)
            position = Rendered(self._writer, preface, position.body)
        return self._write(position, job.input)

    def open(self, context: Rendered) -> Rendered:
        return context.then(self.encode(self.dialect.write_prompt(_block(context))), Block.ASSISTANT)

    def encode(self, fragments: Iterable[Fragment]) -> list[int]:
        """Ids of fragments: control tokens by name, each text by itself."""
        ids: list[int] = []
        for fragment in fragments:
            if isinstance(fragment, str):
                ids += self.vocabulary.encode(fragment)
            elif isinstance(fragment, Control):
                ids.append(self.vocabulary.control(fragment.token))
            else:
                ids += self._encode_phrase(fragment.parts)
        return ids

    def _encode_phrase(self, parts: Iterable[str | Mark]) -> list[int]:
        ids: list[int] = []
        text = ""
        for part in parts:
            if isinstance(part, str):
                text += part
            elif self.vocabulary.has_control(part.token):
                ids += [*self.vocabulary.encode(text), self.vocabulary.control(part.token)]
                text = ""
            else:
                text += part.token
        return ids + self.vocabulary.encode(text)

    def _preface(self, head: Head, format: TextFormat) -> Preface:
        return Preface(head, format, Step.of(self.encode(self.dialect.write_head(head, format))))

    def _write(self, start: Rendered, items: Sequence[Item]) -> Rendered:
        before = _block(start)
        fragments, block = self.dialect.write_items(before, items)
        if not fragments and block is before:
            return start
        return start.then(self.encode(fragments), block)


def _block(rendered: Rendered) -> Block:
    tail = rendered.body.tail
    assert isinstance(tail, Block)
    return tail
