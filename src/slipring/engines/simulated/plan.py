"""What the simulated engine says: a plan of steps, the same for the same request."""

from collections.abc import Iterator
from itertools import cycle, islice, pairwise

from msgspec import Struct

from slipring.core.generation import CallArguments, CallStarted, Delta, Job, Text
from slipring.engines.constraints.compiler import Compiler
from slipring.engines.simulated.documents import NOTHING, Draft, draft
from slipring.engines.simulated.inputs import input_for
from slipring.engines.simulated.options import Options
from slipring.errors import ApiError
from slipring.prompts.tool_definitions import parameters_of
from slipring.protocol.tools import CallableTool
from slipring.sandbox.sandbox import TooExpensive

WORDS = (
    "this is a simulated answer made of plain words that no model chose and that mean nothing beyond"
    " their number so that clients and tests have something of a known length to read"
).split()


class Say(Struct):
    """Emit deltas, as one token."""

    deltas: list[Delta]
    reasoning: bool = False


class Stall(Struct):
    """Say nothing for a while."""

    seconds: float


class Fail(Struct):
    """Break down."""

    error: ApiError


Step = Say | Stall | Fail

_SPOKEN = [Say([Text(f" {word}")]) for word in WORDS]
"""Made once: at thousands of tokens per second the simulation must not be what one measures."""


class Prepared(Struct, frozen=True):
    """What an answer says: calls, a document, or, where there is neither, words."""

    tools: tuple[CallableTool, ...] = ()
    """To be called, one after the other: the same one, as often as it is to be called."""
    draft: Draft = NOTHING
    """Of the arguments of each call, or of the document."""
    input: str | None = None
    """Of each call of a custom tool, where a grammar asks for it."""


async def prepare(job: Job, tool_outputs: int, options: Options, compiler: Compiler) -> Prepared:
    """Call the first tool on offer while the context holds too few outputs, else answer with text."""
    if not job.generate:
        return Prepared()
    tools = tools_to_call(job, tool_outputs, options)
    param = "tools" if tools else "text.format.schema"
    try:
        if tools and tools[0].kind == "custom":
            grammar = tools[0].grammar
            if grammar is None:
                return Prepared(tools)
            return Prepared(tools, input=await input_for(compiler, job.tenant, grammar))
        if tools:
            return Prepared(tools, await draft(compiler, job.tenant, bytes(parameters_of(tools[0]))))
        if job.settings.format.kind != "text":
            return Prepared(draft=await draft(compiler, job.tenant, job.settings.format.schema))
    except TooExpensive as error:
        raise TooExpensive(error.reason, param) from None
    return Prepared()


def plan_answer(job: Job, prepared: Prepared, options: Options, mark: str = "") -> Iterator[Step]:
    """The steps of an answer; ``mark``: what it is to carry."""
    tokens = options.output_tokens
    if prepared.tools:
        for tool in prepared.tools:
            yield from call(tool, prepared, tokens, mark)
        return
    if job.settings.format.kind == "text":
        yield Say([Text(mark or WORDS[0].capitalize())])
        yield from islice(cycle(_SPOKEN), 1, tokens)
        return
    for piece in pieces(prepared.draft.filled(mark), tokens):
        yield Say([Text(piece)])


def tools_to_call(job: Job, tool_outputs: int, options: Options) -> tuple[CallableTool, ...]:
    """Which tools to call, one by one; none where text is to be said."""
    tools = job.offer.tools
    left = options.tool_calls - tool_outputs
    if not tools or not (job.offer.required or left > 0):
        return ()
    calls = min(max(left, 1), max(options.parallel_calls, 1)) if job.settings.parallel_tool_calls else 1
    return tools[:1] * min(calls, job.settings.max_tool_calls or calls)


def call(tool: CallableTool, prepared: Prepared, tokens: int, mark: str = "") -> Iterator[Step]:
    """A call of a tool, with arguments that fit its schema and take about ``tokens`` tokens."""
    started = CallStarted(kind=tool.kind, name=tool.name, namespace=tool.namespace)
    if tool.kind != "custom":
        arguments = padded(prepared.draft.filled(mark), tokens)
    else:
        arguments = input_of(prepared, tokens, mark)
    opening: list[Delta] = [started]
    for piece in pieces(arguments, tokens):
        yield Say([*opening, CallArguments(piece)])
        opening = []


def padded(arguments: str, length: int) -> str:
    """Arguments made longer by white space, before their end."""
    return arguments[:-1] + " " * (length - len(arguments)) + arguments[-1:]


def input_of(prepared: Prepared, tokens: int, mark: str) -> str:
    """Words, or what a grammar asks for instead; where nothing was found that fits, words all the same."""
    if prepared.input is not None:
        return prepared.input
    words = islice(cycle(WORDS), max(tokens, 1))
    return " ".join([mark, *words] if mark else words)


def pieces(text: str, count: int) -> list[str]:
    """Cut a text into ``count`` pieces of about the same length, or into characters if it is shorter."""
    count = max(1, min(count, len(text)))
    cuts = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(cuts)]
