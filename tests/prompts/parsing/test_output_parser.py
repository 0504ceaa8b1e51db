"""The parser turns model output into deltas. Every case is parsed whole and again character by character."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat
from slipring.prompts.parsing.output_parser import output_parser
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing.answers import (
    NONE,
    OFFER,
    broken_call,
    call,
    custom_call,
    function,
    merged,
    parsed,
    split,
)
from tests.prompts.parsing.answers import check as check_format

QWEN = OutputFormat(
    calls=JsonCalls(open="<tool_call>", close="</tool_call>"),
    think_open="<think>",
    think_close="</think>",
    calls_end_thoughts=True,
)
CLOSING = OutputFormat(calls=QWEN.calls, think_open="<think>", think_close="</think>")
"""As QWEN, of a family that always closes thoughts."""
LLAMA = OutputFormat(calls=JsonCalls(is_bare=True, announcement="<|python_tag|>"))
BOTH = OutputFormat(
    calls=JsonCalls(open="<tool_call>", close="</tool_call>", announcement="<|python_tag|>", is_bare=True),
    think_open="<think>",
    think_close="</think>",
)
MISTRAL = OutputFormat(calls=JsonCalls(open="[TOOL_CALLS]"))


def check(text: str, expected: list[Delta], format: OutputFormat = QWEN, offer: Offer = OFFER) -> None:
    check_format(text, expected, format, offer)


F = '{"name": "f", "arguments": {"a": 1}}'
G = '{"name": "g", "arguments": {}}'
CALL_F, CALL_G = call("f", '{"a": 1}'), call("g", "{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello", [Text("Hello")]),
        (" \n Hello,\n\n world \n", [Text(" \n Hello,\n\n world \n")]),
        ("  \n", [Text("  \n")]),
        ("a < b", [Text("a < b")]),
        ("a <tool_cal b", [Text("a <tool_cal b")]),
        ("a <tool_cal", [Text("a <tool_cal")]),
        ("a </tool_call> b", [Text("a  b")]),
        ("a </think> b</think></think>\n", [Text("a  b\n")]),
        ("<<think>x</think>>", [Text("<"), Thought("x"), Text(">")]),
        ("<thi<think>x</think>", [Text("<thi"), Thought("x")]),
        ("été 💩 <tool", [Text("été 💩 <tool")]),
    ],
)
def test_text_is_text(text: str, expected: list[Delta]) -> None:
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nHm.\n\nWell. \n</think>\n\nYes.", [Thought("Hm.\n\nWell."), Text("Yes.")]),
        ("<think>\n\n</think>\n\nYes.\n", [Text("Yes.\n")]),
        ("<think></think>", []),
        ("\n<think>x</think> \n", [Thought("x")]),
        ("Yes. \n<think>x</think> no", [Text("Yes."), Thought("x"), Text("no")]),
        ("<think>a</think>\n<think>b</think>", [Thought("ab")]),
        ("<think>unclosed \n", [Thought("unclosed \n")]),
        ("<think>unclosed </thin", [Thought("unclosed </thin")]),
        ("<think>a<think>b</think>", [Thought("a<think>b")]),
        ("<think><think>\n<think>b</think>", [Thought("b")]),
        (f"<think>x<tool_call>{F}</tool_call></think>", [Thought(f"x<tool_call>{F}</tool_call>")]),
        (
            f"<think>x\n<tool_call>{F}</tool_call> y </think> z",
            [Thought(f"x\n<tool_call>{F}</tool_call> y"), Text("z")],
        ),
        (
            f"<think>x<tool_call>{F}</tool_call><tool_call>{G}</tool_call>\n</think>\n</think>",
            [Thought(f"x<tool_call>{F}</tool_call><tool_call>{G}</tool_call>")],
        ),
        (
            "<think>x <tool_call>{}</tool_call> y</think>z",
            [Thought("x <tool_call>{}</tool_call> y"), Text("z")],
        ),
        ("<think>x <tool_call>{", [Thought("x <tool_call>{")]),
        (f"<think>{F}</think>", [Thought(F)]),
        ("</think>\n\nYes.", [Text("Yes.")]),
        (f" \n</think><tool_call>{F}</tool_call>", CALL_F),
        ("</think></think>", []),
        ("</thin", [Text("</thin")]),
        ("</this", [Text("</this")]),
        (f"<think>x</think>\n\n<tool_call>\n{F}\n</tool_call>", [Thought("x"), *CALL_F]),
        (f"<tool_call>{F}</tool_call>\n<think>x</think>\nDone", [*CALL_F, Thought("x"), Text("Done")]),
    ],
)
def test_thoughts_are_read_without_surrounding_space(text: str, expected: list[Delta]) -> None:
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<tool_call>\n{F}\n</tool_call>", CALL_F),
        (f"<tool_call>{F}</tool_call>", CALL_F),
        (
            f"Let me look.\n\n<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>\n",
            [Text("Let me look."), *CALL_F, *CALL_G],
        ),
        (f"<tool_call>{F}</tool_call>\n\nDone. ", [*CALL_F, Text("Done. ")]),
        (f"<tool_call>{F}</tool_call>, done", [*CALL_F, Text(", done")]),
        (f"<tool_call>[{F}, {G}]</tool_call>", [*CALL_F, *CALL_G]),
        (f"<tool_call>{F}\n{G}</tool_call>", [*CALL_F, *CALL_G]),
        (f"<tool_call>{F};{G}, {F}</tool_call>", [*CALL_F, *CALL_G, *CALL_F]),
        (f"<tool_call>\n{F}\n", CALL_F),
        (f"<tool_call>{F}<tool_call>{G}", [*CALL_F, *CALL_G]),
        (f"<tool_call>{F}</tool_call></tool_call>", CALL_F),
        ('<tool_call>{"arguments":{ "a" :"}{][" },"name":"f"}</tool_call>', call("f", '{ "a" :"}{][" }')),
        (
            '<tool_call>{"name": "f", "parameters": {"é": "\\u00e9"}}</tool_call>',
            call("f", '{"é": "\\u00e9"}'),
        ),
        ('<tool_call>{"id": "1", "type": "function", "name": "g", "arguments": {}}</tool_call>', CALL_G),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', CALL_F),
        ('<tool_call>{"name": "g"}</tool_call>', CALL_G),
        ('<tool_call>{"name": "g", "arguments": null}</tool_call>', CALL_G),
        (
            '<tool_call>{"name": "patch", "arguments": {"input": "a\\n"}}</tool_call>',
            custom_call("patch", "a\n"),
        ),
        ('<tool_call>{"name": "patch", "arguments": "a\\"b"}</tool_call>', custom_call("patch", 'a"b')),
        ('<tool_call>{"name": "patch", "arguments": ""}</tool_call>', custom_call("patch", "")),
        ('<tool_call>{"name": "files__read", "arguments": {}}</tool_call>', call("read", "{}", "files")),
        ('<tool_call>{"name": "read", "arguments": {}}</tool_call>', call("read", "{}", "files")),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"<tool_call>"}}</tool_call>!',
            [*call("f", '{"a": "</tool_call>\\"<tool_call>"}'), Text("!")],
        ),
    ],
)
def test_marked_calls_are_read(text: str, expected: list[Delta]) -> None:
    check(text, expected)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "f(1)",
        "{}",
        "[]",
        "[[]]",
        "null",
        '"f"',
        '{"name": "f", "arguments": {…}}',
        '{"arguments": {"a": 01}, "name": "f"}',
        '{"id": tru, "name": "f", "arguments": {"a": 1}}',
        '{"name": "f" "arguments": {"a": "<tool_call>{}"}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 1}',
        '{"name": "f", "arguments": "no object"}',
        '{"name": "f", "arguments": "[]"}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "files", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "patch", "arguments": {"code": "a"}}',
        '{"name": "patch", "arguments": {"input": "a", "more": 1}}',
        '{"name": "patch", "arguments": {"input": 1}}',
        '{"name": "patch"}',
        '{"name": "f", "arguments": "',
        '{"name": "f", "arguments": "\\',
        f'[{{"name": "unknown", "arguments": {{}}}}, {F}]',
        '{"name": "f", "arguments": "' + 5000 * "[" + 5000 * "]" + '"}',
    ],
)
def test_malformed_calls_are_text_and_calls_after_them_are_calls(body: str) -> None:
    bad = f"Well, \n<tool_call> {body}\t</tool_call>"
    check(bad, [Text(bad)])
    check(f"{bad}\n", [Text(f"{bad}\n")])
    check(f"{bad}\n<tool_call>{G}</tool_call>", [Text(bad), *CALL_G])
    check(f"{bad} \n then\n<tool_call>{G}</tool_call>", [Text(f"{bad} \n then"), *CALL_G])


DEEP = 5000 * "["


@pytest.mark.parametrize(
    ("read", "rest"),
    [
        ('{"a": 1', "}"),
        ('{"a": 1', "}]"),
        ('{"a": 1', '}, "id": }'),
        ('{"a": 01', "}}"),
        ('{"a": "\\', 'x"}}'),
        ('{"a": "\\uzzzz"', "}}"),
        ('{"a": "\\ud800"', "}}"),
        ('{"a": \n"line', '\nbreak"}}'),
        ('{"a": 1', "]}"),
        ('{"a": e', "}}"),
        (f'{{"a": {DEEP[:199]}', f"{DEEP[199:]}}}}}"),
        ('{"a": "\ud800"', "}}"),
    ],
)
def test_a_call_that_breaks_off_after_its_name_is_incomplete_and_the_rest_is_text(
    read: str, rest: str
) -> None:
    """What was read of the arguments is never a JSON object, so that no client can run the call."""
    with pytest.raises(json.JSONDecodeError):
        json.loads(read)
    text = f'Well.\n<tool_call> {{"name": "f", "arguments": {read}{rest}\t</tool_call>'
    called = [Text("Well."), *broken_call("f", read)]
    check(text, [*called, Text(f"{rest}\t")])
    check(f"{text}\n<tool_call>{G}</tool_call>", [*called, Text(rest), *CALL_G])
    check(f"<think>{text}</think>Yes", [Thought(text), Text("Yes")])


@pytest.mark.parametrize("rest", [" 1", ".", ",", ';{"name": "unknown", "arguments": {}}', '{"name": "f'])
def test_a_call_is_complete_with_its_last_brace_and_what_follows_is_text(rest: str) -> None:
    text = f"Well.\n<tool_call>{F}{rest}</tool_call>"
    expected = [Text("Well."), *CALL_F, Text(rest)]
    check(text, expected)
    check(f"{text}\n<tool_call>{G}</tool_call>", [*expected, *CALL_G])
    array = f"<tool_call>[{F}{rest}]</tool_call>"
    check(array, [*CALL_F, Text(f"{rest}]")])
    check(f"<think>Hm {text}</think>Yes", [Thought(f"Hm {text}"), Text("Yes")])
    check(f"<think>Hm {text}", [Thought(f"Hm {text}")])


def test_the_answer_may_be_cut_off_in_a_call() -> None:
    text = f"<tool_call>\n{F}\n</tool_cal"
    check(text, [*CALL_F, Text("\n</tool_cal")])
    check_format(text, CALL_F, QWEN, OFFER, cut_off=True)
    for cut_off in (False, True):
        text = '<tool_call>{"name": "f", "arguments": {"a": "'
        check_format(text, broken_call("f", '{"a": "'), QWEN, OFFER, cut_off=cut_off)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        " <tool_call> ",
        '<tool_call>{"name": "f</tool_call>',
        "<tool_call><tool_call>",
    ],
)
def test_unclosed_calls_are_text(text: str) -> None:
    check(text, [Text(text)])


def test_a_call_inside_a_broken_one_is_a_call() -> None:
    check(f"<tool_call>\n<tool_call>{F}</tool_call>", [Text("<tool_call>"), *CALL_F])
    check(f'<tool_call>{{"name": "f\n<tool_call>{G}</tool_call>', [Text('<tool_call>{"name": "f'), *CALL_G])


@pytest.mark.parametrize("format", [QWEN, LLAMA, BOTH, MISTRAL])
@pytest.mark.parametrize(
    "text", [F, f"a\n<tool_call>{F}</tool_call>\n", f"<|python_tag|>{F}", "[TOOL_CALLS][]"]
)
def test_without_tools_nothing_is_a_call(format: OutputFormat, text: str) -> None:
    check(text, [Text(text)], format, NONE)


def test_without_tools_thoughts_are_still_recognized() -> None:
    check(
        f"<think>x</think>\n<tool_call>{F}</tool_call>",
        [Thought("x"), Text(f"<tool_call>{F}</tool_call>")],
        offer=NONE,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (F, CALL_F),
        (f" \n{F}\n", CALL_F),
        ('{"name": "f", "parameters": {"a": "}"}}', call("f", '{"a": "}"}')),
        (f"{F}{G}", [*CALL_F, *CALL_G]),
        (f"{F}; {G}", [*CALL_F, *CALL_G]),
        (f"{F},\n{G};", [*CALL_F, *CALL_G]),
        (f"{F}\n\n{G}\n", [*CALL_F, *CALL_G]),
        (f"[{F}, {G}]", [*CALL_F, *CALL_G]),
        (f"[ {F} ]\n{G}", [*CALL_F, *CALL_G]),
        (f"{F}\nDone. ", [*CALL_F, Text("Done. ")]),
        (f"{F}\n, done", [*CALL_F, Text(", done")]),
        (f"{F} then {G}", [*CALL_F, Text(f"then {G}")]),
        (f"{F}; {{}} {G}", [*CALL_F, Text(f"; {{}} {G}")]),
        (f"{F}; {{x", [*CALL_F, Text("; {x")]),
        (f"Well. {F}", [Text(f"Well. {F}")]),
        (f"; {F}", [Text(f"; {F}")]),
        (f"Well. <|python_tag|>{F}; {G}", [Text("Well."), *CALL_F, *CALL_G]),
        (f"{F};<|python_tag|> {G}", [*CALL_F, *CALL_G]),
        ('<|python_tag|>{"name": "g"}', CALL_G),
        ('<|python_tag|>f.call(a="1") ', [Text('<|python_tag|>f.call(a="1") ')]),
        ("a <|python_tag|>", [Text("a <|python_tag|>")]),
        ("a <|python_t", [Text("a <|python_t")]),
        (f"<|python_tag|><|python_tag|>{F}", [Text("<|python_tag|>"), *CALL_F]),
        ('{"name": "g"}', [Text('{"name": "g"}')]),
        ('{"name": "unknown", "arguments": {}}\n', [Text('{"name": "unknown", "arguments": {}}\n')]),
        ('{"answer": [1, true, "}"]} ', [Text('{"answer": [1, true, "}"]} ')]),
        (' {"name": "f", ', [Text(' {"name": "f", ')]),
        ("{x | x > 1}", [Text("{x | x > 1}")]),
        ("[1] says so", [Text("[1] says so")]),
        (f"[{F}, 1]", [*CALL_F, Text(", 1]")]),
        (f"[1, {F}]", [Text(f"[1, {F}]")]),
    ],
)
@pytest.mark.parametrize("format", [LLAMA, BOTH])
def test_bare_json_is_a_call_at_the_beginning_or_after_a_prefix(
    text: str, expected: list[Delta], format: OutputFormat
) -> None:
    check(text, expected, format)


def test_bare_json_after_thoughts_and_marked_calls() -> None:
    check(f"<think>x</think>\n{F}", [Thought("x"), *CALL_F], BOTH)
    check(f"<tool_call>{F}</tool_call>\n{G}", [*CALL_F, *CALL_G], BOTH)
    check(f"{F};<think>x</think>{G}", [*CALL_F, Thought("x"), *CALL_G], BOTH)
    check(f"Hm\n<tool_call>{F}</tool_call>\n{G}", [Text("Hm"), *CALL_F, Text(G)], BOTH)


def test_bare_json_is_text_if_the_format_has_none() -> None:
    check(F, [Text(F)], QWEN)


def test_a_call_without_a_closing_marker_ends_with_its_json() -> None:
    check(f"Hm [TOOL_CALLS] [{F}, {G}]\n", [Text("Hm"), *CALL_F, *CALL_G], MISTRAL)
    check(f"[TOOL_CALLS]{F}[TOOL_CALLS]{G}", [*CALL_F, *CALL_G], MISTRAL)
    check(f"[TOOL_CALL]{F}", [Text(f"[TOOL_CALL]{F}")], MISTRAL)
    check(f"[TOOL_CALLS]{F}", CALL_F, OutputFormat(calls=JsonCalls(open="[TOOL_CALLS]", is_bare=True)))
    check(f"[{F}]", CALL_F, OutputFormat(calls=JsonCalls(open="[TOOL_CALLS]", is_bare=True)))


def test_closing_marks_that_close_nothing_are_dropped() -> None:
    check(f"{F}</tool_call>", [Text(F)], OutputFormat(calls=JsonCalls(close="</tool_call>")))
    check(f"{F};;", [Text(f"{F};;")], OutputFormat(calls=JsonCalls(close=";;")))  # ordinary text
    check('<tool_call>{"name": "f</tool_call></tool_call>', [Text('<tool_call>{"name": "f</tool_call>')])
    check(f"</tool_call>Well.</tool_call>\n<tool_call>{F}</tool_call>", [Text("Well."), *CALL_F])


def test_the_marks_of_a_call_that_a_limit_cuts_off_are_dropped() -> None:
    for text, rest in (
        ("<tool_call>", ""),
        ('Hm <tool_call>\n{"na', 'Hm {"na'),
        ('<tool_call>{"name": "unknown"', '{"name": "unknown"'),
    ):
        check_format(text, [Text(rest)] if rest else [], QWEN, OFFER, cut_off=True)
        check(text, [Text(text)])
    bad = "<tool_call>{}</tool_call>"
    check_format(bad, [Text(bad)], QWEN, OFFER, cut_off=True)


def test_a_call_in_a_thought_is_a_call_only_if_the_answer_ends_with_it() -> None:
    """And only in families that are known not to close their thoughts."""
    one, both = f"<tool_call>{F}</tool_call>", f"<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call>\n"
    calls = {one: CALL_F, both: [*CALL_F, *CALL_G], f"{one}</tool_call>": CALL_F, one[:-12]: CALL_F}
    for text, expected in calls.items():
        check(f"<think>Hm.\n{text}", [Thought("Hm."), *expected])
        check_format(f"<think>Hm.\n{text}", [Thought(f"Hm.\n{text}")], QWEN, OFFER, cut_off=True)
        check(f"<think>Hm.\n{text}", [Thought(f"Hm.\n{text}")], CLOSING)
        for format in (QWEN, CLOSING):
            check(f"<think>{text}so", [Thought(f"{text}so")], format)
            check(f"<think>{text}</think>so", [Thought(text.rstrip()), Text("so")], format)
            check(f"<think>{text}</thi", [Thought(f"{text}</thi")], format)
    check(f"<think>{one} or {both}", [Thought(f"{one} or"), *CALL_F, *CALL_G])
    check(f"<think>{one}<tool_call>{{}}</tool_call>", [Thought(f"{one}<tool_call>{{}}</tool_call>")])
    check(f"<think>{one}<tool_call>", [Thought(f"{one}<tool_call>")])


def test_the_mark_that_closes_thoughts_closes_them_within_a_quoted_call() -> None:
    quoted = '<tool_call>{"name": "f", "arguments": {"a": "'
    check(f"<think>Hm {quoted}</think>Yes", [Thought(f"Hm {quoted}"), Text("Yes")])
    check(f"<think>Hm {quoted}</thi", [Thought(f"Hm {quoted}</thi")])


def test_a_call_in_a_thought_is_held_back() -> None:
    parser = output_parser(QWEN, OFFER, starts_thinking=True)
    assert parser.feed(f"Hm.<tool_call>{F[:-1]}") == [Thought("Hm.")]
    assert parser.is_holding
    assert parser.feed("}") == []
    assert parser.is_holding
    assert parser.feed("</tool_call>") == []
    assert parser.is_holding
    assert merged(parser.finish()) == CALL_F


def test_a_mark_may_name_the_channel_of_thoughts() -> None:
    format = OutputFormat(think_open="<|channel>thought\n", think_close="<channel|>")
    for text in (
        "<|channel>thought\nHm.<channel|>Yes",
        "<|channel><|channel>thought\nHm.<channel|>Yes",
        "<|channel>Hm.<channel|><channel|>Yes<|channel>thought\n<channel|><channel|>",
    ):
        check(text, [Thought("Hm."), Text("Yes")], format)
    check("<|channel>thoughts<channel|>Yes", [Thought("thoughts"), Text("Yes")], format)
    check("<|channel>thought", [], format)
    check("<|channel>though", [Thought("though")], format)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nHm.\n</think>\n\nYes", [Thought("Hm."), Text("Yes")]),
        ("Hm. ", [Thought("Hm. ")]),
        (" ", []),
        (f"Hm.</think>\n<tool_call>{F}</tool_call>", [Thought("Hm."), *CALL_F]),
        (f"Hm.\n<tool_call>{F}</tool_call>", [Thought("Hm."), *CALL_F]),
        (f"<tool_call>{F}</tool_call></think>Yes", [Thought(f"<tool_call>{F}</tool_call>"), Text("Yes")]),
        (f"<tool_call>{F}</tool_call>", CALL_F),
    ],
)
def test_an_answer_may_start_inside_a_thought(text: str, expected: list[Delta]) -> None:
    check_format(text, expected, QWEN, OFFER, starts_thinking=True)


def test_a_format_may_only_close_thoughts() -> None:
    format = OutputFormat(think_close="</think>")
    assert parsed("a</think>b<think>c", format, starts_thinking=True) == [Thought("a"), Text("b<think>c")]


def test_thinking_can_be_off() -> None:
    text = "<think>x</think> y"
    assert parsed(text, QWEN, thinking=False) == [Text(text)]
    assert parsed(text, QWEN, thinking=False, starts_thinking=True) == [Text(text)]
    assert parsed(text, OutputFormat(), starts_thinking=True) == [Text(text)]


def test_text_and_thought_are_emitted_at_once_except_for_a_possible_marker() -> None:
    parser = output_parser(QWEN, OFFER)
    assert parser.feed("<think>") == []
    assert parser.is_thinking
    assert parser.feed("Hm") == [Thought("Hm")]
    assert parser.feed(" so</") == [Thought(" so")]
    assert parser.feed("b") == [Thought("</b")]
    assert parser.feed("</think>\n") == []
    assert not parser.is_thinking
    assert parser.feed("Yes") == [Text("Yes")]
    assert parser.feed(", ") == [Text(",")]
    assert parser.feed("a <too") == [Text(" a")]
    assert parser.feed("k") == [Text(" <took")]
    assert parser.feed("") == []
    assert parser.feed("\n<tool_call>{") == []
    assert parser.feed("x") == [Text("\n<tool_call>{"), Text("x")]
    assert parser.finish() == []


def test_a_call_is_emitted_when_it_is_complete() -> None:
    parser = output_parser(BOTH, OFFER)
    assert parser.feed('{"name": "f", "arguments": {') == []
    assert parser.feed('"a": 1') == [CallStarted("function", "f"), CallArguments('{"a": 1')]
    assert parser.feed("}") == []
    assert parser.feed("}") == [CallArguments("}"), CallEnded()]
    assert merged(parser.feed(f"<tool_call>{G[:-1]}")) == [*CALL_G[:1], CallArguments("{")]
    assert parser.feed("}</tool_call") == [CallArguments("}"), CallEnded()]
    assert parser.feed(">") == parser.finish() == []


def test_a_parser_is_idle_outside_of_thoughts_calls_and_possible_markers() -> None:
    parser = output_parser(BOTH, OFFER)
    states = []
    for text in ("Hm", " <", "b <think>", "so</think>", "<tool_call>", f"{G}</tool_call>"):
        parser.feed(text)
        states.append((parser.is_idle, parser.is_holding))
    idle, waiting, holding = (True, False), (False, False), (False, True)
    assert states == [idle, waiting, waiting, idle, holding, idle]


def test_nothing_is_held_back_if_no_marker_is_possible() -> None:
    parser = output_parser(QWEN, NONE, thinking=False)
    assert parser.feed("a \n<") == [Text("a \n<")]
    assert parser.feed(" ") == [Text(" ")]
    parser = output_parser(OutputFormat(calls=JsonCalls(is_bare=True)), OFFER)
    assert parser.feed(" ") == []
    assert parser.feed("a ") == [Text(" a ")]


HELD = 30_000


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>{{"name": "f", "arguments": {{"a": "{HELD * "x"}"}}}}</tool_call>',
        f'{{"name": "f", "arguments": {{"a": "{HELD * "x"}"}}}}',
        f'{{"name": "f", "arguments": {{"a": [{HELD * "1,"}1]}}}}',
        f'<tool_call>{{"name": "f", "arguments": {{"a": "{HELD // 10 * "</tool_call>"}"}}}}</tool_call>',
    ],
)
def test_long_calls_are_read(text: str) -> None:
    check(text, call("f", text[text.index('{"a"') : text.rindex("}}") + 1]), BOTH)


LENGTH = 10_000


@pytest.mark.parametrize(
    "text",
    [
        LENGTH * " " + "x",
        LENGTH * "x",
        LENGTH * "<",
        LENGTH // 10 * "<tool_call>",
        LENGTH // 20 * '<tool_call>{"</tool_call>',
        '<tool_call>{"</tool_call>' + LENGTH // 20 * '<tool_call>{\\"</tool_call>',
        LENGTH // 20 * '<tool_call>{"</tool_call>"',
        LENGTH * "[",
        LENGTH * "{",
        "[" + LENGTH * "{",
        '{"a' + LENGTH * "\\\\",
        '{"a": ' + LENGTH * "[",
    ],
)
def test_long_text_that_resembles_calls_is_text(text: str) -> None:
    check(text, [Text(text)], BOTH)


def test_many_thoughts_are_read() -> None:
    check(2_000 * "<think>x</think>\n", [Thought(2_000 * "x")])


MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]"]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text('{}[]"\\<>/a é💩\n', max_size=8)
    | st.sampled_from(MARKERS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('{"\\a', max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
arguments = st.dictionaries(st.sampled_from(["a", "input", "}"]), values, max_size=2)


def written(name: str, arguments: object, indent: int | None) -> str:
    return json.dumps({"name": name, "arguments": arguments}, indent=indent, ensure_ascii=False)


calls = st.builds(
    written, st.sampled_from(["f", "files__read", "patch", "nope"]), arguments, st.sampled_from([None, 1])
)
marked = calls.map("<tool_call>\n{}\n</tool_call>".format)
marker_prefixes = st.sampled_from(MARKERS).flatmap(
    lambda marker: st.integers(1, len(marker)).map(lambda n: marker[:n])
)
scraps = st.text('{}[]"\\<>/|;, \nnae1:é💩', max_size=6)
outputs = st.lists(
    st.one_of(
        st.text(max_size=4), st.sampled_from(MARKERS), st.sampled_from([" ", "\n", "; "]), scraps,
        marker_prefixes,
        calls, marked, calls.flatmap(lambda text: st.integers(1, len(text)).map(lambda n: text[:n])),
    ),
    max_size=8,
).map("".join)  # fmt: skip
ODD = OutputFormat(
    calls=JsonCalls(open="{a", close='"}', announcement="a<x", is_bare=True),
    think_open="a<",
    think_close=" b",
)
formats = st.sampled_from([QWEN, LLAMA, BOTH, MISTRAL, ODD])


@given(
    outputs,
    st.lists(st.integers(0, 1000), max_size=6),
    formats,
    st.booleans(),
    st.sampled_from([OFFER, NONE]),
)
def test_any_split_gives_the_same_deltas(
    text: str, cuts: list[int], format: OutputFormat, inside: bool, offer: Offer
) -> None:
    whole = parsed([text], format, offer, starts_thinking=inside)
    assert parsed(split(text, cuts), format, offer, starts_thinking=inside) == whole
    assert parsed(text, format, offer, starts_thinking=inside) == whole


@given(st.text('a{}<>"; bx,:', max_size=40), st.sampled_from([OFFER, NONE]))
def test_any_split_gives_the_same_deltas_with_overlapping_markers(text: str, offer: Offer) -> None:
    assert parsed(text, ODD, offer) == parsed([text], ODD, offer)


def without_markers(text: str) -> list[Delta]:
    """The deltas of text and thoughts, computed over the whole text at once."""
    deltas: list[Delta] = []
    fresh = text.lstrip(" \t\r\n").startswith("</think>")
    while "<think>" in text:
        before, _, text = text.partition("<think>")
        before = before.replace("</think>", "")
        while (rest := text.lstrip(" \t\r\n")).startswith("<think>"):
            text = rest.removeprefix("<think>")
        thought, closed, text = text.partition("</think>")
        before = before.rstrip(" \t\r\n")
        deltas.append(Text(before.lstrip(" \t\r\n") if fresh else before))
        deltas.append(Thought(thought.strip(" \t\r\n") if closed else thought.lstrip(" \t\r\n")))
        fresh = bool(closed)
        if not closed:
            return merged(delta for delta in deltas if isinstance(delta, Text | Thought) and delta.text)
    text = text.replace("</think>", "")
    deltas.append(Text(text.lstrip(" \t\r\n") if fresh else text))
    return merged(delta for delta in deltas if isinstance(delta, Text | Thought) and delta.text)


@given(outputs)
def test_without_tools_only_think_markers_are_dropped(text: str) -> None:
    assert parsed(text, BOTH, NONE) == without_markers(text)


@given(outputs, st.sampled_from([QWEN, LLAMA, BOTH, MISTRAL]))
def test_calls_to_other_tools_are_emitted_unchanged_as_text(text: str, format: OutputFormat) -> None:
    offer = Offer(tools=(function("other"),))
    if "</tool_call>" not in text:  # it may close nothing
        assert parsed(text, format, offer, thinking=False) == ([Text(text)] if text else [])


@given(
    st.lists(st.tuples(st.sampled_from(["f", "g"]), arguments), min_size=1, max_size=3),
    st.sampled_from([None, 1]),
)
def test_all_forms_of_calls_give_the_same_names_and_arguments(
    wanted: list[tuple[str, object]], indent: int | None
) -> None:
    sources = [written(name, values, indent) for name, values in wanted]
    texts = [
        "".join(f"<tool_call>\n{source}\n</tool_call>\n" for source in sources),
        "; ".join(sources),
        "[" + ", ".join(sources) + "]",
        "<|python_tag|>" + "\n".join(sources),
    ]
    for text in texts:
        deltas = parsed(text, BOTH)
        assert [delta.name for delta in deltas if isinstance(delta, CallStarted)] == [
            name for name, _ in wanted
        ]
        read = [json.loads(delta.text) for delta in deltas if isinstance(delta, CallArguments)]
        assert read == [values for _, values in wanted]
        assert deltas[2::3] == [CallEnded()] * len(wanted)
        assert len(deltas) == 3 * len(wanted)
