"""Writes calls by an output format: exactly what a chat template of the family writes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipring.prompts.parsing.output_format import (
    BracedCalls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)

Call = tuple[str, Mapping[str, Any]]


def written(format: OutputFormat, calls: Sequence[Call]) -> str:
    """The calls of an answer, with all marks."""
    if format.is_harmony:
        return "<|start|>assistant".join(_harmony(name, arguments) for name, arguments in calls)
    layout = format.calls
    assert layout is not None
    if isinstance(layout, JsonCalls) and layout.is_array:
        body = "[" + ", ".join(_json_call(layout, *call) for call in calls) + "]"
    elif isinstance(layout, PythonCalls):
        texts = [_python(*call) for call in calls]
        body = "[" + ", ".join(texts) + "]" if layout.is_list else layout.between.join(texts)
    else:
        texts = [_one(layout, number, *call) for number, call in enumerate(calls)]
        body = layout.between.join(layout.open + text + layout.close for text in texts)
    return layout.section_open + body + layout.section_close


def without_section(format: OutputFormat, text: str) -> str:
    """A text without the marks of sections, which are no text where calls have marks of their own."""
    layout = format.calls
    if (
        layout is None
        or isinstance(layout, PythonCalls)
        or (isinstance(layout, JsonCalls) and layout.is_array)
    ):
        return text
    for mark in filter(None, (layout.section_open.strip(), layout.section_close.strip())):
        if text.strip().startswith(mark):
            text = text.strip().removeprefix(mark).lstrip() + text[len(text.rstrip()) :]
        text = text.replace(mark, "")
    return text


def _one(layout: object, number: int, name: str, arguments: Mapping[str, Any]) -> str:
    if isinstance(layout, JsonCalls):
        return _json_call(layout, name, arguments)
    if isinstance(layout, NamedJsonCalls):
        id = (
            f"{layout.id_separator}{number if layout.id_is_index else 'abcdefgh1'}"
            if layout.id_separator
            else ""
        )
        return f"{layout.name_prefix}{name}{id}{layout.arguments_open}{_json(arguments)}"
    if isinstance(layout, TaggedCalls):
        index = layout.index_attribute.replace("{index}", str(number + 1))
        tagged = "".join(_tagged(layout, key, value) for key, value in arguments.items())
        return f"{layout.name_open}{name}{index}{layout.name_close}{tagged}{layout.arguments_close}"
    if isinstance(layout, NestedTagCalls):
        prefix = layout.tag_prefix
        inner = _nested(layout, arguments)
        return f"{prefix}{layout.name_open}{name}{layout.name_close}{inner}{prefix}{layout.arguments_close}"
    assert isinstance(layout, BracedCalls)
    return f"{layout.name_open}{name}{_braced(layout.quote, arguments)}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_call(layout: JsonCalls, name: str, arguments: Mapping[str, Any]) -> str:
    id = f'"{layout.id_key}": "0", ' if layout.id_key else ""
    return f'{{{id}"{layout.name_key}": "{name}", "{layout.arguments_key}": {_json(arguments)}}}'


def _tagged(layout: TaggedCalls, key: str, value: object) -> str:
    is_string = isinstance(value, str)
    attribute = layout.string_attribute if is_string or not layout.json_attribute else layout.json_attribute
    attribute = attribute.replace("{type}", "string" if is_string else "number")
    if layout.has_escapes:
        key = key.replace("&", "&amp;").replace('"', "&quot;")
    text = value if is_string else _json(value)
    return f"{layout.key_open}{key}{attribute}{layout.key_close}{text}{layout.value_close}"


def _nested(layout: NestedTagCalls, value: object) -> str:
    if isinstance(value, Mapping):
        members = list(value.items())
    elif isinstance(value, list):
        members = [(layout.item_tag, each) for each in value]
    else:
        return value if isinstance(value, str) else _json(value)
    prefix = layout.tag_prefix
    return "".join(f"{prefix}<{key}>{_nested(layout, each)}{prefix}</{key}>" for key, each in members)


def _python(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _braced(quote: str, value: object) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_braced(quote, each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_braced(quote, each) for each in value) + "]"
    return _json(value)


def _harmony(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
