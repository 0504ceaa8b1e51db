"""Shapes of calls, in each layout."""

from typing import Final

from slipring.engines.constraints.answer_form import CalledTool, arguments_schema
from slipring.engines.constraints.shapes.shape import (
    SPACE,
    Input,
    Json,
    Mark,
    Pattern,
    Repeated,
    Shape,
    choice,
    sequence,
)
from slipring.engines.constraints.shapes.value_shapes import (
    BracedValues,
    NestedTagValues,
    PythonValues,
    TaggedValues,
    escaped,
)
from slipring.prompts.parsing.calls.json_scanner import quoted
from slipring.prompts.parsing.calls.offered_tools import OfferedTools
from slipring.prompts.parsing.output_format import (
    BracedCalls,
    Calls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    PythonCalls,
    TaggedCalls,
)
from slipring.prompts.parsing.output_parser import call_reader
from slipring.protocol.tools import Offer

_INDEX: Final = Pattern("[0-9]{1,4}")
_ID: Final = Pattern("[A-Za-z0-9]{9}")
"""An id as Mistral's models write it."""
_LEADING_ID: Final = Pattern(r"[A-Za-z0-9_\-]{1,40}")


class CallShapes:
    """Describes the calls of one answer. Raises ``InvalidRequest`` for a strict tool whose arguments cannot
    be enforced in the layout."""

    def __init__(self, layout: Calls, tools: list[CalledTool], max_calls: int) -> None:
        self._layout = layout
        self._max_calls = max_calls
        is_list = layout.is_bracketed
        self._lead = _lead(layout)
        between = layout.between
        if is_list or not (between or self._lead):
            between = ", " if is_list else "\n"
        self._separator = between + self._lead
        self._section_open = layout.section_open + ("[" if is_list else "")
        self._section_close = ("]" if is_list else "") + layout.section_close
        self._one = choice([_call(layout, tool, number) for number, tool in enumerate(tools)])

    def all(self) -> Shape:
        """All calls of an answer."""
        opening = self._section_open + self._lead
        stripped = opening.lstrip()
        # White space may end a thought instead of beginning the calls.
        space = SPACE if stripped != opening else sequence()
        return sequence(space, Mark(stripped), self._repeated(self._max_calls), Mark(self._section_close))

    def after_marks(self, *, alone: bool) -> list[tuple[str, Shape]]:
        """Each mark by which the parser recognizes calls in text, and what follows it; empty if no mark
        precedes calls. ``alone``: only one call, or one section, follows."""
        found: list[tuple[str, Shape]] = []
        for mark in call_reader(self._layout, OfferedTools(Offer()), trusted=True).starts:
            if mark in self._section_open:
                rest = _after(mark, self._section_open) + self._lead
                shape = sequence(Mark(rest), self._repeated(self._max_calls), Mark(self._section_close))
            elif mark in self._lead:
                calls = self._repeated(1 if alone else self._max_calls)
                shape = sequence(Mark(_after(mark, self._lead)), calls)
            else:
                continue
            found.append((mark, shape))
        return found

    def _repeated(self, most: int) -> Shape:
        return Repeated(self._one, self._separator, most) if most > 1 else self._one


def _after(mark: str, text: str) -> str:
    return text[text.index(mark) + len(mark) :]


def _lead(layout: Calls) -> str:
    """What precedes the name, or the JSON, of every call."""
    match layout:
        case NamedJsonCalls(id_open=""):
            return layout.open + layout.name_prefix
        case NamedJsonCalls():
            return layout.id_open
        case TaggedCalls() | BracedCalls():
            return layout.open + layout.name_open
        case NestedTagCalls():
            return layout.open + layout.tag_prefix + layout.name_open
        case _:
            return layout.open


def _call(layout: Calls, tool: CalledTool, number: int) -> Shape:
    """A call from behind its lead on."""
    schema, strict, param = arguments_schema(tool), tool.strict, f"tools[{number}].parameters"
    match layout:
        case JsonCalls():
            return _json_call(layout, tool, number)
        case NamedJsonCalls():
            return _named_json_call(layout, tool, number)
        case TaggedCalls():
            before, is_indexed, after = layout.index_attribute.partition("{index}")
            name: list[Shape] = [Mark(escaped(layout, tool.name) + before), *([_INDEX] if is_indexed else [])]
            values = TaggedValues(layout, schema, strict=strict, param=param)
            end = layout.arguments_close + layout.close
            return sequence(*name, Mark(after + layout.name_close), values.arguments(end))
        case NestedTagCalls():
            nested = NestedTagValues(layout, schema, strict=strict, param=param)
            end = layout.tag_prefix + layout.arguments_close + layout.close
            return sequence(Mark(tool.name + layout.name_close), nested.arguments(end))
        case PythonCalls():
            python = PythonValues(schema, strict=strict, param=param)
            return sequence(Mark(f"{tool.name}("), python.arguments(")"))
        case BracedCalls():
            braced = BracedValues(layout, schema, strict=strict, param=param)
            return sequence(Mark(f"{tool.name}{{"), braced.arguments("}" + layout.close))


def json_arguments(tool: CalledTool, number: int) -> Shape:
    """The arguments of a call as JSON."""
    grammar = tool.grammar
    if grammar is not None and grammar.syntax == "lark":
        return sequence(Mark('{"input": "'), Input(grammar), Mark('"}'))
    fallback = tool.parameters if grammar is not None else b""
    return Json(arguments_schema(tool), tool.strict, f"tools[{number}].parameters", fallback)


def _json_call(layout: JsonCalls, tool: CalledTool, number: int) -> Shape:
    parts: list[Shape] = [Mark(f"{quoted(layout.name_key)}: {quoted(tool.name)}, ")]
    parts += [Mark(f"{quoted(layout.arguments_key)}: "), json_arguments(tool, number)]
    if layout.id_key == "id":  # Mistral's follows, with nine characters; Cohere's precedes and counts
        parts += [Mark(f', {quoted(layout.id_key)}: "'), _ID, Mark('"')]
    elif layout.id_key:
        parts[:0] = [Mark(f'{quoted(layout.id_key)}: "'), _INDEX, Mark('", ')]
    return sequence(Mark("{"), *parts, Mark("}" + layout.close))


def _named_json_call(layout: NamedJsonCalls, tool: CalledTool, number: int) -> Shape:
    lead: list[Shape] = [_LEADING_ID, Mark(layout.open + layout.name_prefix)] if layout.id_open else []
    parts: list[Shape] = [*lead, Mark(tool.name)]
    if layout.id_separator:
        parts += [Mark(layout.id_separator), _INDEX if layout.id_is_index else _ID]
    return sequence(*parts, Mark(layout.arguments_open), json_arguments(tool, number), Mark(layout.close))
