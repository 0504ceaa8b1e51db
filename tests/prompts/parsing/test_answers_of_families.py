"""Answers that agents get from every model family: thoughts that the prompt opened, several calls, calls
after text, calls without arguments.

Each family is read in the format that is found in its template, and each format that is known by name too.
What is compared is what a client has at the end: how deltas are cut is tested elsewhere.
"""

import json
from functools import cache
from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.answer_writer import Call
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing import family_formats
from tests.prompts.parsing.answers import function, parsed
from tests.prompts.parsing.written_answers import write_answer
from tests.prompts.templates.detection.test_format_detection import KNOWN, of_family
from tests.prompts.templates.family_templates import NAMES

NAMED = family_formats.FORMATS
FORMATS: dict[str, OutputFormat] = {**KNOWN, **NAMED}
"""Formats as they are known, only to choose the tests of a family."""
WITHOUT_MARKS = {"LLAMA3_JSON", "BARE_JSON", "PYTHON_LIST", "llama_3_1", "llama_4", "MUSE"}
"""Their calls are calls only at the beginning of an answer, or of a message."""
MARKED = [name for name in FORMATS if name not in WITHOUT_MARKS]
THINKING = [name for name in FORMATS if FORMATS[name].think_close or FORMATS[name].is_harmony]
THINKING_WITH_MARKS = [name for name in THINKING if name in MARKED and not FORMATS[name].is_harmony]

OFFER = Offer(
    tools=(
        function("weather", schema={"type": "object", "properties": {"city": {"type": "string"}}}),
        function("clock", schema={"type": "object", "properties": {}}),
    )
)
WEATHER = Call("weather", {"city": "Rome"})
LATER = Call("weather", {"city": "1"}, index=1)
CLOCK = Call("clock", {}, index=2)


@cache
def format_of(name: str) -> OutputFormat:
    """The format that is found in a family's template, or the known one."""
    return of_family(name).format if name in NAMES else NAMED[name]


def collected(deltas: list[Delta]) -> list[Any]:
    """Thoughts and text as they are; calls as names and decoded arguments."""
    parts: list[Any] = []
    for delta in deltas:
        if isinstance(delta, CallStarted):
            parts.append([delta.name, ""])
        elif isinstance(delta, CallArguments):
            parts[-1][1] += delta.text
        elif isinstance(delta, Text | Thought):
            parts.append(delta)
    return [(part[0], json.loads(part[1])) if isinstance(part, list) else part for part in parts]


def check(name: str, text: str, *expected: Text | Thought | Call, starts_thinking: bool = False) -> None:
    """Check what is made of an answer that arrives at once and character by character."""
    values = [(part.name, part.values) if isinstance(part, Call) else part for part in expected]
    for pieces in ([text], text):
        deltas = parsed(pieces, format_of(name), OFFER, starts_thinking=starts_thinking)
        assert collected(deltas) == values


def in_a_row(name: str, *calls: Call) -> str:
    """An answer of these calls. Harmony has a message for each."""
    format = format_of(name)
    if format.is_harmony:
        return "<|start|>assistant".join(write_answer(format, calls=[call]) for call in calls)
    return write_answer(format, calls=calls)


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_that_the_prompt_opened_is_a_thought(name: str) -> None:
    format = format_of(name)
    thought = Thought("It may rain.\n\nOr not.")
    text = write_answer(format, thought.text, "It is sunny.", opened_thought=True)
    check(name, text, thought, Text("It is sunny."), starts_thinking=True)
    if name in MARKED:
        text = write_answer(format, thought.text, calls=[WEATHER], opened_thought=True)
        check(name, text, thought, WEATHER, starts_thinking=True)


@pytest.mark.parametrize("name", THINKING_WITH_MARKS)
def test_a_call_in_a_thought_that_is_not_closed_is_a_call_where_the_family_is_known_for_it(name: str) -> None:
    format = format_of(name)
    assert format.calls_end_thoughts is FORMATS[name].calls_end_thoughts
    calls = in_a_row(name, WEATHER, LATER)
    thought = Thought(f"Hm.\n{calls}")
    expected = (Thought("Hm."), WEATHER, LATER) if format.calls_end_thoughts else (thought,)
    check(name, f"{format.think_open}Hm.\n{calls}", *expected)
    check(name, f"Hm.\n{calls}", *expected, starts_thinking=True)


@pytest.mark.parametrize("name", FORMATS)
def test_several_calls_in_a_row_are_calls(name: str) -> None:
    check(name, in_a_row(name, WEATHER, LATER, WEATHER), WEATHER, LATER, WEATHER)


@pytest.mark.parametrize("name", MARKED)
def test_calls_after_text_are_calls(name: str) -> None:
    text = write_answer(format_of(name), text="I look it up.", calls=[WEATHER])
    check(name, text, Text("I look it up."), WEATHER)


@pytest.mark.parametrize("name", FORMATS)
def test_calls_without_arguments_are_calls(name: str) -> None:
    check(name, in_a_row(name, CLOCK), CLOCK)
    check(name, in_a_row(name, CLOCK, WEATHER, CLOCK), CLOCK, WEATHER, CLOCK)


@pytest.mark.parametrize("name", [name for name in THINKING if FORMATS[name].think_open and name != "MUSE"])
def test_a_model_that_opens_the_thought_of_its_prompt_again_thinks_without_the_mark(name: str) -> None:
    mark = format_of(name).think_open.strip()
    close = format_of(name).think_close
    for text in (f"{mark}\nHm.{close}Yes", f"\n{mark}\nHm.\n{close}Yes", f"{mark}{mark}\nHm.{close}Yes"):
        check(name, text, Thought("Hm."), Text("Yes"), starts_thinking=True)
    # Only there.
    check(name, f"Hm. {mark}", Thought(f"Hm. {mark}"), starts_thinking=True)
    rest = mark[:-1].removeprefix("<|channel>")  # Gemma 4's mark without the name of the channel
    check(name, mark[:-1], Thought(rest), starts_thinking=True)
    check(name, f"{mark}{close}Yes", Text("Yes"), starts_thinking=True)
