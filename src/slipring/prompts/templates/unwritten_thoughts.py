"""Which reasoning items of a context have thoughts that its tokens lack, as ranges of their numbers."""

from collections.abc import Iterable
from itertools import takewhile

Ranges = tuple[tuple[int, int], ...]
"""Of the numbers of reasoning items in a context: the first and past the last of each."""
_MOST_RANGES = 64
"""Ranges that are kept with a context. Most templates leave out the thoughts of all earlier turns: one."""


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """Ascending numbers as ranges, of which the latest 64 are kept."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges[-_MOST_RANGES:])


def joined(before: Ranges, after: Ranges) -> Ranges:
    """Ranges with those of later items, of which the latest 64 are kept."""
    if before and after and before[-1][1] == after[0][0]:
        before, after = before[:-1], ((before[-1][0], after[0][1]), *after[1:])
    return (before + after)[-_MOST_RANGES:]


def clipped(ranges: Ranges, end: int) -> Ranges:
    """The ranges up to a number."""
    return tuple((first, min(past, end)) for first, past in takewhile(lambda each: each[0] < end, ranges))
