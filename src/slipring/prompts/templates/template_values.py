"""The values that templates are given: lists and JSON, and how deep and large JSON may be."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from slipring.base.errors import InvalidRequest
from slipring.prompts.tool_definitions import describe
from slipring.protocol.tools import CallableTool

T = TypeVar("T")


class YieldingList(list[T]):
    """A list whose entries are fetched by Python code, so that other threads can run in between."""

    def __iter__(self) -> Iterator[T]:
        yield from super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson`` as templates expect it: Jinja's own would escape for HTML."""
    item, key = separators if separators is not None else (", " if indent is None else ",", ": ")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=(item, key), sort_keys=sort_keys
    )


_MAX_DEPTH = 100
"""Nesting of JSON that is passed to a template as a value."""
_MAX_VALUES = 100_000
"""Number of values in JSON that is passed to a template as a value: it is decoded and encoded in one step."""
Dict = dict[str, Any]
_object = msgspec.json.Decoder(Dict)


def read_object(text: str) -> Dict | None:
    """Decode a JSON object; None if the text is not one, or it is nested too deeply or too large."""
    if sum(map(text.count, ",[{")) > _MAX_VALUES:  # an upper bound of the number of values
        return None
    try:
        value = _object.decode(text.encode())
    except (ValueError, RecursionError):
        return None
    return value if _is_shallow(value, _MAX_DEPTH) else None


def _is_shallow(value: object, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(each, depth - 1) for each in inner)


def template_tools(tools: Iterable[CallableTool]) -> list[Dict]:
    """Tool definitions for a template. Raises ``InvalidRequest`` if a schema is too deep or too large."""
    definitions = []
    for tool in tools:
        definition = read_object(describe(tool))
        if definition is None:
            raise InvalidRequest.at("tools", "the schema of a tool is nested too deeply, or too large")
        parameters = definition["function"]["parameters"]
        if isinstance(parameters, dict):
            parameters.setdefault("type", "object")
            parameters.setdefault("properties", {})  # templates rely on both
        definitions.append(definition)
    return definitions
