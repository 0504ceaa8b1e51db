"""The modules that draw lines, without a browser: scales, texts, and drawings as files."""

from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec import Struct

from slipring.commands.bench.report import charts

HERE = Path(__file__).parent


class Scale(Struct):
    ticks: list[float]
    places: list[float]
    """Of the values that were asked for."""
    tick_places: list[float]


def scale(kind: str, *given: float, values: tuple[float, ...] = ()) -> Scale:
    data = {"kind": kind, "given": given, "values": values}
    return msgspec.json.decode(charts.still(HERE / "scale.js", data), type=Scale)


def element(tag: str, attribute: str | float, text: str) -> str:
    return charts.still(HERE / "element.js", {"tag": tag, "attribute": attribute, "text": text})


@pytest.mark.parametrize("highest", [0, 0.003, 1, 7.2, 99, 100, 12_345.6])
def test_linear_scales_contain_every_value(highest: float) -> None:
    made = scale("fromZero", highest, 100, 0)
    assert 2 <= len(made.ticks) <= 7
    assert made.ticks[0] == 0
    assert made.ticks[-1] >= highest
    assert (made.tick_places[0], made.tick_places[-1]) == (100, 0)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (120, 4_000), (900, 110_000), (3, 9_000_000)])
def test_logarithmic_scales_contain_every_value(low: float, high: float) -> None:
    made = scale("logarithmic", low, high, 100, 0, values=(low, high))
    assert 100 >= made.places[0] >= made.places[1] >= 0
    assert 2 <= len(made.ticks) <= 12


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2), (1, 6), (2, 6), (1, 26), (1, 100), (1, 1000)])
def test_ticks_of_turns_are_whole_numbers(first: int, last: int) -> None:
    made = scale("whole", first, last, 0, 100)
    assert made.ticks[0] == first
    assert made.ticks[-1] <= last
    assert all(tick == int(tick) for tick in made.ticks)
    assert len(made.ticks) <= 8


def test_written_drawings_are_xml_in_which_texts_are_texts() -> None:
    hostile = "<b>\"&'</b>\x00\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")
    parsed = ET.fromstring(element("text", hostile, hostile))
    shown = hostile.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert (parsed.tag, parsed.get("x"), parsed.text) == ("text", shown, shown)
    assert list(parsed) == []
    assert element("path", 2.349, "") == '<path x="2.3"/>'
    assert element("path", -0.01, "") == '<path x="0"/>'


@pytest.mark.parametrize(
    ("tag", "attribute", "text", "message"),
    [("path", "nan", "", "NaN cannot be drawn"), ("style", 0, "</style>", "a stylesheet with markup")],
)
def test_what_cannot_be_written_is_an_error(
    tag: str, attribute: str | float, text: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        element(tag, attribute, text)
