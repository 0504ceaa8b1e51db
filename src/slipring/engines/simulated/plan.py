"""Plans the answer to a job: which tools are called, which text or document is written, in which steps.

Deterministic: the same request gets the same plan.
"""

from collections.abc import Iterable, Iterator
from itertools import cycle, islice, pairwise
from typing import Literal

from msgspec import Struct

from slipring.base.errors import ApiError, InvalidRequest, TooExpensive
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Job,
    Text,
    Thought,
    ThoughtSummary,
)
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.required_answer_shapes import CalledTool
from slipring.engines.constraints.sample_values import EMPTY_OBJECT, SampleDocument, document_for, input_for
from slipring.engines.simulated.options import SimulatedOptions
from slipring.protocol.tools.toolset import CallableTool

WORDS = (
    "this is a simulated answer made of plain words that no model chose and that mean nothing beyond"
    " their number so that clients and tests have something of a known length to read"
).split()


class Emit(Struct):
    """Emit deltas, as one token."""

    deltas: list[Delta]
    is_reasoning: bool = False


class Stall(Struct):
    """Emit nothing for a while."""

    seconds: float


class Fail(Struct):
    """Raise an error."""

    error: ApiError


AnswerStep = Emit | Stall | Fail

_WORD_STEPS = [Emit([Text(f" {word}")]) for word in WORDS]
"""Built once, so that at thousands of tokens per second the simulation costs little of what is measured."""


class Content(Struct, frozen=True):
    """What an answer contains: tool calls, else a document if the request asks for JSON, else words."""

    tools: tuple[CallableTool, ...] = ()
    """The tool to call, once for each call."""
    document: SampleDocument = EMPTY_OBJECT
    """Of the arguments of each call, or of the document."""
    input: str | None = None
    """The input of each call of a custom tool that has a grammar."""


async def prepare(job: Job, tool_outputs: int, options: SimulatedOptions, compiler: Compiler) -> Content:
    """Decide what the answer contains, and have documents and inputs written in the sandbox.

    Raises ``InvalidRequest`` with the field at fault if the engine cannot write a value for a schema.
    """
    if not job.generate:
        return Content()
    tools = tools_to_call(job, tool_outputs, options)
    param = "tools" if tools else "text.format.schema"
    try:
        if tools and tools[0].kind == "custom":
            grammar = tools[0].grammar
            if grammar is None:
                return Content(tools)
            return Content(tools, input=await input_for(compiler, job.tenant, grammar))
        if tools:
            called = CalledTool.of(tools[0])
            made = await document_for(compiler, job.tenant, called.parameters, strict=called.strict)
            return Content(tools, made)
        format = job.settings.format
        if format.kind != "text":
            made = await document_for(compiler, job.tenant, format.schema, strict=format.is_strict)
            return Content(document=made)
    except TooExpensive as error:
        raise TooExpensive(error.reason, param) from None
    except InvalidRequest as error:
        place = f"the parameters of '{tools[0].name}': " if tools else ""
        raise InvalidRequest(f"Invalid '{param}': {place}{error.message}", param=param) from None
    return Content()


def plan_answer(
    job: Job, content: Content, options: SimulatedOptions, mark: str = ""
) -> Iterator[AnswerStep]:
    """The steps of an answer. ``mark``: a text that it carries, in its first words or in a free string."""
    tokens = options.output_tokens
    if content.tools:
        for tool in content.tools:
            yield from _call(tool, content, tokens, mark)
    elif job.settings.format.kind == "text":
        yield Emit([Text(mark or WORDS[0].capitalize())])
        yield from islice(cycle(_WORD_STEPS), 1, tokens)
    else:
        for piece in pieces(content.document.with_text(mark), tokens):
            yield Emit([Text(piece)])


def tools_to_call(job: Job, tool_outputs: int, options: SimulatedOptions) -> tuple[CallableTool, ...]:
    """The tool of each call: the first on offer, until the context holds ``tool_calls`` outputs or if a call
    is required; empty if the answer is text."""
    tools = job.offer.tools
    left = options.tool_calls - tool_outputs
    if not tools or not (job.offer.required or left > 0):
        return ()
    calls = min(max(left, 1), max(options.parallel_calls, 1)) if job.settings.parallel_tool_calls else 1
    return tools[:1] * calls


def _call(tool: CallableTool, content: Content, tokens: int, mark: str) -> Iterator[AnswerStep]:
    """A call whose arguments are streamed in about ``tokens`` pieces."""
    if tool.kind != "custom":
        arguments = padded(content.document.with_text(mark), tokens)
    else:
        arguments = input_of(content, tokens, mark)
    yield from call_steps(CallStarted(tool.kind, tool.name, tool.namespace), arguments, tokens)


def call_steps(started: CallStarted, arguments: str, count: int) -> Iterator[AnswerStep]:
    """A call with its arguments in ``count`` pieces; it starts with the first and ends with the last."""
    steps: list[list[Delta]] = [[CallArguments(piece)] for piece in pieces(arguments, count)]
    steps[0].insert(0, started)
    steps[-1].append(CallEnded())
    for deltas in steps:
        yield Emit(deltas)


def padded(arguments: str, length: int) -> str:
    """JSON made longer by white space before its last character."""
    return arguments[:-1] + " " * (length - len(arguments)) + arguments[-1:]


def input_of(content: Content, tokens: int, mark: str) -> str:
    """The input of a custom tool: what its grammar asks for if that was found, else words."""
    if content.input is not None:
        return content.input
    words = islice(cycle(WORDS), max(tokens, 1))
    return " ".join([mark, *words] if mark else words)


def pieces(text: str, count: int) -> list[str]:
    """Cut a text into ``count`` pieces of about the same length, or into characters if it is shorter."""
    count = max(1, min(count, len(text)))
    cuts = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(cuts)]


class PlannedAnswer:
    """The tokens of a job's answer, up to the next interruption, the job's limit or a stop that it asks for.
    Implements ``pace.Tokens``."""

    __slots__ = (
        "_has_ended",
        "_job",
        "_next",
        "_steps",
        "emitted",
        "interruption",
        "reason",
        "reasoning_tokens",
        "tokens",
    )

    def __init__(self, job: Job, steps: Iterable[AnswerStep]) -> None:
        self._job = job
        self._steps = iter(steps)
        self._next: Emit | None = None
        self._has_ended = False
        self.emitted: list[Delta] = []
        """All deltas so far."""
        self.tokens = self.reasoning_tokens = 0
        self.reason: Literal["stop", "max_output_tokens", "steered"] = "stop"
        """Why the answer ends, once it has no more tokens."""
        self.interruption: Fail | Stall | None = None
        """What has to happen before the next token, if it is not just the next."""

    def has_next(self) -> bool:
        if self._next is not None:
            return True
        if self._has_ended or self.interruption is not None:
            return False
        step = next(self._steps, None)
        if not isinstance(step, Emit):
            self.interruption, self._has_ended = step, step is None
            return False
        job = self._job
        if job.stop.asked and _is_between_items(self.emitted, step.deltas):
            self.reason, self._has_ended = "steered", True
        elif self.tokens == job.settings.max_output_tokens:
            self.reason, self._has_ended = "max_output_tokens", True
        else:
            self._next = step
        return not self._has_ended

    def take(self, count: int) -> list[Delta]:
        deltas: list[Delta] = []
        while count and self.has_next():
            step = self._next
            assert step is not None
            self._next = None
            count -= 1
            self.tokens += 1
            self.reasoning_tokens += step.is_reasoning
            self.emitted += step.deltas
            deltas = deltas + step.deltas if deltas else step.deltas
        return deltas

    def take_interruption(self) -> Fail | Stall:
        """What has to happen now; there is an interruption."""
        assert self.interruption is not None
        step, self.interruption = self.interruption, None
        return step


def _is_between_items(emitted: list[Delta], following: list[Delta]) -> bool:
    """Whether the answer may stop between these deltas: not within a thought, and not within a call."""
    before, after = (type(emitted[-1]) if emitted else None), (type(following[0]) if following else None)
    if before in (Thought, ThoughtSummary):
        return after is not before
    return before not in (CallStarted, CallArguments)
