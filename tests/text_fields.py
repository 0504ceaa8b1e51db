"""The fields of protocol types in which a text can stand, derived from the types, with values for each.

A field of a type that this module does not know, or raw JSON without a form in ``RAW``, fails the test that
asks: somebody has to decide what can be in it.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import UnsetType, inspect

Variant = tuple[str, Any]
"""The path of a field, and a value of the whole in which that field has the word."""

_SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
RAW: dict[str, Any] = {
    "annotations": {"type": "url_citation", "url": "u", "title": "{}", "start_index": 0, "end_index": 1},
    "arguments": {"x": "{}"},
    "content": [{"type": "text", "text": "{}"}],
    "context_management": {"type": "compaction", "compact_threshold": 1000, "more": "{}"},
    "conversation": {"id": "{}"},
    "format": {"type": "json_schema", "name": "{}", "schema": _SCHEMA},
    "input": [{"type": "message", "role": "user", "content": "{}"}],
    "input_schema": {"type": "object", "properties": {"x": {"description": "{}"}}},
    "output_schema": {"type": "object", "properties": {"x": {"description": "{}"}}},
    "parameters": {"type": "object", "properties": {"{}": {"type": "string"}}},
    "schema": {"type": "object", "properties": {"{}": {"type": "string"}}},
    "tool_choice": {"type": "function", "name": "{}"},
    "tools": [{"type": "function", "name": "f", "description": "{}", "parameters": _SCHEMA}],
}
"""Forms of fields that are raw JSON, by name: ``{}`` stands for the word."""

NEEDED = {"computer_screenshot": {"file_id": "hi"}}
"""Fields without which a value is refused, although its type does not say so."""


def text_fields(kind: Any, word: str) -> list[Variant]:
    """All fields of a type that can contain the word."""
    return list(_variants(inspect.type_info(kind), "", word))


def _variants(info: inspect.Type, name: str, word: str) -> Iterator[Variant]:
    if isinstance(info, inspect.StrType):
        yield "", word
    elif isinstance(info, inspect.AnyType):
        yield "", word
        yield ".*", {word: 1}
    elif isinstance(info, inspect.RawType):
        yield "", _filled(RAW[name], word)
    elif isinstance(info, inspect.StructType):
        yield from _struct_variants(info, word)
    elif isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _variants(each, name, word)
    elif isinstance(info, inspect.ListType):
        yield from ((path, [value]) for path, value in _variants(info.item_type, name, word))
    elif isinstance(info, inspect.DictType):
        yield ".*", {word: _least(info.value_type, name)}
        yield from ((f".*{path}", {"k": value}) for path, value in _variants(info.value_type, name, word))
    else:
        assert isinstance(info, _WITHOUT_TEXT), info


_WITHOUT_TEXT = (
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.LiteralType,
    inspect.CustomType,  # ``UNSET``
)


def _struct_variants(info: inspect.StructType, word: str) -> Iterator[Variant]:
    least = _least(info, "")
    tag = f"<{info.tag}>" if info.tag is not None else ""
    for field in info.fields:
        for path, value in _variants(field.type, field.encode_name, word):
            yield f"{tag}.{field.encode_name}{path}", {**least, field.encode_name: value}


def _least(info: inspect.Type, name: str) -> Any:
    """A valid value without the word."""
    if isinstance(info, inspect.UnionType):
        return _least(info.types[0], name)
    if isinstance(info, inspect.StructType):
        tagged = {info.tag_field: info.tag} if info.tag is not None else {}
        required = {each.encode_name: each.type for each in info.fields if each.required}
        more = NEEDED.get(str(info.tag), {})
        return {**tagged, **more, **{each: _least(kind, each) for each, kind in required.items()}}
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    if isinstance(info, inspect.RawType):
        return _filled(RAW[name], "hi")
    if isinstance(info, inspect.CustomType):
        assert info.cls is UnsetType
        return None
    of_type: dict[type, Any] = {
        inspect.StrType: "hi",
        inspect.AnyType: "hi",
        inspect.IntType: 1,
        inspect.FloatType: 0.5,
        inspect.BoolType: True,
        inspect.ListType: [],
        inspect.DictType: {},
        inspect.NoneType: None,
    }
    return of_type[type(info)]


def _filled(form: Any, word: str) -> Any:
    if isinstance(form, str):
        return word if form == "{}" else form
    if isinstance(form, list):
        return [_filled(each, word) for each in form]
    if isinstance(form, dict):
        return {_filled(name, word): _filled(each, word) for name, each in form.items()}
    return form


def vocabulary(kinds: list[Any]) -> tuple[set[str], set[str]]:
    """The names of all fields of types, and the words that can be values of some."""
    names: set[str] = set()
    words: set[str] = set()
    waiting = list(inspect.multi_type_info(kinds))
    seen: set[type] = set()
    while waiting:
        info = waiting.pop()
        if isinstance(info, inspect.StructType) and info.cls not in seen:
            seen.add(info.cls)
            if info.tag is not None:
                words.add(str(info.tag))
            names |= {field.encode_name for field in info.fields}
            waiting += [field.type for field in info.fields]
        elif isinstance(info, inspect.UnionType):
            waiting += info.types
        elif isinstance(info, inspect.ListType):
            waiting.append(info.item_type)
        elif isinstance(info, inspect.DictType):
            waiting.append(info.value_type)
        elif isinstance(info, inspect.LiteralType):
            words |= {value for value in info.values if isinstance(value, str)}
    return names, words
