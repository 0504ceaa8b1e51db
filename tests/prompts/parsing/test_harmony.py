"""Harmony: messages with channels and recipients become thoughts, text and calls."""

import pytest

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.output_parser import output_parser
from tests.prompts.parsing.answers import NONE, OFFER, broken_call, call, check, custom_call, parsed
from tests.prompts.parsing.family_formats import HARMONY

ARGUMENTS = '{"a": "<b> é"}'
BOTH: list[Delta] = [Thought("Hm"), Text("Yes")]
CALL_F = call("f", ARGUMENTS)
NEXT = "<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("<|channel|>final<|message|>Hello <b>\n", [Text("Hello <b>\n")]),
        ("<|channel|>commentary<|message|>Hello", [Text("Hello")]),
        ("<|channel|>analysis<|message|>Hm\n", [Thought("Hm\n")]),
        (
            f"<|channel|>analysis<|message|>Hm{NEXT}<|channel|>final<|message|>Yes<|return|>",
            BOTH,
        ),
        ("<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Yes", BOTH),
        (
            "<|channel|>analysis<|message|>Hm<|start|>assistant<|channel|>final<|message|>Yes",
            BOTH,
        ),
        (
            "<|channel|>analysis<|message|>Hm<|end|>\n<|channel|>final<|message|>Yes<|end|>\n",
            BOTH,
        ),
        ('<|channel|>final <|constrain|>json<|message|>{"a": 1}', [Text('{"a": 1}')]),
        ("<|message|>Hello", [Text("Hello")]),
        ("<|constrain|>x<|message|>Hello", [Text("Hello")]),
        ("<|channel|>odd<|message|>Hello", [Text("Hello")]),
        ("<|channel|>final<|message|><|end|>", []),
        (
            "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm",
            [Thought("Hm")],
        ),
        (f"<|channel|>commentary<|message|>One{NEXT}<|channel|>final<|message|>Two", [Text("One\n\nTwo")]),
        (
            f"<|channel|>analysis<|message|>One{NEXT}<|channel|>analysis<|message|>Two",
            [Thought("One\n\nTwo")],
        ),
        (f"<|channel|>final<|message|>{NEXT}<|channel|>final<|message|>Two", [Text("Two")]),
    ],
)
def test_messages_without_a_tool_are_text_or_thought(text: str, expected: list[Delta]) -> None:
    check(text, expected, HARMONY)


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>analysis to=functions.f code<|message|>",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=f<|message|>",
    ],
)
@pytest.mark.parametrize("end", ["", "<|call|>", "<|end|>", "<|call|>\n", " <|call|>"])
def test_messages_to_functions_are_calls(header: str, end: str) -> None:
    check(f"{header}{ARGUMENTS}{end}", CALL_F, HARMONY)
    thought = f"<|channel|>analysis<|message|>Hm{NEXT}"
    check(f"{thought}{header}{ARGUMENTS}{end}", [Thought("Hm"), *CALL_F], HARMONY)
    both = f"{header}{ARGUMENTS}<|call|><|start|>assistant{header}{ARGUMENTS}{end}"
    check(both, [*CALL_F, *CALL_F], HARMONY)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"input": "a\\n"}', "a\n"),
        ('"a\\n"', "a\n"),
        ("*** Begin\n", "*** Begin\n"),
        ("", ""),
    ],
)
def test_custom_tools_take_json_or_plain_text(content: str, expected: str) -> None:
    header = "<|channel|>commentary to=functions.patch<|message|>"
    check(f"{header}{content}<|call|>", custom_call("patch", expected), HARMONY)


def test_a_call_without_arguments() -> None:
    check("<|channel|>commentary to=functions.g<|message|><|call|>", call("g", "{}"), HARMONY)


@pytest.mark.parametrize(
    "text",
    [
        f"<|channel|>commentary to=browser.search<|message|>{ARGUMENTS}<|call|>",
        "<|channel|>commentary to=functions.unknown<|message|>{}",
        "<|channel|>commentary to=functions.f<|message|>{…}<|call|>",
        "<|channel|>commentary to=functions.f<|message|>[1]<|call|>",
        "<|channel|>commentary to=functions.patch<|message|>{}<|end|>",
    ],
)
def test_messages_to_others_and_broken_calls_are_emitted_as_written(text: str) -> None:
    check(text, [Text(text)], HARMONY)
    thought = text.replace("commentary", "analysis")
    check(thought, [Thought(thought)], HARMONY)
    after = f"<|channel|>final<|message|>Hm{NEXT}{text}"
    check(after, [Text(f"Hm\n\n<|start|>assistant{text}")], HARMONY)
    if text.endswith("|>"):
        after = "<|start|>assistant<|channel|>final<|message|>Yes"
        check(text + after, [Text(f"{text}\n\nYes")], HARMONY)


@pytest.mark.parametrize(
    ("read", "rest"),
    [('{"a": ', ""), ('{"a": "b', '\n"}'), ('{"a": 01', "}"), ('{"a": 1', "] ")],
)
def test_a_call_that_breaks_off_is_incomplete_and_the_rest_is_emitted_as_written(
    read: str, rest: str
) -> None:
    text = f"<|channel|>commentary to=functions.f<|message|> {read}{rest}"
    check(text, broken_call("f", read, rest), HARMONY)
    closed = broken_call("f", read, f"{rest}<|end|>")
    check(f"{text}<|end|>", closed, HARMONY)
    after = "<|start|>assistant<|channel|>analysis<|message|>Hm"
    check(f"{text}<|end|>{after}", [*closed, Thought("Hm")], HARMONY)


def test_text_after_the_arguments_of_a_call_is_emitted_as_written() -> None:
    text = f"<|channel|>commentary to=functions.f<|message|>{ARGUMENTS} so<|call|>"
    check(text, [*CALL_F, Text(" so<|call|>")], HARMONY)


@pytest.mark.parametrize("name", ["g", "patch"])
def test_a_call_that_is_cut_off_before_its_arguments_is_text(name: str) -> None:
    text = f"<|channel|>commentary to=functions.{name}<|message|>"
    check(text, [Text(text)], HARMONY, cut_off=True)
    text = "<|channel|>commentary to=functions.patch<|message|>*** Begin"
    check(text, [Text(text)], HARMONY, cut_off=True)


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        " \n",
        " Hello",
        "<|chan",
        "t",
        "to=",
        "<|channel|>final",
        "<|channel|>final<|mess",
        "<b>",
        "<|channel|>" + 2000 * "x" + "<|message|>y",
        "<|channel|>" + 2000 * "x",
        2000 * "<|channel|>",
        2000 * " ",
        2000 * " " + "x",
    ],
)
def test_text_without_a_header_is_text(text: str) -> None:
    check(text, [Text(text)], HARMONY)


def test_a_header_that_is_cut_short_is_text() -> None:
    check("<|channel|>final<|end|>x", [Text("<|channel|>finalx")], HARMONY)
    check("<|channel|>final<|message|>a<|end|> b", [Text("a b")], HARMONY)


def test_the_recipient_may_begin_the_answer() -> None:
    check(f"to=functions.f<|channel|>analysis<|message|>{ARGUMENTS}", CALL_F, HARMONY)


def test_an_answer_may_start_inside_a_thought() -> None:
    check(f"Hm{NEXT}<|channel|>final<|message|>Yes", BOTH, HARMONY, starts_thinking=True)


def test_without_thinking_and_tools_all_is_text() -> None:
    text = f"<|channel|>analysis<|message|>Hm{NEXT}<|channel|>final<|message|>Yes"
    assert parsed(text, HARMONY, thinking=False) == [Text("Hm\n\nYes")]
    text = f"<|channel|>commentary to=functions.f<|message|>{ARGUMENTS}"
    check(text, [Text(text)], HARMONY, NONE)


def test_text_and_thought_are_emitted_at_once() -> None:
    parser = output_parser(HARMONY, OFFER)

    def state() -> tuple[bool, bool, bool]:
        return parser.is_idle, parser.is_thinking, parser.is_holding

    assert state() == (True, False, False)
    assert parser.feed("<|channel|>analysis<|message|>H") == [Thought("H")]
    assert state() == (False, True, False)
    assert parser.feed("m <") == [Thought("m ")]
    assert parser.feed("|end|><|start|>assistant") == []
    assert state() == (False, False, False)
    assert parser.feed("<|channel|>final<|message|>Yes ") == [Text("Yes ")]
    assert state() == (True, False, False)
    assert parser.feed("<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>{") == []
    assert state() == (False, False, True)
    assert parser.feed('"a": 1') == [CallStarted("function", "f"), CallArguments('{"a": 1')]
    assert state() == (False, False, False)
    assert parser.feed("}") == [CallArguments("}"), CallEnded()]
    assert parser.feed("<|call|>") == []
    assert state() == (True, False, False)
    assert parser.feed("") == parser.finish() == []


@pytest.mark.parametrize(
    "header", ["<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>analysis<|message|>"]
)
def test_a_header_that_the_prompt_has_written_already_is_dropped(header: str) -> None:
    check(f"{header}Hm{NEXT}<|channel|>final<|message|>Yes", BOTH, HARMONY, starts_thinking=True)
