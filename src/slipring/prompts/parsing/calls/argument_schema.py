"""Types of arguments by a tool's JSON schema, for layouts that write values without quotes.

- A value whose schema is a string stays as it is, even if it looks like JSON.
- Where the schema allows other types, a value that is JSON of such a type is JSON. Python's spellings
  (``True``, ``None``, ``['a']``) are accepted. If a string is allowed as well, JSON takes precedence.
- Without a schema, a number, ``true``, ``false``, ``null``, an object or an array is JSON.
- Everything else stays a string, so that nothing is lost.
"""

from typing import Any, Final

import msgspec

from slipring.prompts.parsing.calls.json_scanner import quoted, type_of
from slipring.prompts.parsing.calls.python_literals import python_literal

_MAX_STEPS: Final = 64
"""Schemas that one question about types looks at: references may form circles."""
JSON_TYPES: Final = frozenset({"null", "boolean", "number", "string", "object", "array"})
_ANY: Final = JSON_TYPES - {"string"}
_SPELLINGS: Final = {"True": "true", "False": "false", "None": "null"}

_schema = msgspec.json.Decoder(dict[str, Any])


class ArgumentSchema:
    """The schema of a tool's arguments."""

    __slots__ = ("required", "root")

    def __init__(self, schema: bytes) -> None:
        self.root: dict[str, Any] = _schema.decode(schema)
        required = self.root.get("required")
        self.required = frozenset(required if isinstance(required, list) else ())

    def knows(self, key: str) -> bool:
        """Whether the schema names the argument."""
        return any(key in _properties(schema) for schema in self._alternatives(self.root))

    def is_string(self, key: str) -> bool:
        """Whether the argument can be nothing but a string."""
        return self.types(self.property(self.root, key)) == {"string"}

    def argument(self, key: str, text: str) -> str:
        """The JSON text of an argument that the model wrote as ``text``."""
        return self.value(self.property(self.root, key), text)

    def value(self, schemas: Any, text: str) -> str:
        """The JSON text of a value that the model wrote as ``text``."""
        types = self.types(schemas)
        if types == {"string"}:
            return quoted(text)
        return json_of(text, (types or _ANY) - {"string"}) or quoted(text)

    def types(self, schemas: Any) -> frozenset[str]:
        """The types that any of the schemas allows; empty if they say nothing. An integer is a number."""
        found: set[str] = set()
        for schema in self._alternatives(schemas):
            found |= _types(schema)
        return frozenset("number" if each == "integer" else each for each in found)

    def property(self, schemas: Any, key: str) -> list[Any]:
        """The schemas of a member of an object."""
        found = []
        for schema in self._alternatives(schemas):
            named = _properties(schema).get(key, schema.get("additionalProperties"))
            if isinstance(named, dict):
                found.append(named)
        return found

    def items(self, schemas: Any) -> list[Any]:
        """The schemas of an entry of a list."""
        found = [schema.get("items") for schema in self._alternatives(schemas)]
        return [each for each in found if isinstance(each, dict)]

    def _alternatives(self, schemas: Any) -> list[dict[str, Any]]:
        """The schemas that apply: the given ones, and what their references and combinations name."""
        queue = list(schemas) if isinstance(schemas, list) else [schemas]
        found: list[dict[str, Any]] = []
        while queue and len(found) < _MAX_STEPS:
            schema = queue.pop(0)
            if not isinstance(schema, dict):
                continue
            found.append(schema)
            if isinstance(reference := schema.get("$ref"), str):
                queue.append(self._referenced(reference))
            for key in ("anyOf", "oneOf", "allOf"):
                if isinstance(combined := schema.get(key), list):
                    queue += combined[:_MAX_STEPS]
        return found

    def _referenced(self, reference: str) -> Any:
        """The part of the schema that a local reference names; None if there is none."""
        place: Any = self.root
        if not reference.startswith("#"):
            return None
        for step in reference[1:].split("/")[1:_MAX_STEPS]:
            if not isinstance(place, dict):
                return None
            place = place.get(step.replace("~1", "/").replace("~0", "~"))
        return place


def json_of(text: str, types: frozenset[str] | set[str]) -> str:
    """The text as JSON of one of the types, or an empty string."""
    text = text.strip()
    spelled = _SPELLINGS.get(text, text)
    if type_of(spelled) in types:
        return spelled
    if text.startswith(("[", "{")) and not types.isdisjoint(("array", "object")):
        literal = python_literal(text)
        if literal is not None and type_of(literal) in types:
            return literal
    return ""


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _types(schema: dict[str, Any]) -> set[str]:
    """The types that one schema names or, without a ``type``, those of its allowed values."""
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {each for each in named if isinstance(each, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if isinstance(values, list) and values:
        return {type_of(msgspec.json.encode(value).decode()) for value in values}
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()
