"""What the simulated engine says, as token ids: the same plan, written as a model of this vocabulary would.

Text and calls are written exactly as the renderer writes them in a history, so that a history that is sent
again in full gives the ids of the chain.
"""

from itertools import cycle, islice

from slipring.core.generation import Job
from slipring.engines.simulated.options import Options
from slipring.engines.simulated.plan import WORDS, Prepared, input_of, padded
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.dialect import Mark, Phrase
from slipring.prompts.dialects.dialect_renderer import FoldingRenderer
from slipring.prompts.parsing.parser import flat_name
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.tool_definitions import quoted
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool


class Wording:
    """Writes answers with one vocabulary."""

    def __init__(self, renderer: Renderer, options: Options) -> None:
        self._renderer = renderer
        self._calls = renderer.calls
        self._options = options
        self._encoder = FoldingRenderer(ChatMl(), renderer.vocabulary)
        words = [f" {word}" for word in WORDS]
        self._words = [word for word in words if len(self._encode(word)) == 1] or words
        """Of one token each, so that an answer has the length that was asked for."""

    def ids(self, job: Job, prompt: Rendered, prepared: Prepared, mark: str) -> list[int]:
        """The answer to a job, without the token that ends it."""
        said: list[str | Mark] = []
        if self._renderer.opens_thought(prompt):
            said += [Mark(self._calls.think_close), "\n\n"]
        if prepared.tools:
            for number, tool in enumerate(prepared.tools):
                said += self._call(tool, prepared, mark, "\n" if number else "")
        elif job.settings.format.kind == "text":
            said.append(self._lengthened(mark or WORDS[0].capitalize()))
        else:
            said.append(prepared.draft.filled(mark))
        return self._encode(*said)

    def _call(self, tool: CallableTool, prepared: Prepared, mark: str, lead: str) -> list[str | Mark]:
        """A call of about the length of an answer, where its arguments can be made longer."""
        if tool.kind == "custom":
            text = input_of(prepared, self._options.output_tokens, mark)
            return self._written(tool, wire.encode({"input": text}).decode(), lead)
        draft = prepared.draft
        if not draft.carries:
            return self._written(tool, padded(draft.plain, self._options.output_tokens), lead)
        first = mark or WORDS[0].capitalize()
        short = self._encode(*self._written(tool, draft.filled(first), lead))
        return self._written(tool, draft.filled(first + self._filler(len(short))), lead)

    def _written(self, tool: CallableTool, arguments: str, lead: str) -> list[str | Mark]:
        calls = self._calls
        body = f'{{"name": {quoted(flat_name(tool))}, "{calls.arguments_key}": {arguments}}}'
        if not calls.call_open:
            return [lead + body]
        return [lead, Mark(calls.call_open), f"\n{body}\n", Mark(calls.call_close)]

    def _lengthened(self, text: str) -> str:
        return text + self._filler(len(self._encode(text)))

    def _filler(self, tokens: int) -> str:
        """What so many tokens lack."""
        return "".join(islice(cycle(self._words), max(self._options.output_tokens - tokens, 0)))

    def _encode(self, *said: str | Mark) -> list[int]:
        return self._encoder.encode([Phrase(said)])
