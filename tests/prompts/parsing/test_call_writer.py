"""Answers that are written in a format are parsed as the same thoughts, text and calls."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.generation import CallArguments, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing import known_formats
from slipring.prompts.parsing.call_writer import Call, write_answer
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.output_format import (
    HARMONY_MARKS,
    BracedCalls,
    JsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool, CustomTool, FunctionTool, Offer
from tests.prompts.parsing.answers import parsed, split

Json = dict[str, Any]
FORMATS = {name: value for name, value in vars(known_formats).items() if isinstance(value, OutputFormat)}
MARKS = sorted({mark for format in FORMATS.values() for mark in format.marks()})


# What the formats can carry.


def uncarried(format: OutputFormat) -> tuple[str, ...]:
    """Strings that no argument may contain."""
    calls = format.calls
    if format.is_harmony:
        return HARMONY_MARKS
    if isinstance(calls, TaggedCalls):
        marks = (calls.value_close, calls.arguments_close, calls.close, calls.key_open)
        return tuple(mark.split()[0] for mark in marks if mark)
    if isinstance(calls, NestedTagCalls):
        return (calls.tag_prefix,)
    return (calls.quote,) if isinstance(calls, BracedCalls) else ()


def carries_text_before_calls(format: OutputFormat) -> bool:
    calls = format.calls
    if isinstance(calls, JsonCalls):
        return bool(calls.open or calls.section_open or calls.announcement)
    return not isinstance(calls, PythonCalls) or bool(calls.section_open)


# Tools, arguments and answers.

TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
STRINGS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        (
            *("", " ", "\n", "\n\nx\n", " x ", "1", "-0.5", "true", "None", "null", '"', "'", "\\", '"a"'),
            *(
                '{"a": 1}',
                "[1, 2]",
                "['a']",
                "{}",
                "a\nb",
                "a\r\nb",
                "&quot; &amp;",
                '\\"',
                "x<",
                "</",
                "été",
            ),
            *("\x00\x1f\x7f\u2028\U0001f4a9", "f(a=1)", "}", "]", ",", ":", "'''", '"""', "```", "\n```"),
        )
    ),
    st.builds("{}{}{}".format, st.text(max_size=3), st.sampled_from(MARKS), st.text(max_size=3)),
)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": STRINGS,
    "integer": st.integers(-(10**18), 10**18),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
}


@st.composite
def schema_and_value(draw: st.DrawFn, depth: int = 2) -> tuple[Json, st.SearchStrategy[Any]]:
    """A schema, and a strategy for its values."""
    type = draw(st.sampled_from(TYPES if depth else TYPES[:5]))
    if type == "array":
        items, values = draw(schema_and_value(depth - 1))
        return {"type": type, "items": items}, st.lists(values, max_size=3)
    if type == "object":
        members = draw(st.dictionaries(KEYS, schema_and_value(depth - 1), max_size=3))
        schema = {"type": type, "properties": {key: inner for key, (inner, _) in members.items()}}
        return schema, st.fixed_dictionaries(
            {}, optional={key: values for key, (_, values) in members.items()}
        )
    return {"type": type}, SCALARS[type]


@st.composite
def tool_calls(draw: st.DrawFn) -> tuple[CallableTool, Json, str]:
    """A tool, arguments of a call to it, and those as the parser emits them."""
    if draw(st.integers(0, 4)) == 0:
        text = draw(STRINGS)
        return CallableTool("custom", "patch", None, CustomTool(name="patch")), {"input": text}, text
    members = draw(st.dictionaries(KEYS, schema_and_value(), max_size=4))
    properties = {key: schema for key, (schema, _) in members.items()}
    parameters = wire.encode({"type": "object", "properties": properties})
    name = draw(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True))
    tool = CallableTool("function", name, None, FunctionTool(name=name, parameters=Raw(parameters)))
    arguments = {key: draw(values) for key, (_, values) in members.items()}
    return tool, arguments, json.dumps(arguments)


PROSE = st.text(
    st.characters(exclude_characters="<>[]{}|", exclude_categories=("Cs",)), min_size=1, max_size=30
).map(lambda text: text.strip(SPACE))


def same(deltas: list[Delta]) -> list[Delta]:
    """Deltas with arguments of functions in one form of JSON, and without empty arguments."""
    function = False
    whole: list[Delta] = []
    for delta in deltas:
        if isinstance(delta, CallStarted):
            function = delta.kind == "function"
        if not isinstance(delta, CallArguments):
            whole.append(delta)
        elif delta.text:
            whole.append(CallArguments(json.dumps(json.loads(delta.text)) if function else delta.text))
    return whole


@pytest.mark.parametrize("name", FORMATS)
@given(
    made=st.lists(tool_calls(), max_size=3, unique_by=lambda made: made[0].name),
    thoughts=st.just("") | PROSE,
    text=st.just("") | PROSE,
    opened=st.booleans(),
    trusted=st.booleans(),
    as_text=st.booleans(),
    cuts=st.lists(st.integers(0, 1000), max_size=6),
)
def test_what_is_written_is_parsed_as_the_same(
    name: str,
    made: list[tuple[CallableTool, Json, str]],
    thoughts: str,
    text: str,
    opened: bool,
    trusted: bool,
    as_text: bool,
    cuts: list[int],
) -> None:
    format = FORMATS[name]
    if not format.think_close and not format.is_harmony:
        thoughts, opened = "", False
    if format.is_harmony:
        made = made[:1]
    if made and not carries_text_before_calls(format):
        text = ""
    values = [json.dumps(arguments, ensure_ascii=False) for _, arguments, _ in made]
    values += [text for _, arguments, _ in made for text in strings(arguments)]
    assume(not any(mark in value for mark in uncarried(format) for value in values))
    calls = [
        Call(tool.name, json.dumps(arguments) if as_text else arguments, number)
        for number, (tool, arguments, _) in enumerate(made)
    ]
    answer = write_answer(format, thoughts, text, calls, opened_thought=opened)
    expected: list[Delta] = [Thought(thoughts)] if thoughts else []
    expected += [Text(text)] if text else []
    for tool, _, emitted in made:
        expected += [CallStarted(tool.kind, tool.name), CallArguments(emitted)]
    offer = Offer(tools=tuple(tool for tool, _, _ in made))
    for pieces in ([answer], split(answer, cuts), list(answer)):
        found = parsed(pieces, format, offer, starts_thinking=opened, trusted=trusted)
        assert same(found) == same(expected)


def strings(value: Any) -> list[str]:
    """All strings in a value."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner)]
    return [value] if isinstance(value, str) else []
