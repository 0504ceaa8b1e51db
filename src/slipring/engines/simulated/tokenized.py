"""The simulated engine with a vocabulary: all that surrounds decoding is done, only decoding is not.

Contexts are rendered, tokenized, continued and counted as for engines by token ids, and answers are told from
ids, one at a time. What comes of it is a schedule's speed and nobody's thoughts.
"""

from collections.abc import AsyncGenerator, Sequence

from msgspec import structs

from slipring.core.generation import Accepted, Begun, Capabilities, Delta, Finished, Job, Model
from slipring.engines.base import Engine, Level
from slipring.engines.simulated.blocks import BlockCache, Blocks
from slipring.engines.simulated.model import open_renderer
from slipring.engines.simulated.options import Options
from slipring.engines.simulated.pace import Pace
from slipring.engines.simulated.plan import Prepared, prepare
from slipring.engines.simulated.trace import Trace, trace_job
from slipring.engines.simulated.wording import Wording
from slipring.engines.tokens.token_answer import Answer, Piece, count, render
from slipring.prompts.rendering import Rendered, Rendering, Step
from slipring.protocol.items import Item

_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})


class Known(Rendered, frozen=True, eq=False):
    """A context as tokens, and what this engine knows about it, so that a continuation adds to it."""

    blocks: Blocks | None
    tool_outputs: int
    trace: Trace | None
    """Of the context without the answer."""


class TokenizedEngine(Engine):
    """Tells planned answers id by id."""

    name = "simulated"
    level = Level.TOKENS

    def __init__(self, options: Options) -> None:
        self.options = options
        self.renderer = open_renderer(options)
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
            )
        ]

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        options = self.options
        rendering = await render(job, self.renderer, options.context_tokens, self.tokenizing)
        outputs = _tool_outputs(job, rendering)
        prepared = await prepare(job, outputs, options, self.compiler)
        yield [Accepted(rendering.new_tokens, rendering.fallback, rendering.dropped_items), Begun()]
        pace = Pace(options.tokens_per_s)
        known, cached = self._read(job, rendering, outputs)
        if rate := options.prefill_tokens_per_s:
            pace.postpone((rendering.prompt.total - cached) / rate)
        if job.generate:
            pace.postpone(options.ttft_ms / 1000)
        await pace.reached()
        answer = Answer(job, rendering, self.renderer, trusted=True)
        answer.take(Piece(cached_tokens=cached))
        ids, end = self._plan(job, rendering, known, prepared)
        for id in ids:
            await pace.token()
            if answer.ends_here():
                break
            if deltas := answer.take(Piece([id])):
                yield deltas
        else:
            answer.take(end)
        *last, finished = answer.finish()
        assert isinstance(finished, Finished)
        assert isinstance(finished.position, Rendered)
        yield [*last, structs.replace(finished, position=self._after(known, finished.position))]

    async def count(self, job: Job, enough: int | None = None) -> int:
        return await count(job, self.renderer, self.options.context_tokens, self.tokenizing, enough)

    def _plan(
        self, job: Job, rendering: Rendering, known: Known, prepared: Prepared
    ) -> tuple[list[int], Piece]:
        """The ids to be said, as many as there is room for, and how that ends."""
        if not job.generate:
            return [], Piece(reason="stop")
        mark = known.trace.mark if known.trace is not None else ""
        ids = self._wording.ids(job, rendering.prompt, prepared, mark)
        room = self.options.context_tokens - rendering.prompt.total
        limit = min(job.settings.max_output_tokens or room, room)
        return ids[:limit], Piece(reason="length" if len(ids) > limit else "stop")

    def _read(self, job: Job, rendering: Rendering, outputs: int) -> tuple[Known, int]:
        """What is known of a job's context, and how many of its tokens were known from the start."""
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
            read = list(context.steps()) if steps is None else steps
            blocks, cached = self._cache.read(blocks or self._cache.start(job.tenant), read)
        return _known(context, blocks, outputs, trace), cached

    def _after(self, known: Known, position: Rendered) -> Known:
        """Where an answer has left a context, which the answer is part of from now on."""
        blocks = known.blocks
        if blocks is not None:
            blocks, _ = self._cache.read(blocks, _added(position, known) or ())
        return _known(position, blocks, known.tool_outputs, known.trace)


def _known(context: Rendered, blocks: Blocks | None, tool_outputs: int, trace: Trace | None) -> Known:
    return Known(context.writer, context.preface, context.body, blocks, tool_outputs, trace)


def _added(context: Rendered, earlier: Rendered) -> list[Step] | None:
    """What a context adds to an earlier one, oldest first; None where it does not begin with it."""
    if context.preface is not earlier.preface:
        return None
    steps: list[Step] = []
    for body in context.body.lineage():
        if body is earlier.body:
            return steps[::-1]
        steps.append(body.step)
    return None


def _tool_outputs(job: Job, rendering: Rendering) -> int:
    """How many results of tools a job's context holds."""
    position = job.parent.position if job.parent is not None else None
    if isinstance(position, Known) and rendering.fallback is None:
        return position.tool_outputs + _outputs(job.input)
    return _outputs(tuple(job.context()))


def _outputs(items: Sequence[Item]) -> int:
    return sum(item.type in _OUTPUTS for item in items)
