"""Tools declared as TypeScript types: the value of ``tools_ts_str``, a variable of the templates of Kimi K2.5
and later, for which Moonshot's tokenizer brings code.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_INDENT = "  "
_MAX_DEPTH = 64
_SELF = "parameters"
_LIMITS: Mapping[str, tuple[str, ...]] = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
"""The keywords of each type that are written as a comment."""
_NAMES = {"integer": "number", "object": "{}", "array": "Array<any>"}
"""How types are written that are one of several."""


class _Undeclarable(Exception):
    """A schema that the notation has no form for."""


def declare_tools(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The declarations of tools in the form of chat completions; None if a schema cannot be declared, upon
    which templates write the tools as JSON."""
    try:
        declared = [_Function(tool["function"]).declaration() for tool in tools]
    except (_Undeclarable, AttributeError, TypeError):  # a client's schema may have any JSON anywhere
        return None
    return "\n".join(("# Tools\n\n## functions\nnamespace functions {", *declared, "}\n"))


class _Function:
    """Declares one function, and the interfaces that its schema defines."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        self._function = function
        self._schema: Mapping[str, Any] = function.get("parameters") or {}
        self._definitions: dict[str, Any] = {}
        self._refers_to_itself = False

    def declaration(self) -> str:
        parameters = self._object(self._schema, "", 0)
        lines = []
        if self._refers_to_itself:
            properties = self._properties(self._schema, self._schema.get("properties", {}), _INDENT, 0)
            body = ",\n".join(properties)
            lines.append(f"interface {_SELF} {{\n{body}\n}}" if body else f"interface {_SELF} {{}}")
            parameters = _SELF
        definitions = dict(self._definitions)
        for name, schema in definitions.items():
            comment = schema.get("description", "") if isinstance(schema, Mapping) else ""
            lines += _comments(comment, "") if comment else []
            lines.append(f"interface {name} {self._type(schema, '', 0)}")
        if self._definitions != definitions:  # definitions within definitions
            raise _Undeclarable
        if description := self._function.get("description"):
            lines += _comments(description, "")
        lines.append(f"type {self._function['name']} = (_: {parameters}) => any;")
        return "\n".join(lines)

    def _type(self, schema: Any, indent: str, depth: int) -> str:
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            raise _Undeclarable
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self._type(each, indent, depth + 1) for each in schema["anyOf"])
        if "enum" in schema:
            return " | ".join(
                f'"{each}"' if isinstance(each, str) else json.dumps(each) for each in schema["enum"]
            )
        type: Any = schema.get("type", "any" if not schema else None)
        if isinstance(type, list):
            return " | ".join(str(_NAMES.get(each, each)) for each in type)
        if type == "object":
            return self._object(schema, indent, depth + 1)
        if type == "array":
            return self._array(schema, indent, depth + 1)
        if not isinstance(type, str):
            raise _Undeclarable
        return "number" if type == "integer" else type

    def _reference(self, reference: Any) -> str:
        if reference == "#":
            self._refers_to_itself = True
            return _SELF
        name = str(reference).removeprefix("#/$defs/")
        if name == reference or name not in self._definitions:
            raise _Undeclarable
        return name

    def _object(self, schema: Mapping[str, Any], indent: str, depth: int) -> str:
        self._definitions |= schema.get("$defs") or {}
        required = schema.get("required") or ()
        properties = schema.get("properties") or {}
        inner = indent + _INDENT
        ordered = dict(sorted(properties.items(), key=lambda entry: (entry[0] not in required, entry[0])))
        lines = self._properties(schema, ordered, inner, depth)
        others = schema.get("additionalProperties")
        if others is not None:
            type = "never" if others is False else self._type(others, inner, depth)
            lines.append(f"{inner}[k: string]: {type}")
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

    def _properties(
        self, schema: Mapping[str, Any], properties: Mapping[str, Any], indent: str, depth: int
    ) -> list[str]:
        required = schema.get("required") or ()
        lines = []
        for name, each in properties.items():
            comments = _comments_of(each, indent)
            if isinstance(each, Mapping) and each.get("default") is not None:
                default = json.dumps(each["default"], ensure_ascii=False, sort_keys=True)
                comments.append(f"{indent}// Default: {default}")
            mark = "" if name in required else "?"
            lines.append("\n".join((*comments, f"{indent}{name}{mark}: {self._type(each, indent, depth)}")))
        return lines

    def _array(self, schema: Mapping[str, Any], indent: str, depth: int) -> str:
        items = schema.get("items") or {}
        inner = indent + _INDENT
        if comments := _comments_of(items, inner):
            lines = ("Array<", *comments, inner + self._type(items, inner, depth), f"{indent}>")
            return "\n".join(lines)
        return f"Array<{self._type(items, indent, depth)}>"


def _comments_of(schema: Any, indent: str) -> list[str]:
    """What a schema says beside its type."""
    if not isinstance(schema, Mapping):
        return []
    comments = [*_comments(schema["description"], indent)] if schema.get("description") else []
    is_plain = not {"$ref", "anyOf", "enum"} & schema.keys()
    type = schema.get("type")
    keys = _LIMITS.get(type, ()) if is_plain and isinstance(type, str) else ()
    if limits := ", ".join(f"{key}: {schema[key]}" for key in keys if key in schema):
        comments.append(f"{indent}// {limits}")
    return comments


def _comments(text: str, indent: str) -> Iterable[str]:
    return (f"{indent}// {line}" if line else "" for line in text.split("\n"))
