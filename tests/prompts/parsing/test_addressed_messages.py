"""Answers that are messages with recipients: Muse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.output_parser import output_parser
from tests.prompts.parsing.answers import NONE, OFFER, broken_call, call, check, parsed, split
from tests.prompts.parsing.family_formats import MUSE


def calls(name: str = "f") -> str:
    inner = f'<atem:invoke name="{name}">\n<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n'
    return f"<atem:function_calls>\n{inner}</atem:function_calls>"


F, G = calls(), calls("g")
CALL_F, CALL_G = call("f", '{"a": 1}'), call("g", '{"a": 1}')
NEXT = "<|eom|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" to=user<|message|>Hello", [Text("Hello")]),
        (" to=user<|message|>Hello<|eot|>", [Text("Hello")]),
        (f" to=self<|message|>Hm.{NEXT} to=user<|message|>Yes", [Thought("Hm."), Text("Yes")]),
        (f" to=user<|message|>Hi.{NEXT} to=f<|message|>{F}<|eom|>", [Text("Hi."), *CALL_F]),
        (f" to=f<|message|>{F}{NEXT} to=g<|message|>\n{G}", [*CALL_F, *CALL_G]),
        # A call that a message quotes is a part of it.
        (f" to=user<|message|>Like this:\n{F}<|eot|>", [Text(f"Like this:\n{F}")]),
        (f" to=user<|message|>{F}", [Text(F)]),
        (
            f" to=self<|message|>I could {F} here{NEXT} to=user<|message|>Yes",
            [Thought(f"I could {F} here"), Text("Yes")],
        ),
        (f" to=self<|message|>I could <|message|>{F}", [Thought(f"I could {F}")]),
        # Messages that are not closed, or have no header.
        (f" to=self<|message|>Hm. to=f<|message|>{F}", [Thought("Hm."), *CALL_F]),
        (f" to=self<|message|>Hm.<|start|>assistant to=f<|message|>{F}", [Thought("Hm."), *CALL_F]),
        (f"<|message|>{F}", CALL_F),
        (F, CALL_F),
        ("<|message|>Hello", [Text("Hello")]),
        (f"<|message|>Hello {F}", [Text(f"Hello {F}")]),
        ("Hello", [Text("Hello")]),
        ("<|start|>Hello", [Text("Hello")]),
        ("to=" + 2000 * "x", [Text("to=" + 2000 * "x")]),
        (f" to=user<|message|>Yes<|message|>{F}", [Text("Yes"), *CALL_F]),
        (" to=user<|message|>go to=a point", [Text("go to=a point")]),
        # Two of a kind.
        (f" to=user<|message|>A{NEXT} to=user<|message|>B", [Text("A\n\nB")]),
        (f" to=self<|message|>A{NEXT} to=self<|message|>B", [Thought("A\n\nB")]),
        # Calls that are none.
        (f" to=x<|message|>{calls('x')}<|eot|>", [Text(calls("x"))]),
        (f" to=f<|message|>Hello{NEXT}", [Text("Hello")]),
    ],
)
def test_messages_are_what_their_recipient_says(text: str, expected: list[Delta]) -> None:
    check(text, expected, MUSE)


def test_a_header_that_is_cut_off_is_dropped() -> None:
    for text in (" to=us", " to=user<|mes", "<|start|>assis", "\n"):
        check(text, [], MUSE, cut_off=True)
    check(" to=us", [Text(" to=us")], MUSE)


def test_a_call_that_is_cut_off_is_incomplete() -> None:
    text = f" to=f<|message|>{F}"
    check(text[: text.index("1")], broken_call("f", '{"a": '), MUSE, cut_off=True)


def test_an_answer_may_begin_in_a_thought() -> None:
    check(f"Hm.{NEXT} to=user<|message|>Yes", [Thought("Hm."), Text("Yes")], MUSE, starts_thinking=True)
    text = f" to=self<|message|>Hm.{NEXT} to=user<|message|>Yes"
    assert parsed([text], MUSE, thinking=False) == [Text("Hm.\n\nYes")]


def test_without_tools_calls_are_text() -> None:
    check(f" to=f<|message|>{F}", [Text(F)], MUSE, NONE)


def test_the_state_of_the_parser_is_that_of_the_current_message() -> None:
    parser = output_parser(MUSE, OFFER)
    states = []
    for text in (
        " to=self",
        "<|message|>Hm.",
        NEXT,
        " to=user<|message|>Yes",
        NEXT,
        " to=f<|message|>",
        F[:22],
    ):
        parser.feed(text)
        states.append((parser.is_thinking, parser.is_holding, parser.is_idle))
    waiting, thinking, idle, holding = (
        (False, False, False),
        (True, False, False),
        (False, False, True),
        (False, True, False),
    )
    assert states == [waiting, thinking, waiting, idle, waiting, idle, holding]
    assert parser.feed('<atem:invoke name="f">') == []
    assert parser.feed('<atem:parameter name="a">1</atem:parameter></atem:invoke>')[-1] == CallEnded()


messages = st.lists(
    st.sampled_from(
        [
            " to=self",
            " to=user",
            " to=f",
            " to=",
            "<|message|>",
            "<|start|>",
            "assistant",
            "<|eom|>",
            "<|eot|>",
        ]
    )
    | st.sampled_from([F, F[:40], G[-30:], "Hm.", " ", "\n", "to=", "<|", " t"]),
    max_size=10,
).map("".join)
MARKS = ("<|message|>", "<|start|>", "<|eom|>", "<|eot|>")


@given(messages, st.lists(st.integers(0, 1000), max_size=6), st.booleans())
def test_any_split_gives_the_same_deltas_without_marks(text: str, cuts: list[int], cut_off: bool) -> None:
    whole = parsed([text], MUSE, cut_off=cut_off)
    for pieces in (split(text, cuts), text):
        assert parsed(pieces, MUSE, cut_off=cut_off) == whole
    shown = "".join(delta.text for delta in whole if isinstance(delta, Text | Thought))
    assert not any(mark in shown for mark in MARKS)
    assert all(isinstance(delta, Text | Thought | CallStarted | CallArguments | CallEnded) for delta in whole)


@given(st.sampled_from(["self", "user"]), st.text("ab .\n", max_size=8), st.text("ab .\n", max_size=8))
def test_a_call_that_a_message_quotes_is_never_run(recipient: str, before: str, after: str) -> None:
    text = f" to={recipient}<|message|>{before}{F}{after}<|eom|>"
    assert not any(isinstance(delta, CallStarted) for delta in parsed([text], MUSE))
