"""The simulated engine with a vocabulary: everything but the decoding is real.

Contexts are rendered, tokenized, continued and counted as for engines that take token ids. Planned answers
are encoded as ids, as a model with the same vocabulary would write them, and emitted one id at a time. Text
and calls are encoded exactly as the renderer encodes them in a history, so that a history that is sent again
in full has the same ids as the chain.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import cycle, islice

from msgspec import structs

from slipring.base.errors import StartupError
from slipring.core.generation import Capabilities, Delta, Emit, Finished, Job, Model, Prefill, deliver
from slipring.engines.llama.packaged_model import MODEL_COMMAND, packaged_model
from slipring.engines.simulated.context_digest import Trace, trace_job
from slipring.engines.simulated.engine import SimulatedEngine
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.pace import TimedTokens
from slipring.engines.simulated.plan import WORDS, Content, input_of, padded, prepare
from slipring.engines.simulated.prefix_cache import BlockCache, Blocks
from slipring.engines.tokens.job_rendering import accepted, count, foresee, render
from slipring.engines.tokens.model_files import ModelInfo, read_gguf, read_tokenizer
from slipring.engines.tokens.template_choice import make_serving_renderer
from slipring.engines.tokens.token_answer import Piece, TokenAnswer
from slipring.prompts.parsing.answer_writer import Call, answer_pieces, piece_ids
from slipring.prompts.parsing.answer_writer import Piece as AnswerPiece
from slipring.prompts.rendering import EncodedIds, Rendered, Renderer, Rendering
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary
from slipring.prompts.tool_definitions import flat_name
from slipring.protocol import wire
from slipring.protocol.items.items import Item
from slipring.protocol.tools.toolset import CallableTool

_PACKAGED = "smollm2"
_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})


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

    def _encode(self, pieces: Iterable[AnswerPiece]) -> list[int]:
        return piece_ids(pieces, self._renderer.vocabulary, self._finder)


class Known(Rendered, frozen=True, eq=False):
    """A rendered context with its cached blocks, tool outputs and trace, which a continuation adds to."""

    blocks: Blocks | None
    tool_outputs: int
    trace: Trace | None
    """The trace of the context without the answer."""


class _PlannedIds:
    """The ids of an answer, which decodes them. Implements ``pace.Tokens``."""

    __slots__ = ("_answer", "_end", "_has_ended", "_ids", "_taken")

    def __init__(self, answer: TokenAnswer, ids: list[int], end: Piece) -> None:
        """``end``: the piece after the last id."""
        self._answer = answer
        self._ids = ids
        self._end = end
        self._taken = 0
        self._has_ended = False

    def has_next(self) -> bool:
        if self._has_ended:
            return False
        if self._taken == len(self._ids):
            self._answer.take(self._end)
            self._has_ended = True
        else:
            self._has_ended = self._answer.ends_here()
        return not self._has_ended

    def take(self, count: int) -> list[Delta]:
        deltas: list[Delta] = []
        while count and self.has_next():
            deltas += self._answer.take(Piece([self._ids[self._taken]]))
            self._taken += 1
            count -= 1
        return deltas


class TokenizedEngine(SimulatedEngine):
    """Emits planned answers id by id. ``renderer``: used instead of the one that the options name."""

    leaves_renderings = True

    def __init__(self, options: SimulatedOptions, renderer: Renderer | None = None) -> None:
        super().__init__(options)
        self.renderer = renderer or _open_renderer(options)
        self._wording = Wording(self.renderer, options)
        self._cache = BlockCache()

    def models(self) -> Sequence[Model]:
        context_tokens = self.options.context_tokens
        return [
            Model(
                name="simulated",
                owner="slipring",
                capabilities=Capabilities(),
                context_tokens=context_tokens,
                rewrites_answers=self.renderer.rewrites_answers,
                efforts=self.renderer.efforts,
            )
        ]

    async def generate(self, job: Job, emit: Emit) -> None:
        options = self.options
        self._queue.require_room(job.tenant)
        rendering = await render(job, self.renderer, options.context_tokens, self.tokenizing)
        outputs = _count_tool_outputs(job, rendering)
        content = await prepare(job, outputs, options, self.compiler)
        with self._queue.ticket(job.tenant) as ticket:
            await ticket.begin(accepted(job, self.renderer, rendering), emit)
            known, cached = self._known(job, rendering, outputs)
            await (pace := self._pace(job, rendering.prompt.total - cached)).reached()
            answer = TokenAnswer(job, rendering, self.renderer, trusted=True)
            answer.take(Piece(cached_tokens=cached))
            ids, end = self._planned(job, rendering, known, content)
            await TimedTokens(_PlannedIds(answer, ids, end), pace, emit).run()
            *last, finished = answer.finish()
            assert isinstance(finished, Finished)
            assert isinstance(finished.position, Rendered)
            position = self._after(known, finished.position)
            finished = structs.replace(finished, position=position, context=known)
        # After the ticket is given back: a slow reader must not hold up other jobs.
        await deliver(emit, [*last, finished])

    async def prefill(self, prefill: Prefill) -> int:
        options = self.options
        foreseen = await foresee(prefill, self.renderer, options.context_tokens, self.tokenizing)
        if foreseen is None or not options.prefix_cache:
            return prefill.done_tokens
        known = 0 if foreseen.parent is None else foreseen.parent.total
        new_tokens = foreseen.context.total - max(known, prefill.done_tokens)
        if rate := options.prefill_tokens_per_s:
            await asyncio.sleep(max(new_tokens, 0) / rate)
        self._cache.read(self._cache.start(prefill.job.tenant), foreseen.context.body.steps())
        return foreseen.context.total

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await count(job, self.renderer, self.options.context_tokens, self.tokenizing, enough)

    def _planned(
        self, job: Job, rendering: Rendering, known: Known, content: Content
    ) -> tuple[list[int], Piece]:
        """The ids of the answer, as many as there is room for, and the piece that ends it."""
        if not job.generate:
            return [], Piece(reason="stop")
        mark = known.trace.mark if known.trace is not None else ""
        ids = self._wording.ids(job, rendering.prompt, content, mark)
        room = self.options.context_tokens - rendering.prompt.total
        limit = min(job.settings.max_output_tokens or room, room)
        return ids[:limit], Piece(reason="length" if len(ids) > limit else "stop")

    def _known(self, job: Job, rendering: Rendering, outputs: int) -> tuple[Known, int]:
        """Add a job's context to the prefix cache; return it, and how many of its tokens were cached."""
        context = rendering.context
        position = job.parent.position if job.parent is not None else None
        blocks, trace, steps = None, None, None
        if isinstance(position, Known) and rendering.fallback is None:
            trace = position.trace
            if (steps := _added(context, position)) is not None:
                blocks = position.blocks
        if self.options.digest:
            trace = trace_job(job, trace, rendering.dropped_items)
        cached = 0
        if self.options.prefix_cache:
            read = list(context.body.steps()) if steps is None else steps
            blocks, cached = self._cache.read(blocks or self._cache.start(job.tenant), read)
        return _known(context, blocks, outputs, trace), cached

    def _after(self, known: Known, position: Rendered) -> Known:
        """The context with the answer, which is added to the prefix cache."""
        blocks = known.blocks
        if blocks is not None:
            blocks, _ = self._cache.read(blocks, _added(position, known) or ())
        return _known(position, blocks, known.tool_outputs, known.trace)


def _known(context: Rendered, blocks: Blocks | None, tool_outputs: int, trace: Trace | None) -> Known:
    return Known(context.writer, context.preface, context.body, blocks, tool_outputs, trace)


def _added(context: Rendered, earlier: Rendered) -> list[EncodedIds] | None:
    """The steps that a context adds to an earlier one, oldest first; None if it does not extend it."""
    steps: list[EncodedIds] = []
    for body in context.body.lineage():
        if body is earlier.body:
            return steps[::-1]
        steps.append(body.step)
    return None


def _count_tool_outputs(job: Job, rendering: Rendering) -> int:
    """How many tool outputs a job's context contains."""
    position = job.parent.position if job.parent is not None else None
    if isinstance(position, Known) and rendering.fallback is None:
        return position.tool_outputs + _count_outputs(job.input)
    return _count_outputs(tuple(job.context()))


def _count_outputs(items: Sequence[Item]) -> int:
    return sum(item.type in _OUTPUT_TYPES for item in items)


def _open_renderer(options: SimulatedOptions) -> Renderer:
    """The renderer for the packaged model's vocabulary, or for that of a file. Raises ``StartupError``."""
    path = _packaged_path() if options.vocabulary == _PACKAGED else options.vocabulary
    if not path.endswith(".gguf"):
        tokenizer, info = read_tokenizer("simulated", path)
        return make_serving_renderer("simulated", options, info, tokenizer)
    metadata = read_gguf("simulated", path)
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except UnknownVocabulary as error:
        raise StartupError(f"--engine simulated: {path} has a {error}, which is not supported") from None
    return make_serving_renderer("simulated", options, ModelInfo.from_gguf(metadata), tokenizer)


def _packaged_path() -> str:
    path = packaged_model()
    if path is None:
        raise StartupError(
            f"--engine simulated: the model of vocabulary={_PACKAGED} is not installed ({MODEL_COMMAND})"
        )
    return path
