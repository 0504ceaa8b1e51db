"""Renders contexts with a ``Dialect``. Every delta can be appended.

The head (instructions, tools, answer format) is kept apart from the body, so that a change of the head
renders the head again and keeps the ids of the body. The default system message of a context without a head
stands in its place.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from slipring.core.chain.head import Head
from slipring.core.generation import Job, Settings
from slipring.prompts.chain_choices import ALL_THOUGHTS
from slipring.prompts.dialects.dialect import Block, Control, Dialect, Fragment, Mark, Phrase
from slipring.prompts.rendering import EncodedIds, Preface, Rendered, Renderer, empty
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol.items import Item
from slipring.protocol.requests import TextFormat


class DialectRenderer(Renderer):
    """Renders contexts with a dialect. ``Body.tail`` is the ``Block`` that the body leaves open."""

    always_appends = True

    def __init__(self, dialect: Dialect, vocabulary: Vocabulary) -> None:
        super().__init__(dialect.name, vocabulary)
        self.dialect = dialect
        self.output_format = dialect.output_format
        self.chain_choices = (ALL_THOUGHTS,) if dialect.output_format.think_close else ()
        self._stop_ids: frozenset[int] | None = None

    def stop_ids(self) -> frozenset[int]:
        if self._stop_ids is None:
            known = filter(self.vocabulary.has_control, self.dialect.stop)
            self._stop_ids = frozenset(map(self.vocabulary.control, known))
        return self._stop_ids

    def start(
        self, head: Head, settings: Settings, items: Sequence[Item], encoder: BudgetedEncoder
    ) -> Rendered:
        preface = self._preface(head, settings.format, encoder)
        return self._write(Rendered(self._writer, preface, empty(Block.NONE)), items, items, encoder)

    def append(self, position: Rendered, job: Job, encoder: BudgetedEncoder) -> Rendered:
        if not position.preface.covers(job):
            preface = self._preface(job.head, job.settings.format, encoder)
            position = Rendered(self._writer, preface, position.body)
            if position.body.total:
                position = self._with_default_system(position, job.context(), encoder)
        return self._write(position, job.input, job.context(), encoder)

    def open(self, context: Rendered) -> Rendered:
        return context.then(self.encode(self.dialect.write_prompt(_block(context))), Block.ASSISTANT)

    def encode(self, fragments: Sequence[Fragment], encoder: BudgetedEncoder | None = None) -> list[int]:
        """Encode fragments: control tokens by name, each text separately."""
        encoder = encoder or BudgetedEncoder(self.vocabulary)
        encoder.expect(_texts(fragments))
        ids: list[int] = []
        for fragment in fragments:
            if isinstance(fragment, str):
                ids += encoder.encode(fragment)
            elif isinstance(fragment, Control):
                ids.append(self.vocabulary.control(fragment.token))
                encoder.spend(1)
            else:
                ids += self._encode_phrase(fragment.parts, encoder)
        return ids

    def _encode_phrase(self, parts: Iterable[str | Mark], encoder: BudgetedEncoder) -> list[int]:
        ids: list[int] = []
        text = ""
        for part in parts:
            if isinstance(part, str):
                text += part
            elif self.vocabulary.has_control(part.token):
                ids += [*encoder.encode(text), self.vocabulary.control(part.token)]
                text = ""
            else:
                text += part.token
        return ids + encoder.encode(text)

    def _preface(self, head: Head, format: TextFormat, encoder: BudgetedEncoder) -> Preface:
        return Preface(
            head, format, EncodedIds.of(self.encode(self.dialect.write_head(head, format), encoder))
        )

    def _write(
        self, start: Rendered, items: Sequence[Item], context: Iterable[Item], encoder: BudgetedEncoder
    ) -> Rendered:
        """Append items. ``context``: all items of the context, up to these."""
        before = _block(start)
        fragments, block = self.dialect.write_items(before, items)
        if not fragments and block is before:
            return start
        if not start.total:
            start = self._with_default_system(start, context, encoder)
        return start.then(self.encode(fragments, encoder), block)

    def _with_default_system(
        self, start: Rendered, context: Iterable[Item], encoder: BudgetedEncoder
    ) -> Rendered:
        """Put the default system message where a head would stand, unless there is one."""
        preface = start.preface
        fragments = self.dialect.write_default_system(tuple(islice(context, 1)))
        if preface.step.ids or not fragments:
            return start
        written = Preface(preface.head, preface.format, EncodedIds.of(self.encode(fragments, encoder)))
        return Rendered(start.writer, written, start.body)


def _texts(fragments: Iterable[Fragment]) -> Iterator[str]:
    """The texts that ``encode`` will tokenize."""
    for fragment in fragments:
        if isinstance(fragment, str):
            yield fragment
        elif isinstance(fragment, Phrase):
            yield from (part for part in fragment.parts if isinstance(part, str))


def _block(rendered: Rendered) -> Block:
    tail = rendered.body.tail
    assert isinstance(tail, Block)
    return tail
