"""What a JSON Schema (draft 2020-12) says of a value: the half of `instances` that checks.

Owns the meaning of the keywords, the reading of references, and the meter on all work done for one
schema. Malformed schemas are refused here, where they are read, so that nothing else need doubt
their shape. `format` is an annotation, hence not checked; `unevaluatedProperties`,
`unevaluatedItems`, `$dynamicRef` and `$anchor` are not looked at.
"""

import math
import operator
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from slipring.engines.simulated.schemas import patterns

Schema = Any  # as parsed from JSON: `vetted` tells that it is a boolean or an object

# Enough for schemas of hundreds of properties; a hostile one is given up within a blink.
_STEPS = 20_000
# Schemas within schemas met while checking one value: only endless references have more.
_DEEPEST = 100
# Entries of an enum that are compared in about the time of any other step.
_ENUM_PER_STEP = 16


class SchemaError(ValueError):
    """The schema is malformed, or takes too much work."""


def is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_number(value) and value == math.floor(value),
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def kinds_of(names: Any) -> list[str]:
    """The names in a `type`, which may be given as one string."""
    return [names] if isinstance(names, str) else names


def frozen(value: Any) -> object:
    """A hashable stand-in, equal where JSON Schema has values equal: 1 is 1.0 but not true."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return frozenset((key, frozen(member)) for key, member in value.items())
    return (type(value), value) if isinstance(value, bool) else value


def as_written(number: float) -> Fraction:
    """The number as a decimal: 0.1 is a tenth, not the binary fraction nearest to it."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def _is_multiple(value: Any, step: Any) -> bool:
    """Whether it is a multiple both as written and as floats divide: validators do either."""
    if as_written(value) % as_written(step):
        return False
    try:
        quotient = float(value / step)
    except OverflowError:
        return True
    return math.isinf(quotient) or quotient.is_integer()


def _are_distinct(values: list[Any]) -> bool:
    return len(set(map(frozen, values))) == len(values)


def _has_dependents(value: dict[str, Any], dependents: dict[str, list[str]]) -> bool:
    return all(name in value for key in value for name in dependents.get(key, ()))


# The keywords that need no other schema: the kind of values they are about, what they ask of one.
_RULES: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", operator.ge),
    "maximum": ("number", operator.le),
    "exclusiveMinimum": ("number", operator.gt),
    "exclusiveMaximum": ("number", operator.lt),
    "multipleOf": ("number", _is_multiple),
    "minLength": ("string", lambda value, count: len(value) >= count),
    "maxLength": ("string", lambda value, count: len(value) <= count),
    "minItems": ("array", lambda value, count: len(value) >= count),
    "maxItems": ("array", lambda value, count: len(value) <= count),
    "uniqueItems": ("array", lambda value, on: not on or _are_distinct(value)),
    "minProperties": ("object", lambda value, count: len(value) >= count),
    "maxProperties": ("object", lambda value, count: len(value) <= count),
    "required": ("object", lambda value, names: all(name in value for name in names)),
    "dependentRequired": ("object", _has_dependents),
}


def _is_kind(value: object) -> bool:
    return isinstance(value, str) and value in KINDS


def _is_schema(value: object) -> bool:
    return isinstance(value, bool | dict)


def _are(test: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(test, value))


def _maps_to(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(test, value.values()))


def _is_count(value: Any) -> bool:
    return KINDS["integer"](value) and value >= 0


_is_string = KINDS["string"]
_ONE_SCHEMA = ("not", "if", "then", "else", "items", "contains", "additionalProperties")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains")
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

# What the argument of each keyword must be for the rest of the code to rely on.
_SHAPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys((*_ONE_SCHEMA, "propertyNames"), _is_schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _are(_is_schema, least=1)),
    **dict.fromkeys(("properties", "patternProperties"), _maps_to(_is_schema)),
    **dict.fromkeys((*_COUNTS, "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(_LIMITS, is_number),
    **dict.fromkeys(("$ref", "pattern", "format"), _is_string),
    "type": lambda value: _are(_is_kind, least=1)(kinds_of(value)),
    "enum": _are(lambda _: True),
    "prefixItems": _are(_is_schema),
    "required": _are(_is_string),
    "dependentRequired": _maps_to(_are(_is_string)),
    "dependentSchemas": _maps_to(_is_schema),
    "multipleOf": lambda value: is_number(value) and value > 0,
    "uniqueItems": KINDS["boolean"],
}


class Document:
    """A schema with all it refers to, and the work still allowed on it."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._steps = _STEPS
        # By the identity of a schema, which is kept along so that it stays the only one with it.
        self._vetted: dict[int, Schema] = {}
        self._refs: dict[int, tuple[Schema, set[str]]] = {}

    def spend(self, steps: int = 1) -> None:
        """Count work, whoever does it."""
        self._steps -= steps
        if self._steps < 0:
            raise SchemaError("the schema takes too much work to satisfy")

    def vetted(self, schema: Schema) -> Schema:
        """The schema itself, once it is known to be well formed at its own level."""
        if id(schema) in self._vetted:
            return schema
        if not _is_schema(schema):
            raise SchemaError(f"a schema must be an object or a boolean, not {schema!r:.60}")
        for key in schema if isinstance(schema, dict) else ():
            if key in _SHAPES and not _SHAPES[key](schema[key]):
                raise SchemaError(f"malformed schema: {key} cannot be {schema[key]!r:.60}")
        self._vetted[id(schema)] = schema
        return schema

    def resolved(self, ref: str) -> Schema:
        """What a reference within this document points at."""
        target = self.root
        try:
            if ref != "#" and not ref.startswith("#/"):
                raise KeyError(ref)  # an anchor, or another document
            for token in unquote(ref).split("/")[1:]:
                key = token.replace("~1", "/").replace("~0", "~")
                target = target[int(key)] if isinstance(target, list) else target[key]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise SchemaError(f"$ref {ref!r:.80} points at nothing in the schema") from error
        return target

    def mentions(self, schema: Schema, refs: Collection[str]) -> bool:
        """Whether one of these references stands anywhere in the text of the schema."""
        if id(schema) not in self._refs:
            self._refs[id(schema)] = schema, self._refs_in(schema)
        return not self._refs[id(schema)][1].isdisjoint(refs)

    def _refs_in(self, schema: Schema) -> set[str]:
        found = set()
        pending = [schema]
        while pending:
            self.spend()
            part = pending.pop()
            if isinstance(part, dict):
                ref = part.get("$ref")
                found |= {ref} if isinstance(ref, str) else set()
                pending.extend(part.values())
            elif isinstance(part, list):
                pending.extend(part)
        return found

    def for_key(self, schema: dict[str, Any], key: str) -> list[Schema]:
        """The schemas that one schema has for the member of this name."""
        found = [schema["properties"][key]] if key in schema.get("properties", ()) else []
        for pattern, member in schema.get("patternProperties", {}).items():
            if patterns.matches(pattern, key, self.spend):
                found.append(member)
        return found or [schema.get("additionalProperties", True)]

    def for_index(self, schema: dict[str, Any], index: int) -> Schema:
        """The schema that one schema has for the item at this place."""
        prefix = schema.get("prefixItems", ())
        return prefix[index] if index < len(prefix) else schema.get("items", True)

    def holds(self, value: Any, schema: Schema, depth: int = 0) -> bool:
        """Whether the value is valid for the schema."""
        if isinstance(self.vetted(schema), bool):
            return bool(schema)
        self.spend(1 + len(schema.get("enum", ())) // _ENUM_PER_STEP)
        if depth > _DEEPEST:
            raise SchemaError("the schema has references that never end, or is nested too deeply")
        return (
            self._is_allowed(value, schema)
            and self._branches_hold(value, schema, depth + 1)
            and self._parts_hold(value, schema, depth + 1)
        )

    def _is_allowed(self, value: Any, schema: dict[str, Any]) -> bool:
        if "type" in schema and not any(KINDS[name](value) for name in kinds_of(schema["type"])):
            return False
        if "const" in schema and frozen(value) != frozen(schema["const"]):
            return False
        if "enum" in schema and frozen(value) not in map(frozen, schema["enum"]):
            return False
        rules = ((key, *_RULES[key]) for key in schema if key in _RULES)
        return all(rule(value, schema[key]) for key, kind, rule in rules if KINDS[kind](value))

    def _branches_hold(self, value: Any, schema: dict[str, Any], depth: int) -> bool:
        def holds(branch: Schema) -> bool:
            return self.holds(value, branch, depth)

        return (
            all(map(holds, schema.get("allOf", ())))
            and ("$ref" not in schema or holds(self.resolved(schema["$ref"])))
            and ("anyOf" not in schema or any(map(holds, schema["anyOf"])))
            and ("oneOf" not in schema or sum(map(holds, schema["oneOf"])) == 1)
            and ("not" not in schema or not holds(schema["not"]))
            and ("if" not in schema or holds(schema.get(_outcome(holds(schema["if"])), True)))
        )

    def _parts_hold(self, value: Any, schema: dict[str, Any], depth: int) -> bool:
        if isinstance(value, str) and "pattern" in schema:
            return patterns.matches(schema["pattern"], value, self.spend)
        if isinstance(value, list):
            return self._items_hold(value, schema, depth)
        if isinstance(value, dict):
            return self._members_hold(value, schema, depth)
        return True

    def _items_hold(self, value: list[Any], schema: dict[str, Any], depth: int) -> bool:
        if "contains" in schema:
            contained = sum(self.holds(item, schema["contains"], depth) for item in value)
            least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
            if not least <= contained <= most:
                return False
        items = enumerate(value)
        return all(self.holds(item, self.for_index(schema, at), depth) for at, item in items)

    def _members_hold(self, value: dict[str, Any], schema: dict[str, Any], depth: int) -> bool:
        dependents = schema.get("dependentSchemas", {})
        names = schema.get("propertyNames", True)
        return (
            all(self.holds(key, names, depth) for key in value)
            and all(self.holds(value, dependents[key], depth) for key in value if key in dependents)
            and all(
                self.holds(member, member_schema, depth)
                for key, member in value.items()
                for member_schema in self.for_key(schema, key)
            )
        )


def _outcome(condition: bool) -> str:
    return "then" if condition else "else"
