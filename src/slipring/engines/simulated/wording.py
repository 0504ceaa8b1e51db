"""Writes planned answers as token ids, as a model with the same vocabulary would.

Text and calls are encoded exactly as the renderer encodes them in a history, so that a history that is sent
again in full has the same ids as the chain.
"""

from itertools import cycle, islice

from slipring.core.generation import Job
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.plan import WORDS, Content, input_of, padded
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.dialect import Mark, Phrase
from slipring.prompts.dialects.dialect_renderer import DialectRenderer
from slipring.prompts.parsing.output_format import JsonCalls
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.tool_definitions import flat_name, quoted
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool


class Wording:
    """Encodes answers with one vocabulary."""

    def __init__(self, renderer: Renderer, options: SimulatedOptions) -> None:
        self._renderer = renderer
        self._format = renderer.output_format
        self._options = options
        self._encoder = DialectRenderer(ChatMl(), renderer.vocabulary)
        words = [f" {word}" for word in WORDS]
        self._words = [word for word in words if len(self._encode(word)) == 1] or words
        """Of one token each if possible, so that an answer has exactly the configured length."""

    def ids(self, job: Job, prompt: Rendered, content: Content, mark: str) -> list[int]:
        """The ids of an answer, without the token that ends it. ``mark``: a text that the answer carries."""
        parts: list[str | Mark] = []
        if self._renderer.opens_thought(prompt):
            parts += [Mark(self._format.think_close.strip()), "\n\n"]
        if content.tools:
            for number, tool in enumerate(content.tools):
                parts += self._call(tool, content, mark, "\n" if number else "")
        elif job.settings.format.kind == "text":
            first = mark or WORDS[0].capitalize()
            parts.append(first + self._filler(len(self._encode(first))))
        else:
            parts.append(content.draft.filled(mark))
        return self._encode(*parts)

    def _call(self, tool: CallableTool, content: Content, mark: str, separator: str) -> list[str | Mark]:
        """A call of ``output_tokens`` tokens if its arguments have a place for filler words."""
        if tool.kind == "custom":
            text = input_of(content, self._options.output_tokens, mark)
            return self._written(tool, wire.encode({"input": text}).decode(), separator)
        draft = content.draft
        if not draft.carries:
            return self._written(tool, padded(draft.plain, self._options.output_tokens), separator)
        first = mark or WORDS[0].capitalize()
        short = self._encode(*self._written(tool, draft.filled(first), separator))
        return self._written(tool, draft.filled(first + self._filler(len(short))), separator)

    def _written(self, tool: CallableTool, arguments: str, separator: str) -> list[str | Mark]:
        """A call with its marks, in the format of the model's dialect."""
        calls = self._format.calls if isinstance(self._format.calls, JsonCalls) else JsonCalls()
        body = f'{{"{calls.name_key}": {quoted(flat_name(tool))}, "{calls.arguments_key}": {arguments}}}'
        if not calls.open:
            return [separator + body]
        return [separator, Mark(calls.open.strip()), f"\n{body}\n", Mark(calls.close.strip())]

    def _filler(self, tokens: int) -> str:
        """Words that lengthen an answer of so many tokens to ``output_tokens``."""
        return "".join(islice(cycle(self._words), max(self._options.output_tokens - tokens, 0)))

    def _encode(self, *parts: str | Mark) -> list[int]:
        return self._encoder.encode([Phrase(parts)])
