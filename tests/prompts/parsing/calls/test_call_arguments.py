"""Values without quotes get their types from the tool's schema. In calls whose form a grammar enforces, the
input of custom tools is streamed, and all else is as without one.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text
from slipring.prompts.parsing.calls.call_arguments import ArgumentSchema
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat
from slipring.prompts.parsing.output_parser import output_parser
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing.answers import OFFER, call, custom_call, function, parsed, split
from tests.prompts.parsing.test_output_parser import (
    LENGTH,
    LLAMA,
    MISTRAL,
    ODD,
    QWEN,
    F,
    G,
    arguments,
    formats,
    outputs,
)

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, ARRAY, OBJECT, NULL = {"type": "boolean"}, {"type": "array"}, {"type": "object"}, {"type": "null"}


def argument(schema: object, text: str) -> str:
    return ArgumentSchema(msgspec.json.encode({"properties": {"a": schema}})).argument("a", text)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "1", "1"),
        (STRING, '{"a": 1}', '{"a": 1}'),
        (STRING, "null", "null"),
        (STRING, " x\n", " x\n"),
        (INTEGER, "1", 1),
        (INTEGER, " 1\n", 1),
        (INTEGER, "1.5", 1.5),
        (INTEGER, "one", "one"),
        (INTEGER, "true", "true"),
        (INTEGER, "", ""),
        (NUMBER, "-1e3", -1000.0),
        (NUMBER, "1e999", "1e999"),
        (NUMBER, "01", "01"),
        (BOOLEAN, "true", True),
        (BOOLEAN, "False", False),
        (BOOLEAN, "yes", "yes"),
        (NULL, "None", None),
        (NULL, "null", None),
        (ARRAY, "[1, 2]", [1, 2]),
        (ARRAY, "['a', True]", ["a", True]),
        (ARRAY, "[a]", "[a]"),
        (ARRAY, '{"a": 1}', '{"a": 1}'),
        (ARRAY, "{'a': 1}", "{'a': 1}"),
        (ARRAY, "[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
        (OBJECT, '{"a": "\\ud800"}', {"a": "\ufffd"}),
        (OBJECT, "{'a': None}", {"a": None}),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["null", "string"]}, "x", "x"),
        ({"type": ["string", "null"]}, "1", "1"),
        ({"type": ["integer", "null"]}, "1", 1),
        ({"type": ["integer", 1]}, "x", "x"),
        ({"anyOf": [STRING, INTEGER]}, "1", 1),
        ({"anyOf": [STRING, INTEGER]}, "x", "x"),
        ({"oneOf": [STRING, ARRAY]}, '["x"]', ["x"]),
        ({"oneOf": [STRING, ARRAY]}, "1", "1"),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "1", 1),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["a", 1]}, "1", 1),
        ({"enum": "odd"}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"properties": {}}, '{"a": 1}', {"a": 1}),
        ({"properties": {}}, "1", "1"),
        ({"items": {}}, "[1]", [1]),
        ({}, "1", 1),
        ({}, "word", "word"),
        ({}, '"word"', '"word"'),
        ({}, "true", True),
        ({}, "None", None),
        ({}, "[1]", [1]),
        (True, "1", 1),
        ({"$ref": "https://example.com"}, "1", 1),
        ({"$ref": "#/nowhere/at/all"}, "1", 1),
        ({"$ref": "#/properties/a"}, "1", 1),
        ({"$ref": 1}, "1", 1),
    ],
)
def test_values(schema: object, text: str, value: object) -> None:
    assert msgspec.json.decode(argument(schema, text)) == value


def test_references_are_resolved() -> None:
    schema = ArgumentSchema(
        msgspec.json.encode(
            {
                "$ref": "#/$defs/all",
                "$defs": {
                    "all": {"properties": {"a": {"$ref": "#/$defs/x~1y~0"}, "b": {"$ref": "#/$defs/all"}}},
                    "x/y~": {"type": "string"},
                },
            }
        )
    )
    assert schema.argument("a", "1") == '"1"'
    assert schema.knows("a")
    assert schema.knows("b")
    assert not schema.knows("c")


def test_unknown_arguments_have_the_types_of_additional_ones() -> None:
    schema = ArgumentSchema(
        b'{"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}'
    )
    assert schema.argument("b", "1") == '"1"'
    assert not schema.knows("b")


def test_many_alternatives_are_bounded() -> None:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        inner = {"anyOf": [inner, inner]}
    assert argument({"anyOf": 1000 * [{"type": "string"}, 1]}, "1") == '"1"'


def test_odd_schemas_are_no_schemas() -> None:
    schema = ArgumentSchema(b'{"properties": 1, "required": 1}')
    assert schema.argument("a", "1") == "1"
    assert schema.required == frozenset()


BARE = OutputFormat(calls=JsonCalls(is_bare=True))
CALLED = OutputFormat(calls=JsonCalls(open="<tool_call>", close="</tool_call>", arguments_key="parameters"))


def trusted(
    pieces: Iterable[str], format: OutputFormat = QWEN, offer: Offer = OFFER, *, cut_off: bool = False
) -> list[Delta]:
    return parsed(pieces, format, offer, trusted=True, cut_off=cut_off)


def check_trusted(
    text: str,
    expected: list[Delta],
    format: OutputFormat = QWEN,
    offer: Offer = OFFER,
    *,
    cut_off: bool = False,
) -> None:
    assert trusted([text], format, offer, cut_off=cut_off) == expected
    assert trusted(text, format, offer, cut_off=cut_off) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("f", "{}", call("f", "{}")),
        ("f", ' { "a" : [1, {"b": {}}, []] } ', call("f", '{ "a" : [1, {"b": {}}, []] }')),
        ("f", '{"a": "}{][\\"}{\\\\", "}": "</tool_call>"}', None),
        ("f", '{"a": "\\\\\\"\\\\"}', None),
        ("g", '{"é": "\\u00e9 \\ud83d\\ude00 💩"}', None),
        ("files__read", '{"a": -1.5e3, "b": [true, false, null]}', None),
        ("read", "{}", call("read", "{}", "files")),
        ("patch", '{"input": ""}', custom_call("patch", "")),
        ("patch", '{ "input" : "a}{\\"b" }', custom_call("patch", 'a}{"b')),
        ("patch", '{"input": "\\"\\\\\\/\\b\\f\\n\\r\\t"}', custom_call("patch", '"\\/\b\f\n\r\t')),
        ("patch", '{"input": "\\\\u0041\\u0041é"}', custom_call("patch", "\\u0041Aé")),
        ("patch", '{"input": "\\ud83d\\ude00💩\\uD83D\\uDE00"}', custom_call("patch", "😀💩😀")),
    ],
)
def test_calls_are_the_same_with_and_without_a_grammar(
    name: str, arguments: str, expected: list[Delta] | None
) -> None:
    for format, key, before, after in (
        (QWEN, "arguments", "<think>x</think>\nHm\n<tool_call>\n", "\n</tool_call>"),
        (CALLED, "parameters", "<tool_call>", "</tool_call>"),
        (MISTRAL, "arguments", "Hm [TOOL_CALLS]", "\n"),
        (BARE, "arguments", "", ""),
        (LLAMA, "arguments", " \n", "\n"),
    ):
        for source in (
            f'{{"name": "{name}", "{key}": {arguments}}}',
            f'{{ "name"\n:"{name}" ,\t"{key}"  :{arguments} }}',
            f'{{"id": 1, "name": "{name}", "tags": ["x"], "{key}": {arguments}, "more": null}}',
        ):
            text = f"{before}{source}{after}"
            whole = parsed([text], format)
            assert whole[-1] == CallEnded()
            assert expected is None or whole[-len(expected) :] == expected
            check_trusted(text, whole, format)
            check_trusted(f"{text}\n{text}", parsed([f"{text}\n{text}"], format), format)


def test_arguments_are_emitted_as_they_arrive() -> None:
    for trusted in (False, True):
        parser = output_parser(QWEN, OFFER, trusted=trusted)
        assert parser.feed('Hm \n<tool_call>\n{"name": "files__read", "arguments": ') == [Text("Hm")]
        assert parser.feed("{") == []
        begun = [CallStarted("function", "read", "files"), CallArguments('{"a": "x')]
        assert parser.feed('"a": "x') == begun
        assert parser.feed("y") == [CallArguments("y")]
        assert parser.feed("\\") == [CallArguments("\\")]
        assert parser.feed('"}') == [CallArguments('"}')]
        assert parser.feed('"') == [CallArguments('"')]
        assert parser.feed("}") == []
        assert parser.feed("}\n</tool") == [CallArguments("}"), CallEnded()]
        assert not parser.is_thinking
        assert parser.feed("_call>\n") == parser.finish() == []


def test_the_input_of_custom_tools_is_emitted_as_it_arrives_if_a_grammar_enforces_the_call() -> None:
    parser = output_parser(BARE, OFFER, trusted=True)
    assert parser.feed('{"name": "patch", "arguments": {"input": "') == [CallStarted("custom", "patch")]
    assert parser.feed("a\\n\\ud83d") == [CallArguments("a\n")]
    assert parser.feed("\\ude0") == []
    assert parser.feed("0b\\") == [CallArguments("😀b")]
    assert parser.feed('"') == [CallArguments('"')]
    assert parser.feed('"}') == []
    assert parser.feed("}") == [CallEnded()]
    assert parser.finish() == []
    parser = output_parser(BARE, OFFER)
    assert parser.feed('{"name": "patch", "arguments": {"input": "a"}') == []
    assert parser.feed("}") == custom_call("patch", "a")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("\\ud83d", "\ufffd"),
        ("\\ude00\\ud83d", "\ufffd\ufffd"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
        ("\\ud83d\\n", "\ufffd\n"),
        ("\\ud83dx\\u12", "\ufffdx\\u12"),
        ("\\ud83d\\u12 \\x", "\ufffd\\u12 \\x"),
        ("line\nbreak", "line\nbreak"),
    ],
)
def test_invalid_escapes_in_streamed_input_are_replaced_or_kept(written: str, read: str) -> None:
    text = f'{{"name": "patch", "arguments": {{"input": "{written}"}}}}'
    check_trusted(text, custom_call("patch", read), BARE)


@pytest.mark.parametrize(
    "body",
    [
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"name": "f", "parameters": {"a": 1}}',
        '{"name": "\\u0066", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        f"[{F}, {G}]",
        '{"name": "g"}',
        '{"name": "patch", "arguments": "a"}',
        '{"name": "patch", "arguments": {"code": "a"}}',
        '{"name": "patch", "arguments": {"input": 1}}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f ", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f',
        "f(1)",
        "",
        10_000 * " " + '{"x": 1}',
    ],
)
def test_a_call_in_another_form_is_read_as_without_a_grammar(body: str) -> None:
    for format, text in (
        (QWEN, f"Hm\n<tool_call>{body}</tool_call>\n<tool_call>{G}</tool_call>"),
        (QWEN, f"<tool_call>{body}"),
        (BARE, f"{body}\n{G}"),
    ):
        check_trusted(text, parsed([text], format), format)


def test_names_may_need_escapes() -> None:
    offer = Offer(tools=(function('f"'), function("a b")))
    for name, read in (('f\\"', 'f"'), ("a b", "a b"), ("a\\u0020b", "a b")):
        text = f'{{"name": "{name}", "arguments": {{}}}}'
        check_trusted(text, call(read, "{}"), BARE, offer)


def test_streamed_input_may_be_cut_off_anywhere() -> None:
    start = '{"name": "patch", "arguments": {"input": "'
    written, ends = "a\\n\\ud83d\\ude00b", {0: "", 1: "a", 3: "a\n", 15: "a\n😀", 16: "a\n😀b"}
    for end in range(len(written) + 1):
        text = ends[max(known for known in ends if known <= end)]
        check_trusted(start + written[:end], [*custom_call("patch", text)[:-1], CallEnded(False)], BARE)
    whole = custom_call("patch", "a\n😀b")
    for rest in ('"', '"}', '" }\n'):
        for cut_off in (False, True):
            expected = [*whole[:-1], CallEnded(False)]
            deltas = trusted(start + written + rest, BARE, cut_off=cut_off)
            assert [each for each in deltas if not isinstance(each, Text)] == expected
    check_trusted(f'{start}{written}"}}}}', whole, BARE)


@pytest.mark.parametrize(
    "value",
    [
        f'{{"a": "{LENGTH * "x"}"}}',
        f'{{"a": "{LENGTH // 10 * "</tool_call>"}"}}',
        f'{{"a": "{LENGTH * "{"}"}}',
        '{"a": "' + LENGTH * "\\\\" + '"}',
        LENGTH * " " + "{}" + LENGTH * "\n",
    ],
)
def test_long_calls_are_streamed(value: str) -> None:
    check_trusted(f'<tool_call>{{"name": "f", "arguments": {value}}}</tool_call>', call("f", value.strip()))


def test_long_input_is_streamed() -> None:
    written = LENGTH // 10 * "\\ud83d\\ude00x"
    text = f'{{"name": "patch", "arguments": {{"input": "{written}"}}}}'
    check_trusted(text, custom_call("patch", LENGTH // 10 * "😀x"), BARE)


@given(outputs, st.lists(st.integers(0, 1000), max_size=6), formats, st.booleans())
def test_any_split_of_streamed_calls_gives_the_same_deltas(
    text: str, cuts: list[int], format: OutputFormat, inside: bool
) -> None:
    whole = parsed([text], format, starts_thinking=inside, trusted=True)
    assert parsed(split(text, cuts), format, starts_thinking=inside, trusted=True) == whole
    assert parsed(text, format, starts_thinking=inside, trusted=True) == whole


@given(st.text('a{}<>"; bx,:', max_size=40), st.booleans())
def test_any_split_of_streamed_calls_gives_the_same_deltas_with_overlapping_markers(
    text: str, cut_off: bool
) -> None:
    text = f'{{a{{"name": "f", "arguments": {{{text}'
    assert trusted(text, ODD, cut_off=cut_off) == trusted([text], ODD, cut_off=cut_off)


@given(
    st.lists(st.tuples(st.sampled_from(["f", "files__read", "patch"]), arguments), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.integers(0, 1000),
)
def test_calls_are_complete_up_to_where_they_are_cut_off(
    wanted: list[tuple[str, object]], marked: bool, ascii: bool, indent: int | None, end: int
) -> None:
    sources = [
        json.dumps(
            {"name": name, "arguments": {"input": str(values)} if name == "patch" else values},
            indent=indent,
            ensure_ascii=ascii,
        )
        for name, values in wanted
    ]
    text = "\n".join(f"<tool_call>\n{source}\n</tool_call>" if marked else source for source in sources)
    format = QWEN if marked else BARE
    whole = parsed([text], format)
    check_trusted(text, whole, format)
    cut = trusted(text[: end % len(text)], format, cut_off=True)
    got = [delta.text for delta in cut if isinstance(delta, CallArguments)]
    full = [delta.text for delta in whole if isinstance(delta, CallArguments)]
    assert got[:-1] == full[: len(got[:-1])]
    assert all(mine.startswith(part) for mine, part in zip(full, got, strict=False))
    ends = [delta for delta in cut if isinstance(delta, CallEnded)]
    assert all(delta.is_complete for delta in ends[:-1])
