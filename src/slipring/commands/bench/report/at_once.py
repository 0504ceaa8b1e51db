"""A figure of much at once, as SVG: how many run at a time against how long that takes.

``at_once.js`` draws it, in a JavaScript engine instead of a browser. This needs the extra ``svg``.
"""

from pathlib import Path

from msgspec import Struct

from slipring.commands.bench.report import palette, scripts

STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft)}
.title{font-size:17px;font-weight:700;fill:var(--ink)}.head{font-weight:700;fill:var(--ink)}
.name{fill:var(--ink)}.small{font-size:12px}.paper{fill:var(--paper);stroke:var(--rule)}
"""
_SCRIPT = Path(__file__).with_name("at_once.js")


class Style(Struct, frozen=True):
    """How a line looks."""

    css: str
    dash: str | None
    mark: str


class Value(Struct, frozen=True):
    """A time in ms, and its range."""

    value: float
    low: float
    high: float


class Series(Struct, frozen=True):
    """A line: a value for each amount."""

    name: str
    style: Style
    values: list[Value]


class Plot(Struct, frozen=True):
    """How long it takes when so many run at once."""

    heading: str
    caption: str
    """What the amounts count."""
    amounts: list[int]
    series: list[Series]


def drawn(plots: list[Plot], *, title: str, about: str, subtitle: str, conditions: str) -> str:
    """All plots have lines with the same names."""
    texts = {"title": title, "about": about, "subtitle": subtitle, "conditions": conditions}
    return scripts.still(_SCRIPT, {"css": palette.css() + STYLE, "plots": plots, **texts}) + "\n"
