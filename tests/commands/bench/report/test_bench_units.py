"""Formatting of figures."""

import pytest

from slipring.commands.bench.report import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.duration(0), "0 ms"),
        (units.duration(0.0423), "0.04 ms"),
        (units.duration(9.996), "10.0 ms"),
        (units.duration(99.96), "100 ms"),
        (units.duration(999.6), "1.00 s"),
        (units.duration(59_990), "60.0 s"),
        (units.duration(754_000), "12.6 min"),
        (units.size(999), "999 B"),
        (units.size(1000), "1.00 kB"),
        (units.size(20_123_000), "20.1 MB"),
        (units.percent(0.434), "43 %"),
        (units.percent(0.004), "0.4 %"),
        (units.percent(-0.03), "−3 %"),
        (units.percent(0), "0 %"),
        (units.tokens(930), "930"),
        (units.tokens(116_000), "116k"),
        (units.ratio(0.0731), "0.073×"),
        (units.ratio(0.851), "0.85×"),
        (units.ratio(0.00002), "<0.001×"),
        (units.duration(59_980_000), "1000 min"),
        (units.span(4100, 4400, units.duration), "4.10–4.40 s"),
        (units.span(990, 1010, units.duration), "990 ms–1.01 s"),
        (units.span(4100, 4101, units.duration), "4.10 s"),
    ],
)
def test_formatting_of_figures(text: str, expected: str) -> None:
    assert text.replace(units.SPACE, " ") == expected
