"""Random histories: turns of a client and a model, in the forms that clients send.

A history is plain data without a model: efforts are numbers by which a renderer's own efforts are chosen, and
an answer is what the model would write if it can.
"""

from typing import Any, Literal

from hypothesis import strategies as st
from msgspec import Struct

Input = Literal["user", "two users", "developer", "outputs", "outputs and steer"]
Start = Literal[
    "user",
    "developer and user",
    "developer",
    "call",
    "assistant",
    "long",
    "two systems",
    "steered loop",
    "broken call",
]


class Call(Struct, frozen=True):
    """A call that an answer makes."""

    name: Literal["get_weather", "search"]
    arguments: dict[str, Any]


class Answer(Struct, frozen=True):
    """What the model answers, as far as its format and its effort have a place for it."""

    thinks: bool
    has_text: bool
    calls: tuple[Call, ...]


class Turn(Struct, frozen=True):
    """What the client sends, and what the model answers."""

    input: Input
    effort: int
    answer: Answer


class History(Struct, frozen=True):
    """A conversation turn by turn. The input of the first turn is ``start``."""

    start: Start
    instructed: bool
    has_tools: bool
    turns: tuple[Turn, ...]


_CALLS = st.lists(
    st.sampled_from(
        [
            Call("get_weather", {"city": "Rome"}),
            Call("get_weather", {"city": "Oslo", "days": 2}),
            Call("search", {"query": "rain"}),
        ]
    ),
    max_size=2,
).map(tuple)
_ANSWERS = st.builds(Answer, st.booleans(), st.booleans(), _CALLS)
_INPUTS: st.SearchStrategy[Input] = st.sampled_from(
    ["user", "user", "outputs", "two users", "developer", "outputs and steer"]
)
_EFFORTS = st.lists(st.integers(0, 7), min_size=5, max_size=5) | st.integers(0, 7).map(lambda one: [one] * 5)


def _with_efforts(turns: list[Turn], efforts: list[int]) -> tuple[Turn, ...]:
    return tuple(Turn(turn.input, effort, turn.answer) for turn, effort in zip(turns, efforts, strict=False))


_TURNS = st.builds(
    _with_efforts,
    st.lists(st.builds(Turn, _INPUTS, st.just(0), _ANSWERS), min_size=2, max_size=5),
    _EFFORTS,
)
HISTORIES = st.builds(
    History,
    st.sampled_from(
        [
            *("user", "user", "developer and user", "developer", "call", "assistant", "long", "two systems"),
            *("steered loop", "broken call"),
        ]
    ),
    st.booleans(),
    st.booleans(),
    _TURNS,
)
