"""Marks of every family are structure: they are never text, and calls that a thought quotes are thought.

Each family is read in the format that is known by name, and in the one that is found in its template.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.output_format import JsonCalls, OutputFormat, PythonCalls, is_unmistakable
from tests.prompts.parsing.answers import parsed, split
from tests.prompts.parsing.test_answers_of_families import FORMATS, format_of
from tests.prompts.parsing.test_families import (
    CALLS,
    OFFER,
    calls,
    cuts,
    deltas_of,
    is_unambiguous,
    values_of,
)
from tests.prompts.parsing.written_calls import Call, written

MARKED = sorted(
    name
    for name in FORMATS
    if not (FORMATS[name].is_harmony or FORMATS[name].is_addressed)
    and getattr(FORMATS[name].calls, "is_bare", False) is False
)
"""Families whose calls have marks. Those whose answers are messages have parsers of their own."""
THINKING = [name for name in MARKED if FORMATS[name].think_close]
prose = st.text("abc .,\n", max_size=8)


def structure_of(format: OutputFormat) -> list[str]:
    """The marks around thoughts and calls that are no ordinary text."""
    layout = format.calls
    assert layout is not None
    marks = (layout.section_open, layout.section_close, layout.open, layout.close)
    lines = (line for mark in (*marks, format.think_open, format.think_close) for line in mark.split())
    return sorted(filter(is_unmistakable, lines))


def closing_marks_of(format: OutputFormat) -> list[str]:
    layout = format.calls
    assert layout is not None
    marks = [(mark.split() or [""])[-1] for mark in (layout.close, layout.section_close, format.think_close)]
    return sorted(filter(is_unmistakable, marks))


def leaks(format: OutputFormat, deltas: list[Delta]) -> list[str]:
    text = "".join(delta.text for delta in deltas if isinstance(delta, Text))
    return [mark for mark in structure_of(format) if mark in text]


def known(format: OutputFormat, calls: Sequence[Call]) -> list[Call]:
    known = [call for call in calls if call[0] != "nope"]
    return known if is_unambiguous(format, known) else []


@given(st.sampled_from(THINKING), calls, prose, prose, cuts, st.booleans())
def test_a_call_that_a_thought_quotes_is_thought(
    name: str, calls: list[Call], before: str, after: str, cuts: list[int], opened: bool
) -> None:
    format = format_of(name)
    thought = f"So. {before}{written(format, known(format, calls) or CALLS[:1])}{after}".strip()
    text = f"{'' if opened else format.think_open}{thought}{format.think_close}Yes"
    for pieces in ([text], split(text, cuts)):
        deltas = parsed(pieces, format, OFFER, starts_thinking=opened)
        assert deltas == [Thought(thought), Text("Yes")]


@given(st.sampled_from(THINKING), calls, cuts, st.booleans())
def test_a_call_that_an_open_thought_quotes_before_it_goes_on_is_thought(
    name: str, calls: list[Call], cuts: list[int], cut_off: bool
) -> None:
    format = format_of(name)
    text = f"So. {written(format, known(format, calls) or CALLS[:1])} or not"
    for pieces in ([text], split(text, cuts)):
        deltas = parsed(pieces, format, OFFER, starts_thinking=True, cut_off=cut_off)
        assert deltas == [Thought(text)]


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_that_is_cut_off_anywhere_in_a_call_is_thought(name: str) -> None:
    format = format_of(name)
    text = f"So. {written(format, CALLS[:1])}"
    for end in range(1, len(text) + 1):
        deltas = parsed([text[:end]], format, OFFER, starts_thinking=True, cut_off=True)
        assert deltas == [Thought(text[:end])]


@st.composite
def noisy_answers(draw: st.DrawFn) -> tuple[str, str, list[Any], str]:
    """A family, an answer with marks that have no effect, and the calls and the words in it."""
    name = draw(st.sampled_from(MARKED))
    format = format_of(name)
    closing = closing_marks_of(format)
    stray = st.sampled_from(closing) if closing else st.just("")
    text, words, called = "", "", list[Call]()
    for kind in draw(st.lists(st.sampled_from(["word", "calls", "stray"]), max_size=7)):
        if kind == "word":
            word = draw(st.sampled_from(["One.", "two", "three,"]))
            text, words = f"{text}{word} ", words + word
        elif kind == "stray":
            text += draw(stray) + draw(st.sampled_from(["", " ", "\n"]))
        else:
            some = known(format, draw(calls))
            noise = draw(st.sampled_from(["", "noise "])) if has_sections(format) else ""
            if some:
                text += noisy(format, written(format, some), noise)
                called += some
                words += noise.strip()
    return name, text, deltas_of(called), words


def has_sections(format: OutputFormat) -> bool:
    """Whether calls within a section have marks of their own."""
    layout = format.calls
    is_list = isinstance(layout, PythonCalls) or (isinstance(layout, JsonCalls) and layout.is_array)
    return layout is not None and bool(layout.section_open) and not is_list


def noisy(format: OutputFormat, text: str, noise: str) -> str:
    assert format.calls is not None
    mark = format.calls.section_open.strip()
    return text.replace(mark, mark + noise, 1) if mark else text


@given(noisy_answers(), cuts)
def test_marks_without_effect_are_dropped(answer: tuple[str, str, list[Any], str], cuts: list[int]) -> None:
    name, text, called, words = answer
    format = format_of(name)
    for pieces in ([text], split(text, cuts)):
        deltas = parsed(pieces, format, OFFER)
        assert [value for value in values_of(deltas) if isinstance(value, tuple)] == called
        written_text = "".join(delta.text for delta in deltas if isinstance(delta, Text))
        assert "".join(written_text.split()) == words
        assert not any(isinstance(delta, Thought) for delta in deltas)


@pytest.mark.parametrize("name", MARKED)
def test_an_answer_that_is_cut_off_anywhere_shows_no_mark(name: str) -> None:
    format = format_of(name)
    thought = f"{format.think_open}So.{format.think_close}" if format.think_close else ""
    text = f"{thought}Well.\n{written(format, CALLS)}"
    for end in range(1, len(text) + 1):
        deltas = parsed([text[:end]], format, OFFER, cut_off=True)
        assert leaks(format, deltas) == []


@pytest.mark.parametrize("name", THINKING)
def test_thoughts_that_are_opened_or_closed_twice_show_no_mark(name: str) -> None:
    format = format_of(name)
    opened, closed = format.think_open, format.think_close
    for text in (
        f"{opened}So.{closed}{closed}Yes",
        f"{opened}{opened}So.{closed}Yes",
        f"{opened}So.{closed}Yes{closed}",
        f"{opened}So.{closed}Y{closed}es",
        f"{opened}So.{closed}{opened}{closed}Yes{opened}{closed}{closed}",
        f"{closed}{opened}So.{closed}Yes",
    ):
        thought, answer = parsed(text, format, OFFER)
        assert thought == Thought("So.")
        assert isinstance(answer, Text)
        assert "".join(answer.text.split()) == "Yes"


@pytest.mark.parametrize("name", MARKED)
def test_calls_are_read_whatever_was_dropped_before(name: str) -> None:
    format = format_of(name)
    strays = "\n".join(closing_marks_of(format))
    deltas = parsed([f"{strays}{written(format, CALLS[:1])}{strays}"], format, OFFER)
    assert values_of(deltas) == deltas_of(CALLS[:1])
    assert isinstance(deltas[0], CallStarted)
