"""Parsing whole answers for tests: the offered tools, and the deltas that are expected."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.parsing.output_parser import output_parser
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool, CustomTool, FunctionTool


def function(name: str, namespace: str | None = None, schema: object = None) -> CallableTool:
    definition = FunctionTool(name=name)
    if schema is not None:
        definition.parameters = Raw(msgspec.json.encode(schema))
    return CallableTool("function", name, namespace, definition)


def custom(name: str, namespace: str | None = None) -> CallableTool:
    return CallableTool("custom", name, namespace, CustomTool(name=name))


OFFER = Offer(tools=(function("f"), function("g"), custom("patch"), function("read", "files")))
NONE = Offer()


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Merge adjacent deltas of text, of thought, or of a call's arguments."""
    whole: list[Delta] = []
    for delta in deltas:
        last = whole[-1] if whole else None
        if isinstance(delta, Text | Thought):
            assert delta.text, "an empty delta"
        if isinstance(last, Text | Thought | CallArguments) and type(last) is type(delta):
            whole[-1] = type(last)(last.text + delta.text)
        else:
            whole.append(delta)
    return whole


def parsed(
    pieces: Iterable[str],
    format: OutputFormat,
    offer: Offer = OFFER,
    *,
    thinking: bool = True,
    starts_thinking: bool = False,
    trusted: bool = False,
    cut_off: bool = False,
) -> list[Delta]:
    parser = output_parser(format, offer, thinking=thinking, starts_thinking=starts_thinking, trusted=trusted)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return merged(deltas + parser.finish(cut_off=cut_off))


def call(name: str, arguments: str, namespace: str | None = None) -> list[Delta]:
    return [CallStarted("function", name, namespace), CallArguments(arguments), CallEnded()]


def broken_call(name: str, arguments: str, rest: str = "") -> list[Delta]:
    """A call that the model broke off after these arguments, and the text after it."""
    deltas: list[Delta] = [CallStarted("function", name), CallArguments(arguments), CallEnded(False)]
    return [*deltas, Text(rest)] if rest else deltas


def custom_call(name: str, text: str) -> list[Delta]:
    deltas: list[Delta] = [CallStarted("custom", name)]
    return [*deltas, *([CallArguments(text)] if text else []), CallEnded()]


def check(
    text: str,
    expected: list[Delta],
    format: OutputFormat,
    offer: Offer = OFFER,
    *,
    starts_thinking: bool = False,
    trusted: bool = False,
    cut_off: bool = False,
) -> None:
    """Check the deltas of a text, parsed whole and character by character."""
    for pieces in ([text], text):
        deltas = parsed(
            pieces, format, offer, starts_thinking=starts_thinking, trusted=trusted, cut_off=cut_off
        )
        assert deltas == expected


def split(text: str, cuts: list[int]) -> list[str]:
    ends = sorted(cut % (len(text) + 1) for cut in cuts)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
