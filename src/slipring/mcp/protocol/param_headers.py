"""Headers of requests in revision 2026-07-28: tool parameters that are mirrored into ``Mcp-Param-*``.

A tool's schema marks such parameters with ``x-mcp-header``. A tool with an invalid mark may not be used.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_MARK = "x-mcp-header"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_PRIMITIVE = ("string", "integer", "boolean")
_LARGEST_INTEGER = 2**53 - 1
_PLAIN = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_MOST_MARKS = 64
_DEEPEST = 64


class InvalidMark(ValueError):
    """A schema marks a parameter in a way that the protocol forbids. The message says how."""


class ParamHeader(NamedTuple):
    """One mirrored parameter: its header, and the path of properties to its value in the arguments."""

    header: str
    path: tuple[str, ...]


def param_headers(schema: Any) -> tuple[ParamHeader, ...]:
    """Return the marked parameters of a decoded input schema. Raises ``InvalidMark``."""
    found: list[ParamHeader] = []
    for path, holder, is_reachable in _marks(schema, (), True, 0):
        name = holder[_MARK]
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidMark(f"its {_MARK} is not the name of a header")
        if not is_reachable:
            raise InvalidMark(f"its {_MARK} is not on a plain property")
        if holder.get("type") not in _PRIMITIVE:
            raise InvalidMark(f"its {_MARK} is on a parameter that is no string, integer or boolean")
        found.append(ParamHeader(f"Mcp-Param-{name}", path))
        if len(found) > _MOST_MARKS:
            raise InvalidMark(f"more than {_MOST_MARKS} parameters have an {_MARK}")
    if len({header.lower() for header, _ in found}) < len(found):
        raise InvalidMark(f"two of its parameters have the same {_MARK}")
    return tuple(found)


def _marks(
    schema: Any, path: tuple[str, ...], is_reachable: bool, depth: int
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], bool]]:
    """Walk a schema and yield every object with a mark, with its path if only properties lead there."""
    if depth > _DEEPEST:
        raise InvalidMark("its schema is nested too deeply")
    if isinstance(schema, list):
        for each in schema:
            yield from _marks(each, path, False, depth + 1)
    if not isinstance(schema, dict):
        return
    if _MARK in schema:
        # The root of a schema is no parameter.
        yield path, schema, is_reachable and bool(path)
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, dict):
            # Names of properties are no keywords: one may be called like the mark itself.
            reachable = is_reachable and key == "properties"
            for name, inner in value.items():
                yield from _marks(inner, (*path, name), reachable, depth + 1)
        elif key not in ("default", "const", "enum", "examples", _MARK):
            yield from _marks(value, path, False, depth + 1)


def mirrored(headers: tuple[ParamHeader, ...], arguments: Any) -> list[tuple[str, str]]:
    """Return the headers for decoded arguments. Absent parameters and null have none."""
    found = []
    for header, path in headers:
        value = arguments
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if (text := _text(value)) is not None:
            found.append((header, header_value(text)))
    return found


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and abs(value) <= _LARGEST_INTEGER else None


def header_value(text: str) -> str:
    """Encode a text for a header: as it is if that is safe, else in Base64 with the protocol's marker."""
    is_marked = text.startswith("=?base64?") and text.endswith("?=")
    if _PLAIN.fullmatch(text) and not is_marked:
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="
