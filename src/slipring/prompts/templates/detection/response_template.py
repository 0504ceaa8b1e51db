"""Reads ``response_template`` of ``tokenizer_config.json``, by which transformers parses a model's answers.

It names regions of an answer (thoughts, text, calls) with their delimiters, which are literals or regular
expressions. Only expressions of literals, white space, named groups and optional parts are read.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slipring.prompts.parsing.known_formats import HARMONY
from slipring.prompts.parsing.output_format import (
    BracedCalls,
    Calls,
    JsonCalls,
    NamedJsonCalls,
    OutputFormat,
    TaggedCalls,
)

_THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning")
_MAX_PATTERN_CHARS = 1000
_GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()\\]|\\.)*\)")
_OPTIONAL = re.compile(r"\(\?:((?:[^()\\]|\\.)*)\)\?")
"""A part that may be missing: the header of a message within an answer."""
_SPACE = re.compile(r"\\s[*+?]?|\\n\?|\[\^<\]\*")
"""White space, or text up to a mark."""
_META = re.compile(r"(?<!\\)[.*+?()\[\]{}^$|]|\\[wdbWDSB]")
_PLACEHOLDER = re.compile(r"\{(?:content\.)?(\w+)\}")
Spec = Mapping[str, Any]


def read_response_template(template: Spec) -> OutputFormat | None:
    """The output format that a response_template describes; None if it says more than a format can."""
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not all(isinstance(field, Mapping) for field in fields.values()):
        return None
    calls = fields.get("tool_calls", {})
    if "<|channel|>" in str(calls.get("open_pattern", "")).replace("\\", ""):
        return HARMONY
    layout = _read_calls(calls)
    if calls and layout is None:
        return None
    thoughts: Spec = next((fields[name] for name in _THOUGHT_FIELDS if name in fields), {})
    content: Spec = fields.get("content", {})
    opening = _delimiter(content, "open")
    ignored = [opening, _delimiter(content, "close")] if opening else []
    ignored += [mark for field in fields.values() for mark in _optional_marks(field)]
    stops = [] if opening else _literals(content.get("close"))
    return OutputFormat(
        calls=layout,
        think_open=_delimiter(thoughts, "open") or "",
        think_close=_delimiter(thoughts, "close") or "",
        ignored=tuple(dict.fromkeys(mark for mark in ignored if mark)),
        stops=tuple(stops),
    )


def _mapping(value: object) -> Spec:
    return value if isinstance(value, Mapping) else {}


def _literals(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, Sequence) else []


def _first(value: object) -> str:
    return next(iter(_literals(value)), "")


def _delimiter(field: Spec, key: str) -> str | None:
    """A delimiter as text, with white space where a pattern has some; None if it is a richer pattern."""
    if key in field:
        return _first(field[key])
    parts = _parts(str(field.get(f"{key}_pattern", "")))
    return parts[0] if parts is not None and len(parts) == 1 else None


def _parts(pattern: str) -> list[str] | None:
    """Divide a pattern at its named groups: literal, group's name, literal, …; None if it says more."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        return None
    parts: list[str] = []
    for at, part in enumerate(_GROUP.split(_OPTIONAL.sub("", pattern))):
        literal = part if at % 2 else _SPACE.sub("", part)
        if at % 2 == 0 and _META.search(literal):
            return None
        parts.append(literal if at % 2 else re.sub(r"\\(.)", _unescape, literal))
    return parts


def _optional_marks(field: Spec) -> list[str]:
    """What may precede a region: no content."""
    marks = [
        _parts(part) for part in _OPTIONAL.findall(str(field.get("open_pattern", ""))[:_MAX_PATTERN_CHARS])
    ]
    return [parts[0] for parts in marks if parts is not None and len(parts) == 1]


def _unescape(escape: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(escape.group(1), escape.group(1))


def _read_calls(field: Spec) -> Calls | None:
    if field.get("content") == "xml-inline":
        return _read_tagged(field)
    if field.get("content") != "json":
        return None
    arguments: Spec = _mapping(field.get("content_args"))
    if "(?P<" in str(field.get("open_pattern", "")):
        parts = _parts(str(field["open_pattern"]))
        if parts is None or len(parts) != 3 or parts[1] != "name":
            return None
        close = _delimiter(field, "close") or ""
        if arguments.get("unquoted_keys"):
            return _braced(parts, close, arguments)
        return NamedJsonCalls(open=parts[0], arguments_open=parts[2], close=close) if parts[2] else None
    return _read_json(field)


def _braced(parts: Sequence[str], close: str, arguments: Spec) -> Calls | None:
    delimiters = arguments.get("string_delims")
    tag = re.search(r"\w+:$", parts[0])
    if not isinstance(delimiters, list) or not delimiters or tag is None:
        return None
    return BracedCalls(
        open=parts[0][: tag.start()], close=close, name_open=tag.group(), quote=_first(delimiters[0])
    )


def _read_json(field: Spec) -> Calls | None:
    keys = _mapping(_mapping(field.get("transform")).get("function"))
    name = _PLACEHOLDER.fullmatch(str(keys.get("name", "{name}")))
    arguments = _PLACEHOLDER.fullmatch(str(keys.get("arguments", "{arguments}")))
    open, close = _delimiter(field, "open"), _delimiter(field, "close")
    if name is None or arguments is None or not open:
        return None
    name_key, arguments_key = name.group(1), arguments.group(1)
    if field.get("transform_each"):
        return JsonCalls(
            section_open=open,
            section_close=close or "",
            is_array=True,
            name_key=name_key,
            arguments_key=arguments_key,
        )
    return JsonCalls(open=open, close=close or "", name_key=name_key, arguments_key=arguments_key)


def _read_tagged(field: Spec) -> Calls | None:
    arguments: Spec = _mapping(field.get("content_args"))
    opening = _parts(str(field.get("open_pattern", "")))
    tag = _parts(str(arguments.get("tag_pattern", "")))
    close = _delimiter(field, "close")
    if opening is None or tag is None or opening[1:2] != ["name"] or [*tag[1::2]] != ["key", "value"]:
        return None
    name_open = re.search(r"<[^<>]*$", opening[0])
    open = opening[0][: name_open.start()] if name_open else opening[0]
    inner = re.match(r"<([^\s=<>]+)", name_open.group()) if name_open else None
    return TaggedCalls(
        open=open,
        close=close or "",
        name_open=name_open.group() if name_open else "",
        name_close=opening[2],
        arguments_close=f"</{inner.group(1)}>" if inner and open else "",
        key_open=tag[0],
        key_close=tag[2],
        value_close=tag[4],
    )
