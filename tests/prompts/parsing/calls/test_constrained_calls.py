"""Calls whose form a grammar enforces are streamed, and equal those that are read at their end."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallArguments, CallStarted, Delta, Text
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat
from slipring.prompts.parsing.output_parser import OutputParser
from slipring.protocol.tools import Offer
from tests.prompts.parsing.answers import OFFER, call, custom_call, function, merged, parsed, split
from tests.prompts.parsing.test_output_parser import (
    BOTH,
    CALL_F,
    CALL_G,
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

BARE = OutputFormat(calls=JsonCalls(is_bare=True))
CALLED = OutputFormat(calls=JsonCalls(open="<tool_call>", close="</tool_call>", arguments_key="parameters"))


def trusted(pieces: Iterable[str], format: OutputFormat = QWEN, offer: Offer = OFFER) -> list[Delta]:
    """Parse with streaming of calls. A call without argument deltas gets an empty one."""
    whole: list[Delta] = []
    for delta in parsed(pieces, format, offer, trusted=True):
        if whole and isinstance(whole[-1], CallStarted) and not isinstance(delta, CallArguments):
            whole.append(CallArguments(""))
        whole.append(delta)
    return [*whole, CallArguments("")] if whole and isinstance(whole[-1], CallStarted) else whole


def check_trusted(
    text: str, expected: list[Delta], format: OutputFormat = QWEN, offer: Offer = OFFER
) -> None:
    assert trusted([text], format, offer) == expected
    assert trusted(text, format, offer) == expected


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
def test_streamed_calls_equal_calls_that_are_held_back(
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
        ):
            text = f"{before}{source}{after}"
            whole = parsed([text], format)
            assert isinstance(whole[-2], CallStarted)
            assert expected is None or whole[-2:] == expected
            check_trusted(text, whole, format)
            check_trusted(f"{text}\n{text}", parsed([f"{text}\n{text}"], format), format)


def test_arguments_are_emitted_as_they_arrive() -> None:
    parser = OutputParser(QWEN, OFFER, trusted=True)
    assert parser.feed('Hm \n<tool_call>\n{"name": "files__read", "arguments": ') == [Text("Hm")]
    assert parser.feed("{") == [CallStarted("function", "read", "files"), CallArguments("{")]
    assert parser.feed('"a": "x') == [CallArguments('"a": "x')]
    assert parser.feed("\\") == [CallArguments("\\")]
    assert parser.feed('"}') == [CallArguments('"}')]
    assert parser.feed('"}}\n</tool') == [CallArguments('"}')]
    assert not parser.is_thinking
    assert parser.feed('_call>\n<tool_call>{"name": "g", "arguments": {}') == [
        *(CallStarted("function", "g"), CallArguments("{"), CallArguments("}")),
    ]
    assert parser.feed("}</tool_call>") == []
    assert parser.finish() == []


def test_arguments_of_bare_calls_are_emitted_as_they_arrive() -> None:
    parser = OutputParser(BARE, OFFER, trusted=True)
    assert parser.feed('{"name": "f"') == []
    assert parser.feed(', "arguments": {"a') == [
        *(CallStarted("function", "f"), CallArguments("{"), CallArguments('"a')),
    ]
    assert parser.feed('": {}}}; {"name": "patch", "arguments": {"input": "') == [
        *(CallArguments('": {}}'), CallStarted("custom", "patch")),
    ]
    assert parser.feed("a\\n\\ud83d") == [CallArguments("a\n")]
    assert parser.feed("\\ude0") == []
    assert parser.feed("0b") == [CallArguments("😀b")]
    assert parser.feed('"}}') == []
    assert parser.finish() == []


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
        '{"id": "1", "name": "f", "arguments": {"a": 1}}',
        '{"name": "\\u0066", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        f"[{F}]",
        f"[{F}, {G}]",
        '{"name": "g"}',
        '{"name": "patch", "arguments": "a"}',
        '{"name": "patch", "arguments": {"code": "a"}}',
        '{"name": "patch", "arguments": {"input": 1}}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f ", "arguments": {}}',
        '{"name": " f", "arguments": {}}',
        '{"na me": "f", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f',
        "f(1)",
        "",
        10_000 * " " + '{"x": 1}',
    ],
)
def test_a_call_that_does_not_conform_is_read_as_without_a_grammar(body: str) -> None:
    for format, text in (
        (QWEN, f"Hm\n<tool_call>{body}</tool_call>\n<tool_call>{G}</tool_call>"),
        (QWEN, f"<tool_call>{body}"),
        (BARE, f"{body}\n{G}"),
    ):
        check_trusted(text, parsed([text], format), format)


@pytest.mark.parametrize("text", [F, f"[{F}]", f" {F}", f"<|python_tag|>{F}", f"Hm <|python_tag|>{F}"])
def test_only_calls_after_the_marker_of_the_format_are_streamed(text: str) -> None:
    parser = OutputParser(BOTH, OFFER, trusted=True)
    assert merged([delta for piece in text[:-1] for delta in parser.feed(piece)]) in ([], [Text("Hm")])
    check_trusted(text, parsed([text], BOTH), BOTH)


def test_calls_with_names_that_need_escapes_are_not_streamed() -> None:
    offer = Offer(tools=(function('f"'), function("a b")))
    for name in ('f\\"', "a b", "a\\u0020b", "ab"):
        text = f'{{"name": "{name}", "arguments": {{}}}}'
        check_trusted(text, parsed([text], BARE, offer), BARE, offer)


@pytest.mark.parametrize(
    "rest", [', "id": 1}', "]", "}.", '} {"name"', "} </tool_cal </tool_call>", "}</tool _call>", " x"]
)
def test_what_does_not_conform_after_the_arguments_is_text(rest: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": 1}}{rest}'
    check_trusted(text, [*CALL_F, Text(rest)])
    check_trusted(f"{text}\n<tool_call>{G}</tool_call>", [*CALL_F, Text(rest), *CALL_G])


def test_streamed_calls_may_be_cut_off_anywhere() -> None:
    value = '{"a": ["}\\"", {"b": 1}]}'
    start = '<tool_call>\n{"name": "f", "arguments": '
    text = f"{start}{value}}}\n</tool_call>"
    for end in range(len(text)):
        cut = text[:end]
        got = cut[len(start) : len(start) + len(value)]
        check_trusted(cut, call("f", got) if got else [Text(cut)] if cut else [])
        check_trusted(f"Hm\n{cut}", [Text("Hm"), *call("f", got)] if got else [Text(f"Hm\n{cut}")])


def test_streamed_input_may_be_cut_off_anywhere() -> None:
    start = '{"name": "patch", "arguments": {"input": "'
    written, ends = "a\\n\\ud83d\\ude00b", {0: "", 1: "a", 3: "a\n", 15: "a\n😀", 16: "a\n😀b"}
    for end in range(len(written) + 1):
        text = ends[max(known for known in ends if known <= end)]
        check_trusted(start + written[:end], custom_call("patch", text), BARE)
    for rest in ('"', '"}', '" }\n'):
        check_trusted(start + written + rest, custom_call("patch", "a\n😀b"), BARE)


@pytest.mark.parametrize(
    "value",
    [
        f'{{"a": "{LENGTH * "x"}"}}',
        f'{{"a": "{LENGTH // 10 * "</tool_call>"}"}}',
        f'{{"a": {LENGTH * "["}{LENGTH * "]"}}}',
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


@given(st.text('a{}<>"; bx,:', max_size=40))
def test_any_split_of_streamed_calls_gives_the_same_deltas_with_overlapping_markers(text: str) -> None:
    text = f'{{a{{"name": "f", "arguments": {{{text}'
    assert parsed(text, ODD, trusted=True) == parsed([text], ODD, trusted=True)


@given(
    st.lists(st.tuples(st.sampled_from(["f", "files__read", "patch"]), arguments), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.integers(0, 1000),
)
def test_streamed_calls_are_complete_up_to_where_they_are_cut_off(
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
    cut = trusted(text[: end % len(text)], format)
    got = [delta.text for delta in cut if isinstance(delta, CallArguments)]
    full = [delta.text for delta in whole if isinstance(delta, CallArguments)]
    assert got[:-1] == full[: len(got[:-1])]
    assert all(mine.startswith(part) for mine, part in zip(full, got, strict=False))
