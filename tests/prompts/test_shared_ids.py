"""Ids written as what they share with others are the same when they are joined again."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.prompts.rendering_codec import joined, shared

runs = st.lists(
    st.builds(
        lambda first, length: list(range(first, first + length)), st.integers(0, 50), st.integers(0, 90)
    ),
    max_size=5,
)


def packed(*parts: list[int]) -> bytes:
    return array("I", [each for part in parts for each in part]).tobytes()


@given(runs, runs)
def test_joining_gives_the_same_ids(one: list[list[int]], other: list[list[int]]) -> None:
    ids, source = packed(*one), packed(*other)
    assert joined(shared(ids, source), source) == ids


def test_what_was_left_out_in_the_middle_costs_two_ranges() -> None:
    question, thought, answer = list(range(300)), list(range(1000, 1500)), list(range(2000, 2100))
    more = list(range(5000, 5020))
    pieces = shared(packed(question, answer, more), packed(question, thought, answer))
    assert pieces == [(0, 1200), (3200, 400), packed(more)]


def test_several_places_may_differ() -> None:
    turns = [list(range(1000 * n, 1000 * n + 200)) for n in range(1, 9)]
    thoughts = [list(range(9000 + 100 * n, 9050 + 100 * n)) for n in range(1, 9)]
    source = packed(*(part for pair in zip(turns, thoughts, strict=True) for part in pair))
    pieces = shared(packed(*turns), source)
    assert pieces == [(number * 1000, 800) for number in range(8)]


def test_nothing_in_common_is_one_piece() -> None:
    ids = packed(list(range(100)))
    assert shared(ids, b"") == shared(ids, packed(list(range(500, 900)))) == [ids]
    assert shared(b"", ids) == []


@pytest.mark.parametrize("piece", [(0, 8), (-4, 4), (4, 4), (0, -4)])
def test_a_range_that_is_not_there_is_refused(piece: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        joined([piece], b"abcd")
