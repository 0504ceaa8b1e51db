"""Drawing: lines with bands, stacked bars, axes and swatches, as SVG.

Knows values, places and styles, and nothing of records. Texts are set in user units: a drawing is as wide as
its place lets it be, and sizes are chosen so that it reads from a phone's width on.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slipring.bench.report.markup import Markup, join, number, tag
from slipring.bench.report.palette import Style, ink_on
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
"""Of letters, in parts of the size."""


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
    """What is said of one place on the horizontal axis: below it, and when it is pointed at."""

    at: int
    below: Sequence[str]
    title: str


class Segment(Struct, frozen=True, kw_only=True):
    name: str
    value: float
    told: str
    colour: str


class Bar(Struct, frozen=True, kw_only=True):
    """Segments, one after the other, with what is written above and beside them."""

    name: str
    told: str
    segments: Sequence[Segment]


class Frame(Struct, frozen=True, kw_only=True):
    """The edges of the area in which values are drawn."""

    left: float
    right: float
    top: float
    bottom: float


def text_width(content: str, size: float = TEXT) -> float:
    """About, for a sans-serif font: fonts differ, so that it is more rather than less."""
    return size * sum(_WIDTHS.get(letter, 0.72 if letter.isupper() else 0.62) for letter in content)


def shortened(content: str, width: float, size: float = TEXT) -> str:
    if text_width(content, size) <= width:
        return content
    while content and text_width(content + "…", size) > width:
        content = content[:-1]
    return content.rstrip() + "…"


def drawing(name: str, title: str, about: str, height: float, *content: str, width: float = WIDTH) -> Markup:
    """A picture with a name and a description for those who do not see it."""
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


def vertical_axis(frame: Frame, scale: Scale, told: Sequence[str]) -> Markup:
    """Lines across the area, with what each stands for on their left."""
    parts = []
    for tick, content in zip(scale.ticks, told, strict=True):
        y = scale(tick)
        parts.append(tag("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_="grid"))
        parts.append(label(frame.left - _TICK_GAP, y + TEXT * 0.35, content, anchor="end"))
    return join(*parts)


def horizontal_axis(frame: Frame, scale: Scale, columns: Sequence[Column]) -> Markup:
    """Texts below the ticks of the scale, as many as have room."""
    by_place = {column.at: column for column in columns}
    shown = [by_place[int(tick)] for tick in scale.ticks if int(tick) in by_place]
    parts = [tag("line", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="axis")]
    free_from = 0.0
    for column in shown:
        x, half = scale(column.at), max(map(text_width, column.below), default=0.0) / 2
        if x - half < free_from:
            continue
        free_from = x + half + _TICK_GAP
        parts.append(tag("line", x1=x, x2=x, y1=frame.bottom, y2=frame.bottom + 4, class_="axis"))
        parts += [
            label(x, frame.bottom + 5 + LINE * (row + 0.8), content, anchor="middle")
            for row, content in enumerate(column.below)
        ]
    return join(*parts)


def band(series: Series, across: Scale, up: Scale) -> Markup:
    """From the least to the most; nothing where there is no width to it."""
    if len(series.points) < 2 or all(point.low == point.high for point in series.points):
        return Markup()
    tops = [(across(point.at), up(point.high)) for point in series.points]
    bottoms = [(across(point.at), up(point.low)) for point in reversed(series.points)]
    return tag("path", d=f"{_path(tops + bottoms)}Z", class_=f"band {series.style.css}")


def line(series: Series, across: Scale, up: Scale) -> Markup:
    places = [(across(point.at), up(point.value)) for point in series.points]
    every = max(1, -(-len(places) // _MOST_MARKS))
    marked = places[::-1][::every]
    return join(
        tag("path", d=_path(places), class_=f"line {series.style.css}", stroke_dasharray=series.style.dash),
        marks(marked, series.style),
    )


def marks(places: Sequence[tuple[float, float]], style: Style) -> Markup:
    return tag("path", d="".join(_SHAPES[style.mark](x, y) for x, y in places), class_=f"mark {style.css}")


def pointed(frame: Frame, across: Scale, columns: Sequence[Column]) -> Markup:
    """One upright strip for each column, which tells what is there when it is pointed at."""
    width = abs(across.end - across.start) / max(1.0, across.high - across.low)
    strips = []
    for column in columns:
        left = max(frame.left, across(column.at) - width / 2)
        right = min(frame.right, across(column.at) + width / 2)
        rect = tag("rect", x=left, y=frame.top, width=right - left, height=frame.bottom - frame.top)
        strips.append(tag("g", tag("title", column.title), rect, class_="turn"))
    return join(*strips)


def stacked(bars: Sequence[Bar], scale: Scale, top: float, pitch: float, thickness: float) -> Markup:
    """Bars that lie, each with its name above it and its whole at its end."""
    parts = []
    for index, bar in enumerate(bars):
        y = top + index * pitch
        beside = text_width(bar.told)
        room = abs(scale.end - scale.start) - beside - 2 * _TICK_GAP
        parts.append(label(scale.start, y + TEXT, shortened(bar.name, room), css="name"))
        parts.append(label(scale.end, y + TEXT, bar.told, anchor="end", css="figure"))
        parts.append(_segments(bar, scale, y + LINE + 4, thickness))
    return join(*parts)


def _segments(bar: Bar, scale: Scale, y: float, thickness: float) -> Markup:
    parts, spent = [], 0.0
    for segment in bar.segments:
        left, right = scale(spent), scale(spent + segment.value)
        spent += segment.value
        rect = tag(
            "rect", x=left, y=y, width=max(0.3, right - left - 0.6), height=thickness, fill=segment.colour
        )
        inside = []
        if text_width(segment.name) + 8 <= right - left:
            middle, baseline = (left + right) / 2, y + thickness / 2 + TEXT * 0.35
            ink = f"fill:{ink_on(segment.colour)}"
            inside.append(tag("text", segment.name, x=middle, y=baseline, text_anchor="middle", style=ink))
        parts.append(
            tag(
                "g",
                tag("title", f"{bar.name}, {segment.name}: {segment.told}"),
                rect,
                *inside,
                class_="segment",
            )
        )
    return join(*parts)


def swatch(style: Style) -> Markup:
    """A piece of a line, for a legend."""
    return tag(
        "svg",
        tag("path", d="M1 6H29", class_=f"line {style.css}", stroke_dasharray=style.dash),
        marks([(15.0, 6.0)], style),
        viewBox="0 0 30 12",
        class_="swatch",
        aria_hidden="true",
    )


def patch(colour: str) -> Markup:
    return tag(
        "svg",
        tag("rect", x=0, y=0, width=12, height=12, fill=colour),
        viewBox="0 0 12 12",
        class_="patch",
        aria_hidden="true",
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in places)


def _circle(x: float, y: float) -> str:
    radius = number(_MARK)
    half = f"a{radius} {radius} 0 1 0 "
    return f"M{number(x - _MARK)} {number(y)}{half}{number(2 * _MARK)} 0{half}{number(-2 * _MARK)} 0Z"


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float], str]:
    """In parts of a mark, around where it is."""

    def drawn(x: float, y: float) -> str:
        return _path([(x + right * _MARK, y + down * _MARK) for right, down in corners]) + "Z"

    return drawn


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
