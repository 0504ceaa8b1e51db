"""Answers that are written in a format are parsed as the same thoughts, text and calls."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.answer_writer import Call, Piece, answer_pieces, write_calls
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.output_format import (
    HARMONY_MARKS,
    BracedCalls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.protocol import wire
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool, CustomTool, FunctionTool
from tests.prompts.parsing import family_formats as known
from tests.prompts.parsing.answers import OFFER, call, check, parsed, split
from tests.prompts.parsing.written_answers import write_answer

Json = dict[str, Any]
FORMATS = {name: value for name, value in vars(known).items() if isinstance(value, OutputFormat)}
MARKS = sorted({mark for format in FORMATS.values() for mark in format.marks()})


# What the formats can carry.


def uncarried(format: OutputFormat) -> tuple[str, ...]:
    """Strings that no argument may contain."""
    calls = format.calls
    if format.is_harmony:
        return HARMONY_MARKS
    if isinstance(calls, TaggedCalls):
        marks = (calls.value_close, calls.arguments_close, calls.close, calls.key_open)
        of_messages = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>") if format.is_addressed else ()
        return (*(mark.split()[0] for mark in marks if mark), *of_messages)
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


PROSE = st.text(st.characters(exclude_characters="<>[]{}|", codec="utf-8"), min_size=1, max_size=30).map(
    lambda text: text.strip(SPACE)
)


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
@settings(max_examples=12)
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
    if format.is_addressed:  # what is white space to Unicode is part of a header
        thoughts, text = thoughts.strip(), text.strip()
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
        expected += [CallStarted(tool.kind, tool.name), CallArguments(emitted), CallEnded()]
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


# Exact texts.

F, G = Call("f", {"a": "x\ny", "n": [1, {"b": None}], "t": True}, 4), Call("g", "{}", 5)
JSON_F = '{"a": "x\\ny", "n": [1, {"b": null}], "t": true}'


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "HERMES",
            f'<tool_call>\n{{"name": "f", "arguments": {JSON_F}}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        ),
        ("LLAMA3_JSON", f'{{"name": "f", "parameters": {JSON_F}}}\n{{"name": "g", "parameters": {{}}}}'),
        (
            "MISTRAL_NEMO",
            f'[TOOL_CALLS][{{"name": "f", "arguments": {JSON_F}, "id": "000000004"}},'
            ' {"name": "g", "arguments": {}, "id": "000000005"}]',
        ),
        (
            "COHERE",
            f'<|START_ACTION|>[{{"tool_call_id": "4", "tool_name": "f", "parameters": {JSON_F}}},'
            ' {"tool_call_id": "5", "tool_name": "g", "parameters": {}}]<|END_ACTION|>',
        ),
        (
            "MISTRAL_CALL_ID",
            f"[TOOL_CALLS]f[CALL_ID]000000004[ARGS]{JSON_F}[TOOL_CALLS]g[CALL_ID]000000005[ARGS]{{}}",
        ),
        (
            "KIMI_K2",
            "<|tool_calls_section_begin|>"
            f"<|tool_call_begin|>functions.f:4<|tool_call_argument_begin|>{JSON_F}<|tool_call_end|>"
            "<|tool_call_begin|>functions.g:5<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
        ),
        (
            "QWEN3_CODER",
            "<tool_call>\n<function=f>\n<parameter=a>\nx\ny\n</parameter>\n"
            '<parameter=n>\n[1, {"b": null}]\n</parameter>\n<parameter=t>\ntrue\n</parameter>\n'
            "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ),
        (
            "GLM_4_7",
            "<tool_call>f<arg_key>a</arg_key><arg_value>x\ny</arg_value>"
            '<arg_key>n</arg_key><arg_value>[1, {"b": null}]</arg_value>'
            "<arg_key>t</arg_key><arg_value>true</arg_value></tool_call><tool_call>g</tool_call>",
        ),
        (
            "DEEPSEEK_V4",
            '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
            '<｜DSML｜parameter name="a" string="true">x\ny</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="n" string="false">[1, {"b": null}]</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="t" string="false">true</｜DSML｜parameter>\n'
            '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ),
        (
            "KIMI_K3",
            '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
            '<|open|>argument key="a" type="string"<|sep|>x\ny<|close|>argument<|sep|>'
            '<|open|>argument key="n" type="array"<|sep|>[1, {"b": null}]<|close|>argument<|sep|>'
            '<|open|>argument key="t" type="boolean"<|sep|>true<|close|>argument<|sep|><|close|>call<|sep|>'
            '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        ),
        (
            "MINIMAX_M3",
            "@<tool_call>\n"
            '@<invoke name="f">@<a>x\ny@</a>@<n>@<item>1@</item>@<item>@<b>null@</b>@</item>@</n>'
            "@<t>true@</t>"
            '@</invoke>\n@<invoke name="g">@</invoke>\n@</tool_call>'.replace("@", "]<]minimax[>["),
        ),
        (
            "LFM2",
            '<|tool_call_start|>[f(a="x\\ny", n=[1, {"b": None}], t=True), g()]<|tool_call_end|>',
        ),
        (
            "GEMMA4",
            '<|tool_call>call:f{a:<|"|>x\ny<|"|>,n:[1,{b:null}],t:true}<tool_call|>'
            "<|tool_call>call:g{}<tool_call|>",
        ),
    ],
)
def test_calls_are_written_as_the_family_writes_them(name: str, expected: str) -> None:
    pieces = write_calls(FORMATS[name], [F, G])
    assert "".join(piece.text for piece in pieces) == expected


def test_harmony_is_written_in_messages_of_one_call() -> None:
    call = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{JSON_F}"
    between = "<|end|><|start|>assistant"
    assert write_answer(known.HARMONY, calls=[F]) == call
    assert write_answer(known.HARMONY, "Hm.", "Wait.", [F]) == (
        f"<|channel|>analysis<|message|>Hm.{between}<|channel|>commentary<|message|>Wait.{between}{call}"
    )
    assert write_answer(known.HARMONY, "Hm.", "Yes.", opened_thought=True) == (
        f"Hm.{between}<|channel|>final<|message|>Yes."
    )
    assert write_calls(known.HARMONY, []) == []
    assert "".join(piece.text for piece in write_calls(known.HARMONY, [F])) == call
    with pytest.raises(ValueError, match="one call"):
        write_answer(known.HARMONY, calls=[F, G])


def test_ids_before_names_and_given_ids_are_written() -> None:
    solar = OutputFormat(
        calls=NamedJsonCalls(id_open="<id>", open="<name>", arguments_open="<args>", close="<end>")
    )
    called = Call("f", "{}", id="abc")
    assert "".join(piece.text for piece in write_calls(solar, [called])) == "<id>abc<name>f<args>{}<end>"
    nemo = write_answer(known.MISTRAL_NEMO, calls=[called])
    assert nemo == '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abc"}]'
    assert '"tool_call_id": "abc"' in write_answer(known.COHERE, calls=[called])


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (
            known.QWEN3_5,
            "<think>\nHm.\n</think>\n\nYes.\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ),
        (known.LLAMA3_JSON, 'Yes.<|python_tag|>{"name": "g", "parameters": {}}'),
        (
            known.KIMI_K3,
            "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
            '<|open|>tools<|sep|><|open|>call tool="g" index="1"<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>",
        ),
    ],
)
def test_thoughts_and_text_precede_calls(format: OutputFormat, expected: str) -> None:
    thoughts = "Hm." if format.think_close else ""
    assert write_answer(format, thoughts, "Yes.", [G]) == expected


def test_a_thought_of_the_prompt_is_closed() -> None:
    assert write_answer(known.QWEN3_5, text="Yes.", opened_thought=True) == "\n</think>\n\nYes."
    assert write_answer(known.QWEN3_5, "Hm.", "Yes.", opened_thought=True) == "Hm.\n</think>\n\nYes."
    assert write_answer(known.QWEN3_5, text="Yes.") == "Yes."


def test_what_a_format_has_no_place_for_is_refused() -> None:
    plain = OutputFormat()
    with pytest.raises(ValueError, match="no thoughts"):
        write_answer(plain, "Hm.")
    for text in ("", "Yes."):
        with pytest.raises(ValueError, match="no calls"):
            write_answer(plain, "", text, [G])
    for format in (known.BARE_JSON, known.PYTHON_LIST):
        with pytest.raises(ValueError, match="cannot follow text"):
            write_answer(format, "", "Yes.", [G])


def test_marks_are_told_from_content() -> None:
    called = Call("f", {"<tool_call>": "<|open|>"})
    pieces = answer_pieces(known.QWEN3_5, "<think>", "</think>", [called])
    assert [piece.text for piece in pieces if not piece.is_mark] == [
        *("<think>", "</think>", "f", "<tool_call>", "<|open|>"),
    ]
    assert [piece.is_mark for piece in pieces] == [number % 2 == 0 for number in range(len(pieces))]
    assert write_calls(known.GEMMA4, [Call("f", {"a": "x"})]) == [
        *(Piece("<|tool_call>call:", is_mark=True), Piece("f{a:"), Piece('<|"|>', is_mark=True), Piece("x")),
        *(Piece('<|"|>', is_mark=True), Piece("}"), Piece("<tool_call|>", is_mark=True)),
    ]


def test_names_and_keys_are_escaped_where_the_format_has_escapes() -> None:
    written = write_answer(known.KIMI_K3, calls=[Call("f", {'a"&b': "c"})])
    assert 'key="a&quot;&amp;b"' in written
    check(written, call("f", '{"a\\"&b": "c"}'), known.KIMI_K3)


@pytest.mark.parametrize(
    "value",
    [
        *("<tool_call>", "<function=f>", "<parameter", "</parameter", "x</tool_call>y", "x</function>y"),
        *("</function> </tool_call", "<parameter=other>", "<think></think>", "<|im_end|>"),
    ],
)
def test_marks_in_tagged_values_stay_values_where_they_end_nothing(value: str) -> None:
    written = write_answer(known.QWEN3_5, calls=[Call("f", {"a": value}), Call("g", {})])
    expected = [*call("f", json.dumps({"a": value})), *call("g", "{}")]
    assert parsed([written], known.QWEN3_5, OFFER) == expected
    assert parsed(written, known.QWEN3_5, OFFER) == expected
