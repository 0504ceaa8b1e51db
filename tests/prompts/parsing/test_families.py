"""What holds for the output of every model family, whatever its marks and its layout of calls."""

import json
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.output_format import JsonCalls, NamedJsonCalls, OutputFormat, TaggedCalls
from slipring.prompts.parsing.output_parser import output_parser
from slipring.protocol.tools.tool_choice import Offer
from tests.prompts.parsing import family_formats
from tests.prompts.parsing.answers import NONE, check, custom, custom_call, function, merged, parsed, split
from tests.prompts.parsing.written_calls import Call, without_section, written

FORMATS = family_formats.FORMATS
MARKED = [name for name in FORMATS if name not in ("LLAMA3_JSON", "BARE_JSON", "PYTHON_LIST", "MUSE")]
PLAIN = [name for name in MARKED if name != "HARMONY"]
"""Families whose answers are text unless a mark says otherwise."""

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "none": {"type": "null"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "options": {
            "type": "object",
            "properties": {"deep": {"$ref": "#/$defs/deep"}, "name": {"type": "string"}},
        },
    },
    "$defs": {"deep": {"type": "array", "items": {"type": "integer"}}},
}
OFFER = Offer(
    tools=(function("f", schema=SCHEMA), function("g"), custom("patch"), function("read", "files", SCHEMA))
)
ARGUMENTS: dict[str, Any] = {
    "text": 'a "b" <c> {"d": [1]}\n  é💩 \\n',
    "count": -3,
    "ratio": 1.5,
    "flag": True,
    "tags": ["x", "1"],
    "options": {"deep": [1, 2], "name": "true"},
}
CALLS: list[Call] = [("f", ARGUMENTS), ("g", {}), ("files__read", {"text": "12", "count": 12})]


def deltas_of(calls: list[Call]) -> list[Any]:
    """What ``values_of`` returns for calls."""
    return [(name.removeprefix("files__"), dict(arguments)) for name, arguments in calls]


def values_of(deltas: list[Delta]) -> list[Any]:
    """Deltas with complete calls as names and decoded arguments, and others as names and what was written."""
    values: list[Any] = []
    for delta in deltas:
        if isinstance(delta, CallArguments):
            values[-1] = (values[-1].name, delta.text)
        elif isinstance(delta, CallEnded):
            if delta.is_complete:
                values[-1] = (values[-1][0], json.loads(values[-1][1]))
        else:
            values.append(delta)
    return values


def check_values(text: str, expected: list[Any], name: str, **options: bool) -> None:
    for pieces in ([text], text):
        assert values_of(parsed(pieces, FORMATS[name], OFFER, **options)) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_what_its_template_writes(name: str) -> None:
    calls = CALLS[::2] if name == "MINIMAX_M3" else CALLS
    text = written(FORMATS[name], calls)
    check_values(text, deltas_of(calls), name)
    check_values(f"\n{text}\n", deltas_of(calls), name)
    for call in calls:
        check_values(written(FORMATS[name], [call]), deltas_of([call]), name)


@pytest.mark.parametrize("name", FORMATS)
def test_custom_tools_get_their_input_as_it_is(name: str) -> None:
    for text in ('{"a": [1]}\n<b>', "1", "x"):
        answer = written(FORMATS[name], [("patch", {"input": text})])
        check(answer, custom_call("patch", text), FORMATS[name], OFFER)


@pytest.mark.parametrize("name", MARKED)
def test_calls_follow_text_and_text_follows_calls(name: str) -> None:
    text = written(FORMATS[name], CALLS[:1])
    if name == "HARMONY":
        before, after = "<|channel|>final<|message|>Hm.<|end|><|start|>assistant", "Done. "
    else:
        before, after = "Hm.\n", "\nDone. "
    check_values(before + text + after, [Text("Hm."), *deltas_of(CALLS[:1]), Text("Done. ")], name)
    twice = text + ("<|start|>assistant" if name == "HARMONY" else "\n") + text
    check_values(twice, deltas_of([*CALLS[:1], *CALLS[:1]]), name)


THINKING = [name for name in PLAIN if FORMATS[name].think_close]


@pytest.mark.parametrize("name", THINKING)
def test_a_call_ends_a_thought_only_where_parsers_of_the_family_say_so(name: str) -> None:
    format = FORMATS[name]
    text = written(format, CALLS[:1])
    called: list[Any] = [Thought("Hm."), *deltas_of(CALLS[:1])]
    expected = called if format.calls_end_thoughts else [Thought(f"Hm.\n{text}")]
    check_values(f"{format.think_open}Hm.\n{text}", expected, name)
    check_values(f"Hm.\n{text}", expected, name, starts_thinking=True)
    check_values(f"Hm.{format.think_close}\n{text}", called, name, starts_thinking=True)
    check_values(f"{format.think_close}Yes", [Text("Yes")], name)


@pytest.mark.parametrize("name", [name for name in PLAIN if FORMATS[name].think_close])
def test_a_broken_call_in_a_thought_stays_thought(name: str) -> None:
    format = FORMATS[name]
    text = written(format, [("unknown", ARGUMENTS)]).strip()
    check(f"Hm.\n{text}", [Thought(f"Hm.\n{text}")], format, OFFER, starts_thinking=True)
    closed = f"Hm.\n{text}{format.think_close}Yes"
    check(closed, [Thought(f"Hm.\n{text}"), Text("Yes")], format, OFFER, starts_thinking=True)


@pytest.mark.parametrize("name", [name for name in PLAIN if FORMATS[name].think_close])
def test_a_grammar_that_enforces_calls_also_closes_thoughts(name: str) -> None:
    format = FORMATS[name]
    text = written(format, [("g", {})])
    check(f"Hm.{text}.", [Thought(f"Hm.{text}.")], format, OFFER, starts_thinking=True, trusted=True)


@pytest.mark.parametrize("name", PLAIN)
def test_calls_to_unknown_tools_are_text_as_written(name: str) -> None:
    for calls in (
        [("unknown", ARGUMENTS)],
        [("unknown", {}), ("nope", {"a": 1})],
        [("unknown", ARGUMENTS)] * 3,
    ):
        text = written(FORMATS[name], calls)
        for answer in (text, f"Hm.\n{text}\n"):
            check(answer, [Text(without_section(FORMATS[name], answer))], FORMATS[name], OFFER)


@pytest.mark.parametrize("name", PLAIN)
def test_without_tools_calls_are_text(name: str) -> None:
    text = written(FORMATS[name], CALLS)
    check(text, [Text(text)], FORMATS[name], NONE)


@pytest.mark.parametrize("name", MARKED)
def test_a_call_is_emitted_when_it_ends(name: str) -> None:
    """It does not wait for text after it, nor for the mark that closes it."""
    text = written(FORMATS[name], [("f", ARGUMENTS)])
    for trusted in (False, True):
        parser = output_parser(FORMATS[name], OFFER, trusted=trusted)
        deltas = [delta for piece in text for delta in parser.feed(piece)]
        assert values_of(merged(deltas)) == deltas_of([("f", ARGUMENTS)])
        assert not parser.is_holding
        assert parser.finish() == []


def first_of(format: OutputFormat, calls: list[Call]) -> str:
    """The text of an answer up to the end of its first call, and not the first token of the second."""
    one, both = written(format, calls[:1]), written(format, calls)
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(one, both, strict=False))
    return "".join(character for character, _ in shared)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_call_ends_before_the_next_begins(name: str, trusted: bool) -> None:
    calls: list[Call] = [("f", ARGUMENTS), ("files__read", {"text": "x"})]
    text = first_of(FORMATS[name], calls)
    for pieces in ([text], text):
        parser = output_parser(FORMATS[name], OFFER, trusted=trusted)
        deltas = [delta for piece in pieces for delta in parser.feed(piece)]
        assert deltas[-1] == CallEnded()
        assert values_of(merged(deltas)) == deltas_of(calls[:1])


PIECEWISE = (JsonCalls, NamedJsonCalls, TaggedCalls)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_arguments_are_streamed_once_the_name_is_certain(name: str, trusted: bool) -> None:
    """In layouts whose arguments are JSON, and the strings of tagged ones."""
    format = FORMATS[name]
    text = written(format, [("f", {"text": "stuvw"})])
    parser = output_parser(format, OFFER, trusted=trusted)
    begun = parser.feed(text[: text.index("uvw")])
    if format.is_harmony or isinstance(format.calls, PIECEWISE):
        assert merged(begun) == [CallStarted("function", "f"), CallArguments('{"text": "st')]
        assert not parser.is_holding
        assert merged(parser.feed("uv")) == [CallArguments("uv")]
    else:
        assert begun == []
        assert parser.is_holding


@pytest.mark.parametrize("name", MARKED)
def test_calls_that_are_cut_off_lose_nothing(name: str) -> None:
    format = FORMATS[name]
    arguments = {"text": "a <b>\n", "count": -3, "tags": ["x"]}
    text = written(format, [("f", arguments)] * 2)
    whole = ("f", arguments)
    for end in range(len(text)):
        for cut_off in (False, True):
            pieces = [text[: end // 2], text[end // 2 : end]]
            deltas = parsed(pieces, format, OFFER, cut_off=cut_off)
            values = values_of(deltas)
            calls = [value for value in values if isinstance(value, tuple)]
            rest = "".join(value.text for value in values if isinstance(value, Text))
            assert squeezed(format, text[:end]).endswith(squeezed(format, rest)) or name == "HARMONY"
            assert all(call == whole for call in calls[:-1])
            assert not calls or calls[-1] == whole or is_beginning(calls[-1], whole, format, cut_off=cut_off)
            if not calls and name != "HARMONY":
                assert squeezed(format, rest) == squeezed(format, text[:end])
                assert cut_off or rest.strip() == without_section(format, text[:end]).strip()


def squeezed(format: OutputFormat, text: str) -> str:
    """A text without marks and white space."""
    for mark in sorted(format.marks(), key=len, reverse=True):
        text = text.replace(mark, "")
    return "".join(text.split())


def is_beginning(
    call: tuple[str, Any], whole: tuple[str, Any], format: OutputFormat, *, cut_off: bool
) -> bool:
    """Whether a call is the beginning of another: broken off, or with its first arguments only, because
    closing tags may be missing where the model ends an answer, but not where a limit does."""
    if not isinstance(call[1], str):
        return not cut_off and list(call[1].items()) == list(whole[1].items())[: len(call[1])]
    with pytest.raises(json.JSONDecodeError):
        json.loads(call[1])
    layout = format.calls
    close = (
        json.dumps(layout.value_close, ensure_ascii=False)[1:-1] if isinstance(layout, TaggedCalls) else ""
    )
    ends = [close[:size] for size in range(len(close) + 1)]
    return any(json.dumps(whole[1]).startswith(call[1].removesuffix(end)) for end in ends)


LENGTH = 4_000


@pytest.mark.parametrize("name", FORMATS)
def test_long_calls_are_read(name: str) -> None:
    texts = (LENGTH * "x", LENGTH // 10 * "<a b='c'>\n", LENGTH // 4 * "<|[]{}", LENGTH * "\\")
    values: list[dict[str, Any]] = [{"text": text} for text in texts]
    if name not in ("MINIMAX_M3", "GEMMA4"):
        values.append({"tags": LENGTH // 4 * ["x"]})
    for arguments in values:
        text = written(FORMATS[name], [("f", arguments)])
        # In pieces as long as tokens; short calls are also read character by character.
        for pieces in ([text], [text[at : at + 5] for at in range(0, len(text), 5)]):
            assert values_of(parsed(pieces, FORMATS[name], OFFER)) == deltas_of([("f", arguments)])


@pytest.mark.parametrize("name", PLAIN)
def test_long_text_that_resembles_calls_is_text(name: str) -> None:
    whole = written(FORMATS[name], [("f", {"text": "x"})])
    for end in range(3, len(whole) - 12, 5):
        text = 15 * whole[:end]
        deltas = parsed([text], FORMATS[name], OFFER, thinking=False)
        assert parsed(text, FORMATS[name], OFFER, thinking=False) == deltas


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("name", MARKED)
def test_arguments_may_be_nested_but_not_without_bound(name: str) -> None:
    call = ("g", {"a": nested(30)})
    check_values(written(FORMATS[name], [call]), deltas_of([call]), name)
    text = written(FORMATS[name], [("g", {"a": nested(300)})])
    deltas = parsed([text], FORMATS[name], OFFER)
    assert parsed(text, FORMATS[name], OFFER) == deltas


names = st.sampled_from(["f", "files__read", "nope"])
texts = st.text('<>/[]{}"\\|= \nab1,é💩', max_size=12)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts | st.sampled_from(["1", "true", "null", '{"a": 1}', "[]"]),
        "count": st.integers(-(2**53), 2**53),
        "ratio": st.floats(-1e9, 1e9).map(lambda number: round(number, 3)),
        "flag": st.booleans(),
        "tags": st.lists(texts, min_size=1, max_size=3),
        "options": st.fixed_dictionaries(
            {"name": texts, "deep": st.lists(st.integers(), min_size=1, max_size=2)}
        ),
    },
)
calls = st.lists(st.tuples(names, arguments) | st.just(("g", dict[str, Any]())), min_size=1, max_size=3)
cuts = st.lists(st.integers(0, 1000), max_size=6)


def is_unambiguous(format: OutputFormat, calls: list[Call]) -> bool:
    """Whether no value contains what ends a value, and none has white space that the format does not keep."""
    text = json.dumps([arguments for _, arguments in calls], ensure_ascii=False)
    return not any(mark in text for mark in format.marks() if len(mark) > 1)


@given(st.sampled_from(sorted(FORMATS)), calls)
def test_every_format_reads_any_calls_that_its_template_writes(name: str, calls: list[Call]) -> None:
    format = FORMATS[name]
    known = [call for call in calls if call[0] != "nope"]
    if known and is_unambiguous(format, known):
        check_values(written(format, known), deltas_of(known), name)


def scraps_of(format: OutputFormat) -> list[str]:
    """Marks of a format, and beginnings of calls."""
    marks = sorted(format.marks() | {format.think_open, format.think_close})
    text = written(format, [("f", {"text": "x", "count": 1}), ("g", {})])
    return [
        *marks,
        *(text[:end] for end in range(8, len(text), 9)),
        *(text[end:] for end in range(4, len(text), 9)),
    ]


SCRAPS = {name: scraps_of(format) for name, format in FORMATS.items()}


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str]:
    """A format, and an answer that is made of calls and scraps of calls."""
    name = draw(st.sampled_from(sorted(FORMATS)))
    part = st.one_of(
        st.sampled_from(SCRAPS[name]),
        calls.map(lambda calls: written(FORMATS[name], calls)),
        st.text('<>/[]{}"\\|=(), \nabf1:', max_size=6),
        st.sampled_from([" ", "\n", "Hm.", '{"name": "f"', "f(", "0"]),
    )
    return name, "".join(draw(st.lists(part, max_size=8)))


@given(answers(), cuts, st.booleans(), st.booleans())
def test_any_split_gives_the_same_deltas(
    answer: tuple[str, str], cuts: list[int], inside: bool, trusted: bool
) -> None:
    format, text = FORMATS[answer[0]], answer[1]
    whole = parsed([text], format, OFFER, starts_thinking=inside, trusted=trusted)
    for pieces in (split(text, cuts), text):
        assert parsed(pieces, format, OFFER, starts_thinking=inside, trusted=trusted) == whole


@given(answers())
def test_without_marks_that_take_effect_everything_is_text(answer: tuple[str, str]) -> None:
    format, text = FORMATS[answer[0]], answer[1]
    offer = Offer(tools=(function("other"),))
    layout = format.calls
    closing = (layout.close, layout.section_open, layout.section_close) if layout is not None else ()
    dropped = [part for mark in (*format.ignored, *closing) for part in mark.split()[-1:]]
    if not format.is_harmony and not any(mark in text for mark in dropped):
        assert parsed(text, format, offer, thinking=False) == ([Text(text)] if text else [])


@pytest.mark.parametrize("name", PLAIN)
def test_streamed_calls_equal_calls_that_are_held_back(name: str) -> None:
    for calls in (CALLS[:1], [CALLS[0], CALLS[2]], [("patch", {"input": 'a"\n'}), ("f", {"text": "x"})]):
        text = written(FORMATS[name], calls)
        whole = parsed([text], FORMATS[name], OFFER)
        check(text, whole, FORMATS[name], OFFER, trusted=True)


@given(st.sampled_from(sorted(FORMATS)), calls, cuts, st.booleans())
def test_in_any_split_a_call_ends_before_the_next_begins(
    name: str, calls: list[Call], cuts: list[int], trusted: bool
) -> None:
    format = FORMATS[name]
    known = [call for call in calls if call[0] != "nope"][:1]
    if not known or not is_unambiguous(format, known):
        return
    parser = output_parser(format, OFFER, trusted=trusted)
    text = first_of(format, [*known, ("f", {"text": "x"})])
    deltas = [delta for piece in split(text, cuts) for delta in parser.feed(piece)]
    assert values_of(merged(deltas)) == deltas_of(known)
