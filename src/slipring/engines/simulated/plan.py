"""What the simulated engine says: a plan of steps, the same for the same request."""

from collections.abc import Iterator
from itertools import cycle, islice, pairwise

import msgspec
from msgspec import Struct

from slipring.core.generation import CallArguments, CallStarted, Delta, Job, Text
from slipring.engines.simulated.inputs import input_for
from slipring.engines.simulated.options import Options
from slipring.engines.simulated.schemas.instances import Unsatisfiable, instance
from slipring.errors import ApiError, InvalidRequest
from slipring.prompts.schemas import parameters_of
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool

_WORDS = (
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

_SPOKEN = [Say([Text(f" {word}")]) for word in _WORDS]
"""Made once: at thousands of tokens per second the simulation must not be what one measures."""


def plan_answer(job: Job, tool_outputs: int, options: Options) -> Iterator[Step]:
    """Call the first tool on offer while the context holds too few outputs, else answer with text."""
    tools = job.offer.tools
    left = options.tool_calls - tool_outputs
    if tools and (job.offer.required or left > 0):
        calls = min(max(left, 1), max(options.parallel_calls, 1)) if job.settings.parallel_tool_calls else 1
        calls = min(calls, job.settings.max_tool_calls or calls)
        for _ in range(calls):
            yield from call(tools[0], options.output_tokens)
        return
    if job.settings.format.kind == "text":
        yield Say([Text(_WORDS[0].capitalize())])
        yield from islice(cycle(_SPOKEN), 1, options.output_tokens)
        return
    document = wire.encode(_document(job.settings.format.schema)).decode()
    for piece in pieces(document, options.output_tokens):
        yield Say([Text(piece)])


def call(tool: CallableTool, tokens: int) -> Iterator[Step]:
    """A call of a tool, with arguments that fit its schema and take about ``tokens`` tokens."""
    started = CallStarted(kind=tool.kind, name=tool.name, namespace=tool.namespace)
    if tool.kind != "custom":
        arguments = wire.encode(_document(bytes(parameters_of(tool)))).decode()
        padding = " " * (tokens - len(arguments))
        arguments = arguments[:-1] + padding + arguments[-1:]
    else:
        arguments = _input(tool, tokens)
    opening: list[Delta] = [started]
    for piece in pieces(arguments, tokens):
        yield Say([*opening, CallArguments(piece)])
        opening = []


def _input(tool: CallableTool, tokens: int) -> str:
    """Words, or what a grammar asks for instead; where it finds nothing that fits, words all the same."""
    grammar = tool.grammar
    found = input_for(grammar) if grammar is not None else None
    return found if found is not None else " ".join(islice(cycle(_WORDS), max(tokens, 1)))


def pieces(text: str, count: int) -> list[str]:
    """Cut a text into ``count`` pieces of about the same length, or into characters if it is shorter."""
    count = max(1, min(count, len(text)))
    cuts = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(cuts)]


def _document(schema: bytes | None) -> object:
    if schema is None:
        return {}
    try:
        return instance(msgspec.json.decode(schema))
    except Unsatisfiable as error:
        raise InvalidRequest(f"The simulated engine finds no value for the schema: {error}.") from error
