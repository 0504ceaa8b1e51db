"""HTML and SVG as text that is escaped wherever it is not markup already.

Everything that the report writes goes through ``tag``: what a record says cannot become markup. The result is
well-formed XML, so that one text is fit for a page and for a file of its own. Knows nothing of records.
"""

import math
import re
from html import escape

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Value = str | float | bool | None


class Markup(str):
    """Text that is markup."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: Value) -> Markup:
    """An element. ``class_`` is the attribute ``class``, ``stroke_width`` is ``stroke-width``."""
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    inner = join(*children)
    return Markup(f"<{name}{told}>{inner}</{name}>" if inner or name not in _EMPTY else f"<{name}{told}/>")


def join(*children: str) -> Markup:
    """Markup as it is, and all else escaped."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children))


def text(content: str) -> Markup:
    return Markup(escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", content)))


def number(value: float) -> str:
    """A coordinate: a tenth of a unit is finer than anybody sees."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be drawn")
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f' {name}="{name}"'
    return f' {name}="{text(value) if isinstance(value, str) else number(value)}"'


_EMPTY = frozenset("br circle hr line meta path rect".split())
