"""Draws line plots with bands, and their legends, as SVG. Independent of records.

Texts are sized in user units and a drawing scales with its container; sizes are chosen so that it is readable
on a phone.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slipring.bench.report import scales
from slipring.bench.report.markup import Markup, join, number, tag
from slipring.bench.report.palette import Style
from slipring.bench.report.scales import Scale

WIDTH = 420.0
TEXT = 12.0
LINE = 14.0
_MARK = 2.8
_MOST_MARKS = 14
_TICK_GAP = 6.0

_WIDTHS = {
    **dict.fromkeys(" .,:;|ijlt'’!()[]\N{NO-BREAK SPACE}", 0.38),
    **dict.fromkeys("mwMW<>&@%+=…\ufffd", 0.95),
}
"""Widths of characters, as a share of the font size."""


class Point(Struct, frozen=True):
    at: int
    value: float
    low: float
    high: float


class Series(Struct, frozen=True, kw_only=True):
    """One line of a plot."""

    name: str
    style: Style
    points: Sequence[Point]


class Column(Struct, frozen=True, kw_only=True):
    """One position on the horizontal axis: its labels below the axis, and its tooltip; empty for none."""

    at: int
    labels: Sequence[str]
    tooltip: str = ""


class Frame(Struct, frozen=True, kw_only=True):
    """Edges of the plotting area."""

    left: float
    right: float
    top: float
    bottom: float


def text_width(content: str, size: float = TEXT) -> float:
    """Estimated width in a sans-serif font; rather too wide than too narrow, because fonts differ."""
    return size * sum(_WIDTHS.get(letter, 0.72 if letter.isupper() else 0.62) for letter in content)


def shortened(content: str, width: float, size: float = TEXT) -> str:
    """Truncate with an ellipsis to fit a width."""
    if text_width(content, size) <= width:
        return content
    while content and text_width(content + "…", size) > width:
        content = content[:-1]
    return content.rstrip() + "…"


def drawing(name: str, title: str, about: str, height: float, *content: str, width: float = WIDTH) -> Markup:
    """An SVG with title and description for screen readers."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", about, id=f"{name}-about"),
        *content,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{name}-title {name}-about",
    )


def label(x: float, y: float, content: str, *, anchor: str = "start", css: str | None = None) -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=css)


def turn_axis(frame: Frame, columns: Sequence[Column], ticks: int = 6) -> Scale:
    """The horizontal scale of a line plot."""
    inset = min(12.0, (frame.right - frame.left) / 2 / len(columns))
    return scales.whole(columns[0].at, columns[-1].at, frame.left + inset, frame.right - inset, ticks)


def line_plot(
    frame: Frame,
    series: Sequence[Series],
    columns: Sequence[Column],
    across: Scale,
    up: Scale,
    up_labels: Sequence[str],
    caption: str,
) -> Markup:
    """Axes with labels, a band and a line for each series, and a tooltip for each column."""
    rows = len(columns[0].labels)
    middle, below = (frame.left + frame.right) / 2, frame.bottom + LINE * (rows + 1) + 3
    return join(
        _vertical_axis(frame, up, up_labels),
        _horizontal_axis(frame, across, columns),
        label(middle, below, caption, anchor="middle", css="caption"),
        *(_band(one, across, up) for one in series),
        *(_line(one, across, up) for one in reversed(series)),
        _tooltips(frame, across, [column for column in columns if column.tooltip]),
    )


def _vertical_axis(frame: Frame, scale: Scale, labels: Sequence[str]) -> Markup:
    """Grid lines with their labels on the left."""
    parts = []
    for tick, content in zip(scale.ticks, labels, strict=True):
        y = scale(tick)
        parts.append(tag("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_="grid"))
        parts.append(label(frame.left - _TICK_GAP, y + TEXT * 0.35, content, anchor="end"))
    return join(*parts)


def _horizontal_axis(frame: Frame, scale: Scale, columns: Sequence[Column]) -> Markup:
    """The axis with labels below its ticks, leaving out those that would overlap."""
    by_place = {column.at: column for column in columns}
    shown = [by_place[int(tick)] for tick in scale.ticks if int(tick) in by_place]
    parts = [tag("line", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="axis")]
    free_from = 0.0
    for column in shown:
        x, half = scale(column.at), max(map(text_width, column.labels), default=0.0) / 2
        if x - half < free_from:
            continue
        free_from = x + half + _TICK_GAP
        parts.append(tag("line", x1=x, x2=x, y1=frame.bottom, y2=frame.bottom + 4, class_="axis"))
        parts += [
            label(x, frame.bottom + 5 + LINE * (row + 0.8), content, anchor="middle")
            for row, content in enumerate(column.labels)
        ]
    return join(*parts)


def _band(series: Series, across: Scale, up: Scale) -> Markup:
    """The range of each point; empty if no point has one."""
    if len(series.points) < 2 or all(point.low == point.high for point in series.points):
        return Markup()
    tops = [(across(point.at), up(point.high)) for point in series.points]
    bottoms = [(across(point.at), up(point.low)) for point in reversed(series.points)]
    return tag("path", d=f"{_path(tops + bottoms)}Z", class_=f"band {series.style.css}")


def _line(series: Series, across: Scale, up: Scale) -> Markup:
    places = [(across(point.at), up(point.value)) for point in series.points]
    every = max(1, -(-len(places) // _MOST_MARKS))
    marked = places[::-1][::every]
    return join(
        tag("path", d=_path(places), class_=f"line {series.style.css}", stroke_dasharray=series.style.dash),
        _marks(marked, series.style),
    )


def _marks(places: Sequence[tuple[float, float]], style: Style) -> Markup:
    return tag("path", d="".join(_SHAPES[style.mark](x, y) for x, y in places), class_=f"mark {style.css}")


def _tooltips(frame: Frame, across: Scale, columns: Sequence[Column]) -> Markup:
    """One transparent strip for each column, with a tooltip."""
    width = abs(across.end - across.start) / max(1.0, across.high - across.low)
    strips = []
    for column in columns:
        left = max(frame.left, across(column.at) - width / 2)
        right = min(frame.right, across(column.at) + width / 2)
        rect = tag("rect", x=left, y=frame.top, width=right - left, height=frame.bottom - frame.top)
        strips.append(tag("g", tag("title", column.tooltip), rect, class_="turn"))
    return join(*strips)


def swatch(style: Style, x: float | None = None, y: float | None = None) -> Markup:
    """A sample of a line, for a legend; at a position within an SVG."""
    return tag(
        "svg",
        tag("path", d="M1 6H29", class_=f"line {style.css}", stroke_dasharray=style.dash),
        _marks([(15.0, 6.0)], style),
        viewBox="0 0 30 12",
        x=x,
        y=y,
        width=30,
        height=12,
        class_="swatch",
        aria_hidden="true",
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in places)


def _circle(x: float, y: float) -> str:
    radius = number(_MARK)
    half = f"a{radius} {radius} 0 1 0 "
    return f"M{number(x - _MARK)} {number(y)}{half}{number(2 * _MARK)} 0{half}{number(-2 * _MARK)} 0Z"


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float], str]:
    """Corners are relative to the centre, in units of the marker's size."""

    def draw(x: float, y: float) -> str:
        return _path([(x + right * _MARK, y + down * _MARK) for right, down in corners]) + "Z"

    return draw


_SHAPES: dict[str, Callable[[float, float], str]] = {
    "circle": _circle,
    "square": _polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "triangle": _polygon((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    "diamond": _polygon((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    "cross": _polygon(
        *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
        *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
    ),
    "bar": _polygon((-0.45, -1.4), (0.45, -1.4), (0.45, 1.4), (-0.45, 1.4)),
}
