"""Strings and numbers to propose for a JSON Schema, the most natural first.

Owns what such a value looks like. The proposals keep to the formats, lengths and bounds that they
are given as far as that is simple; whoever asks for them checks (see `validity`).
"""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import reduce
from typing import Any

from slipring.engines.simulated.schemas import patterns
from slipring.engines.simulated.schemas.validity import SchemaError, as_written

Plains = list[dict[str, Any]]  # schemas that must all hold, the branches in them already chosen

_TRIES = 48  # different values for one schema
_LONGEST = 10_000  # characters of a string
_LONGEST_NAME = 40

_FORMATS = {
    "date": "2025-01-{:02d}",
    "time": "12:00:{:02d}Z",
    "date-time": "2025-01-{:02d}T12:00:00Z",
    "duration": "P{}D",
    "email": "user{}@example.com",
    "hostname": "host{}.example.com",
    "ipv4": "192.0.2.{}",
    "ipv6": "2001:db8::{}",
    "uri": "https://example.com/{}",
    "uri-reference": "https://example.com/{}",
    "url": "https://example.com/{}",
    "uuid": "00000000-0000-4000-8000-{:012d}",
    "json-pointer": "/{}",
}
# The days of the shortest month: a count that suits every format, dates included.
_FORMATTED = 28
# The formats which stay valid when letters are added at their end.
_OPEN_ENDED = {"email", "hostname", "uri", "uri-reference", "url", "json-pointer"}


def span(plains: Plains, least: str, most: str) -> tuple[int, int]:
    """The narrowest of the counts that the schemas give by a pair of keywords."""
    highest = min((int(plain[most]) for plain in plains if most in plain), default=sys.maxsize)
    return max((int(plain.get(least, 0)) for plain in plains), default=0), highest


def strings(plains: Plains, name: str, spend: patterns.Spend) -> Iterator[str]:
    """Strings of the format, like the name of the property, or of the pattern, in this order."""
    shortest, longest = span(plains, "minLength", "maxLength")
    if shortest > _LONGEST:
        raise SchemaError(f"a string of {shortest} characters is too long to simulate")
    for plain in plains:
        yield from _formatted(plain.get("format", ""), shortest)
    words = _words(name[:_LONGEST_NAME], shortest, longest)
    yield next(words)
    for plain in plains:
        if "pattern" in plain:
            yield from patterns.samples(plain["pattern"], shortest, spend)
    yield from words


def _formatted(format_name: str, shortest: int) -> Iterator[str]:
    template = _FORMATS.get(format_name)
    if template is None:
        return
    for number in range(1, _FORMATTED + 1):
        text = template.format(number)
        yield text.ljust(shortest, "a") if format_name in _OPEN_ENDED else text


def _words(stem: str, shortest: int, longest: int) -> Iterator[str]:
    """The stem itself, then the stem numbered, each repeated or cut to the lengths allowed."""
    repeated = stem * (shortest // len(stem) + 1)
    yield repeated[: max(shortest, min(len(stem), longest))]
    for number in range(2, _TRIES + 2):
        suffix = str(number)
        size = min(max(shortest, len(stem) + len(suffix)), longest)
        if size >= len(suffix):
            yield repeated[: size - len(suffix)] + suffix


def numbers(plains: Plains, whole: bool) -> Iterator[float]:
    """One, or else the lowest number allowed, then others within the bounds."""
    low = max(_bounds(plains, "minimum", "exclusiveMinimum"), default=None)
    high = min(_bounds(plains, "maximum", "exclusiveMaximum"), default=None)
    steps = [as_written(plain["multipleOf"]) for plain in plains if "multipleOf" in plain]
    steps += [Fraction(1)] if whole else []
    yield 1
    for number in _multiples(reduce(_lcm, steps), low, high) if steps else _between(low, high):
        if number.denominator == 1:
            yield int(number)
        elif abs(number) < sys.float_info.max:
            yield float(number)


def _bounds(plains: Plains, *keys: str) -> list[Fraction]:
    return [Fraction(plain[key]) for plain in plains for key in keys if key in plain]


def _lcm(one: Fraction, other: Fraction) -> Fraction:
    below = one.denominator * other.denominator
    return Fraction(math.lcm(int(one * below), int(other * below)), below)


def _multiples(step: Fraction, low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    counts: Iterable[int] = itertools.chain(range(1, _TRIES), range(0, -_TRIES, -1))
    if low is not None:
        # Rounded down: a bound may lie a binary hair above the multiple that it is written as.
        counts = range(math.floor(low / step), math.floor(low / step) + _TRIES)
    elif high is not None:
        counts = range(math.ceil(high / step), math.ceil(high / step) - _TRIES, -1)
    return (count * step for count in counts)


def _between(low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    """Numbers of any fineness, for where nothing asks for multiples."""
    if low is not None and high is not None:
        percents = (0, 100, 50, *range(1, 100))
        return (low + (high - low) * percent / 100 for percent in percents)
    if low is not None:
        return (low + count for count in range(_TRIES))
    if high is not None:
        return (high - count for count in range(_TRIES))
    return _multiples(Fraction(1), None, None)
