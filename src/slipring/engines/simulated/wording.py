"""Writes planned answers as token ids, as a model with the same vocabulary would.

Text and calls are encoded exactly as the renderer encodes them in a history, so that a history that is sent
again in full has the same ids as the chain.
"""

import json
from collections.abc import Iterable
from functools import partial
from itertools import cycle, islice

from slipring.core.generation import Job
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.plan import WORDS, Content, input_of, padded
from slipring.prompts.parsing.answer_writer import Call, Piece, answer_pieces, piece_ids
from slipring.prompts.rendering import Rendered, Renderer
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder
from slipring.prompts.tool_definitions import flat_name
from slipring.protocol import wire
from slipring.protocol.tools.toolset.toolset import CallableTool


class Wording:
    """Encodes answers with one vocabulary, in the model's output format."""

    def __init__(self, renderer: Renderer, options: SimulatedOptions) -> None:
        self._renderer = renderer
        self._format = renderer.output_format
        self._options = options
        self._finder = ControlTokenFinder(renderer.vocabulary, "")
        words = [f" {word}" for word in WORDS]
        self._words = [word for word in words if len(renderer.vocabulary.encode(word)) == 1] or words
        """Of one token each if possible, so that an answer has exactly the configured length."""

    def ids(self, job: Job, prompt: Rendered, content: Content, mark: str) -> list[int]:
        """The ids of an answer, without the token that ends it. ``mark``: a text that the answer carries.

        An answer of words has ``output_tokens`` tokens, and one of calls as many for each call whose
        arguments have a place for filler words. If the format has no calls, the answer is words. A Harmony
        answer has one call.
        """
        opened = self._renderer.opens_thought(prompt)
        tools = content.tools[:1] if self._format.is_harmony else content.tools
        if tools and (self._format.calls is not None or self._format.is_harmony):
            return self._called(tools, prompt, content, mark, opened=opened)
        if job.settings.format.kind != "text" and not tools:
            return self._answered(content.document.with_text(mark), opened=opened)
        first = mark or WORDS[0].capitalize()
        short = self._answered(first, opened=opened)
        return self._answered(first + self._filler(len(short), 1), opened=opened)

    def _answered(self, text: str, *, opened: bool) -> list[int]:
        return self._encode(answer_pieces(self._format, text=text, opened_thought=opened))

    def _called(
        self, tools: Iterable[CallableTool], prompt: Rendered, content: Content, mark: str, *, opened: bool
    ) -> list[int]:
        """The ids of calls. Each is made as long as it has to be after those before it."""

        def encoded(calls: list[Call]) -> list[int]:
            return self._encode(answer_pieces(self._format, calls=calls, opened_thought=opened))

        first, document = mark or WORDS[0].capitalize(), content.document
        calls: list[Call] = []
        for number, tool in enumerate(tools):
            call = partial(Call, flat_name(tool), index=self._renderer.counted_calls(prompt) + number)
            if tool.kind == "custom":
                text = input_of(content, self._options.output_tokens, mark)
                arguments = self._arguments(wire.encode({"input": text}).decode())
            elif document.before:
                short = encoded([*calls, call(self._arguments(document.with_text(first)))])
                arguments = self._arguments(document.with_text(first + self._filler(len(short), number + 1)))
            else:
                arguments = padded(self._arguments(document.plain), self._options.output_tokens)
            calls.append(call(arguments))
        return encoded(calls)

    def _arguments(self, text: str) -> str:
        """Arguments as templates write them in a history."""
        return json.dumps(json.loads(text), ensure_ascii=False)

    def _filler(self, tokens: int, answers: int) -> str:
        """Words that lengthen so many tokens to ``answers`` times ``output_tokens``."""
        return "".join(islice(cycle(self._words), max(answers * self._options.output_tokens - tokens, 0)))

    def _encode(self, pieces: Iterable[Piece]) -> list[int]:
        return piece_ids(pieces, self._renderer.vocabulary, self._finder)
