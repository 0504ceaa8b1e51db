"""The form of structural tags, as xgrammar 0.2 documents it."""

import json
from typing import Any, Literal

import msgspec
from msgspec import Struct


class _Tagged(Struct, tag_field="type", forbid_unknown_fields=True):
    pass


class _ConstString(_Tagged, tag="const_string"):
    value: str


class _JsonSchema(_Tagged, tag="json_schema"):
    json_schema: dict[str, Any]


class _Regex(_Tagged, tag="regex"):
    pattern: str


class _Grammar(_Tagged, tag="grammar"):
    grammar: str


class _AnyText(_Tagged, tag="any_text"):
    excludes: list[str] = []


class _Sequence(_Tagged, tag="sequence"):
    elements: "list[_Format]"


class _Or(_Tagged, tag="or"):
    elements: "list[_Format]"


class _Optional(_Tagged, tag="optional"):
    content: "_Format"


class _Repeat(_Tagged, tag="repeat"):
    min: int
    max: int
    content: "_Format"


class _Tag(_Tagged, tag="tag"):
    begin: str
    content: "_Format"
    end: str


class _Dispatch(_Tagged, tag="dispatch"):
    rules: "list[tuple[str, _Format]]"
    loop: bool = True
    excludes: list[str] = []


_Format = (
    _ConstString
    | _JsonSchema
    | _Regex
    | _Grammar
    | _AnyText
    | _Sequence
    | _Or
    | _Optional
    | _Repeat
    | _Tag
    | _Dispatch
)


class StructuralTag(Struct, forbid_unknown_fields=True):
    type: Literal["structural_tag"]
    format: _Format


def read_tag(text: str) -> Any:
    """The format of a structural tag. Raises ``ValueError`` if xgrammar would not accept it."""
    tag = msgspec.json.decode(text, type=StructuralTag)
    _check(tag.format)
    return json.loads(text)["format"]


def _check(format: Any) -> None:
    match format:
        case _ConstString(value=""):
            raise ValueError("an empty constant")
        case _Sequence(elements=[]) | _Or(elements=[]) | _Dispatch(rules=[]):
            raise ValueError("an empty list")
        case _Tag(content=_AnyText(), end=""):
            raise ValueError("text without an end")
        case _Repeat(min=least, max=most) if -1 != most < least:
            raise ValueError("a negative number of times")
    for field in getattr(format, "__struct_fields__", ()):
        value = getattr(format, field)
        for each in value if isinstance(value, list) else [value]:
            _check(each[1] if isinstance(each, tuple) else each)


def schemas_of(format: Any) -> list[Any]:
    """All JSON schemas in a decoded format."""
    if isinstance(format, list):
        return [schema for each in format for schema in schemas_of(each)]
    if not isinstance(format, dict):
        return []
    if format.get("type") == "json_schema":
        return [format["json_schema"]]
    return [schema for each in format.values() for schema in schemas_of(each)]
