"""Builds HTML; every text that is not ``Markup`` is escaped.

The page is written through ``tag``, so texts of a record cannot inject markup. The result is well-formed XML.
"""

import re
from html import escape

import msgspec

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Value = str | bool | None


class Markup(str):
    """Text that is markup and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: Value) -> Markup:
    """An element. ``class_`` is the attribute ``class``, ``data_label`` is ``data-label``."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    inner = join(*children)
    return Markup(
        f"<{name}{written}>{inner}</{name}>" if inner or name not in _EMPTY else f"<{name}{written}/>"
    )


def join(*children: str) -> Markup:
    """Concatenate, escaping everything that is not ``Markup``."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children))


def embedded(data: object) -> Markup:
    """JSON for a ``script`` element: without the characters that HTML or XML would read as markup."""
    written = msgspec.json.encode(data).decode()
    return Markup(written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def text(content: str) -> Markup:
    return Markup(escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", content)))


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f' {name}="{name}"'
    return f' {name}="{text(value)}"'


_EMPTY = frozenset(("br", "hr", "meta"))
