"""Colours can be distinguished."""

import itertools
import math

import pytest

from slipring.commands.bench.report.charts import DARK, LIGHT, styles
from tests.commands.bench.records import MODES


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as defined by WCAG."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_modes_differ_in_colour_and_in_dash_or_marker() -> None:
    assert len({style.css for style in styles(MODES).values()}) == len(MODES)
    assert len({(style.dash, style.mark) for style in styles(MODES).values()}) == len(MODES)
    for colours, ground in ((LIGHT, "#ffffff"), (DARK, "#111418")):
        for colour in colours:
            dark, light = sorted((luminance(colour), luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) >= 3, colour


# Linear RGB as seen with no, or with one kind of colour blindness (Machado et al. 2009).
BLINDNESSES = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)


def seen(colour: str, blindness: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """The colour in CIELAB, where distances correspond to visible differences."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    red, green, blue = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in blindness)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_colours_differ_with_any_colour_vision(colours: tuple[str, ...]) -> None:
    for blindness in BLINDNESSES:
        for one, other in itertools.combinations(colours, 2):
            distance = math.dist(seen(one, blindness), seen(other, blindness))
            assert distance > 12, (one, other)
