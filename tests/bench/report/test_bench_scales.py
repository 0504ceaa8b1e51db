"""Scales and their ticks."""

import pytest

from slipring.bench.report import scales


@pytest.mark.parametrize("highest", [0, 0.003, 1, 7.2, 99, 100, 12_345.6])
def test_linear_scales_contain_every_value(highest: float) -> None:
    scale = scales.from_zero(highest, 100, 0)
    assert 2 <= len(scale.ticks) <= 7
    assert scale.ticks[0] == 0
    assert scale.ticks[-1] >= highest
    assert scale(0) == 100
    assert scale(scale.ticks[-1]) == 0


@pytest.mark.parametrize(("low", "high"), [(1, 1), (120, 4_000), (900, 110_000), (3, 9_000_000)])
def test_logarithmic_scales_contain_every_value(low: float, high: float) -> None:
    scale = scales.logarithmic(low, high, 100, 0)
    assert 100 >= scale(low) >= scale(high) >= 0
    assert 2 <= len(scale.ticks) <= 12


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2), (1, 6), (2, 6), (1, 26), (1, 100), (1, 1000)])
def test_ticks_of_turns_are_whole_numbers(first: int, last: int) -> None:
    scale = scales.whole(first, last, 0, 100)
    assert scale.ticks[0] == first
    assert scale.ticks[-1] <= last
    assert all(tick == int(tick) for tick in scale.ticks)
    assert len(scale.ticks) <= 8
