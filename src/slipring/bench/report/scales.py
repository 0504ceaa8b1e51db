"""Scales: map values to coordinates, and choose round values for ticks."""

import itertools
import math

from msgspec import Struct

_MANY_FACTORS = 1000.0
"""Logarithmic scales over a larger range have ticks at powers of ten only."""


class Scale(Struct, frozen=True, kw_only=True):
    """Maps values from ``low`` to ``high`` to coordinates from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def from_zero(highest: float, start: float, end: float, about: int = 5) -> Scale:
    """A linear scale from 0 to a tick at or above the highest value."""
    step = _round_step((highest or 1.0) / about)
    count = max(1, math.ceil((highest or 1.0) / step - 1e-9))
    ticks = tuple(round(step * index, 10) for index in range(count + 1))
    return Scale(low=0.0, high=ticks[-1], start=start, end=end, ticks=ticks)


def logarithmic(lowest: float, highest: float, start: float, end: float) -> Scale:
    """A logarithmic scale with ticks at powers of ten, and at 2 and 5 times these if the range is small."""
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 2)
    steps = [10.0**power * factor for power, factor in itertools.product(powers, (1, 2, 5))]
    low = max(step for step in steps if step <= lowest)
    high = min(step for step in steps if step > highest)
    factors = 3 if high / low <= _MANY_FACTORS else 1
    ticks = tuple(10.0**power * factor for power in powers for factor in (1, 2, 5)[:factors])
    shown = tuple(tick for tick in ticks if low <= tick <= high)
    return Scale(low=low, high=high, start=start, end=end, ticks=shown, is_log=True)


def whole(first: int, last: int, start: float, end: float, about: int = 6) -> Scale:
    """A scale of whole numbers, with ticks at the first and at round numbers."""
    step = max(1, math.ceil(_round_step((last - first) / about))) if last > first else 1
    round_ones = [value for value in range(step, last + 1, step) if value > first]
    if round_ones and round_ones[0] - first < step / 2:
        round_ones = round_ones[1:]
    return Scale(low=first, high=last, start=start, end=end, ticks=(first, *round_ones))


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
