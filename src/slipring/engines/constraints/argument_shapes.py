"""Shapes of arguments in layouts that do not write them as JSON, by a tool's JSON schema.

A notation says how a layout writes strings, lists and objects. Properties have the order of the schema;
optional ones may be left out. References are followed, recursive ones to a limited depth: deeper values are
not allowed. A schema that no shape can describe is refused if it is strict, otherwise any value is allowed.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final

from slipring.base.errors import InvalidRequest
from slipring.engines.constraints.shape import (
    Json,
    Mark,
    Optional,
    Pattern,
    Repeated,
    Shape,
    TextUntil,
    choice,
    sequence,
)
from slipring.prompts.parsing.calls.json_scanner import type_of
from slipring.prompts.parsing.output_format import BracedCalls, NestedTagCalls, TaggedCalls

_MAX_DEPTH: Final = 8
"""Levels of values and references that are described."""
_ANY_DEPTH: Final = 2
"""Levels of values that have no schema."""
_MAX_SHAPES: Final = 4000
"""Values that are described for one tool."""
_KEY: Final = Pattern(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")
_SCALARS: Final = ("string", "number", "boolean", "null")
_TYPES: Final = ("object", "array", *_SCALARS)
_LIMITS: Final = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("pattern", "format", "minLength", "maxLength"),
)
_STRUCTURED: Final = frozenset({"object", "array"})
_UNSUPPORTED: Final = frozenset(
    {"allOf", "not", "if", "uniqueItems", "contains", "prefixItems", "patternProperties", "propertyNames"}
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}
)
_DAY: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS: Final = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}[Tt]{_TIME}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[A-Za-z0-9_.+\-]+@[A-Za-z0-9\-]+(\.[A-Za-z0-9\-]+)+",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
}
_ANY_TEXT: Final = r"(.|\n)*"
_REFERENCE: Final = re.compile(r'"\$ref": "([^"]*)"')
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")
_SYNTAX: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()|]", re.DOTALL)
_UNLIKE_JSON: Final = r"([^ \t\r\n\[{](.|\n)*)?"
"""Text that the parser does not take for a list or an object."""


class _Unsupported(Exception):
    """No shape describes the schema. The message names the reason."""


class _TooDeep(_Unsupported):
    def __init__(self) -> None:
        super().__init__("it is nested too deeply")


class ValueShapes(ABC):
    """Describes the arguments of one tool in one notation."""

    def __init__(self, schema: bytes, *, strict: bool, param: str) -> None:
        self._root: dict[str, Any] = json.loads(schema)
        self._strict, self._param = strict, param
        self._count = 0

    def arguments(self, end: str) -> Shape:
        """The shape of all arguments and of ``end`` after them. Raises ``InvalidRequest`` if the tool is
        strict and its schema cannot be enforced."""
        try:
            objects = list(self._branches(self._root, 0))
            return choice([self.members(each or {}, end, 1) for each in objects])
        except _Unsupported as error:
            if not self._strict:
                return self.members({}, end, 1)
            raise InvalidRequest.at(
                self._param, f"this schema cannot be enforced in the call format of this model: {error}"
            ) from None

    @abstractmethod
    def members(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        """The members of an object and ``end`` after them."""

    @abstractmethod
    def string(self, schema: dict[str, Any], end: str, *, is_alone: bool) -> Shape:
        """A string. ``is_alone``: the value cannot be a list or an object instead."""

    @abstractmethod
    def array(self, items: Any, end: str, depth: int) -> Shape:
        """A list of one item or more."""

    @abstractmethod
    def object(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        """An object."""

    @abstractmethod
    def literal(self, value: Any) -> str:
        """Exactly this value."""

    def typed(self, type: str, shape: Shape) -> Shape:
        """A value, after what the notation writes about its type."""
        return shape

    def value(self, schema: Any, end: str, depth: int) -> Shape:
        """A value and ``end`` after it."""
        self._count += 1
        if self._count > _MAX_SHAPES:
            raise _Unsupported("it is too large")
        branches = list(self._branches(schema, depth))
        if None in branches:
            return self.anything(end, depth)
        known = [branch for branch in branches if branch is not None]
        is_alone = _STRUCTURED.isdisjoint(type for branch in known for type in _types(branch))
        options: list[Shape] = []
        for branch in known:
            for type in _types(branch):
                try:
                    options.append(self._of_type(branch, type, end, depth, is_alone=is_alone))
                except _TooDeep:
                    continue
        if not options:
            raise _TooDeep
        return choice(options)

    def anything(self, end: str, depth: int) -> Shape:
        """Any value, of which lists and objects have few levels."""
        types = _TYPES if depth <= _ANY_DEPTH else _SCALARS
        is_alone = depth > _ANY_DEPTH
        return choice([self._of_type({}, type, end, depth, is_alone=is_alone) for type in types])

    def _branches(self, schema: Any, depth: int) -> Iterator[dict[str, Any] | None]:
        """The alternatives of a schema, each with one or more types; None for one that allows anything."""
        if depth > _MAX_DEPTH:
            raise _TooDeep
        if schema is True or schema == {}:
            yield None
            return
        if not isinstance(schema, dict):
            raise _Unsupported("it allows no value")
        for key in ("$ref", "anyOf", "oneOf", "allOf"):
            if key in schema and (key != "allOf" or len(schema[key]) == 1):
                others = {name: each for name, each in schema.items() if name != key}
                found = [self._referenced(schema[key])] if key == "$ref" else schema[key]
                for each in found:
                    yield from self._branches(
                        {**others, **each} if isinstance(each, dict) else each, depth + 1
                    )
                return
        if self._strict and (unsupported := _UNSUPPORTED & schema.keys()):
            raise _Unsupported(f"'{min(unsupported)}' is not supported")
        yield schema if _types(schema) else None

    def _of_type(self, schema: dict[str, Any], type: str, end: str, depth: int, *, is_alone: bool) -> Shape:
        """A value of one of the types of a schema."""
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if type == "boolean" and allowed is None:
            allowed = [True, False]
        if type == "null" and allowed is None:
            allowed = [None]
        if allowed is not None:
            values = [each for each in allowed if type_of(json.dumps(each)) == _json_type(type)]
            shape = choice([Mark(self.literal(each) + end) for each in values])
        elif type == "string":
            shape = self.string(schema, end, is_alone=is_alone)
        elif type == "array":
            shape = self._array(schema, end, depth)
        elif type == "object":
            shape = self.object(schema, end, depth)
        else:
            shape = sequence(self.json(schema, type), Mark(end))
        return self.typed(_json_type(type), shape)

    def _array(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        if self._strict and not schema.keys().isdisjoint(("minItems", "maxItems")):
            raise _Unsupported("the length of lists cannot be limited")
        empty = Mark(self.literal([]) + end)
        try:
            return choice([empty, self.array(schema.get("items", {}), end, depth + 1)])
        except _TooDeep:
            return empty

    def described(
        self, schema: dict[str, Any], describe: Callable[[str, Any], Shape]
    ) -> list[tuple[Shape, bool]]:
        """The shape of each member of an object, and whether it is required. Optional members that are
        nested too deeply are left out."""
        named, required = schema.get("properties"), schema.get("required", [])
        found: list[tuple[Shape, bool]] = []
        for key, each in named.items() if isinstance(named, dict) else ():
            try:
                found.append((describe(key, each), key in required))
            except _TooDeep:
                if key in required:
                    raise
        return found

    def json(self, schema: dict[str, Any], type: str) -> Shape:
        """A number or a string as JSON."""
        limits = {key: schema[key] for key in _LIMITS if key in schema}
        return Json(
            json.dumps({"type": type, **limits}, ensure_ascii=False).encode(), self._strict, self._param
        )

    def regex(self, schema: dict[str, Any]) -> str:
        """A regular expression for the text of a string; empty if its schema allows any."""
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
        is_limited = bool(shortest) or longest != ""
        pattern, format = schema.get("pattern"), schema.get("format")
        if self._strict and is_limited and (pattern or format):
            raise _Unsupported("the length of a string with a pattern or a format cannot be limited")
        if isinstance(pattern, str):
            return self._whole_text(pattern)
        if isinstance(format, str):
            if self._strict and format not in _FORMATS:
                raise _Unsupported(f"the format '{format}' is not supported")
            return _FORMATS.get(format, "")
        return f"(.|\\n){{{shortest},{longest}}}" if is_limited else ""

    def _whole_text(self, pattern: str) -> str:
        """A regular expression for all texts in which a pattern occurs."""
        begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
        inner = pattern[begins : len(pattern) - ends]
        if _has_outer_choice(inner) and (begins or ends):
            if self._strict:
                raise _Unsupported("a pattern has anchors that are not at its ends")
            return ""
        return f"{'' if begins else _ANY_TEXT}(?:{inner}){'' if ends else _ANY_TEXT}"

    def _referenced(self, reference: Any) -> Any:
        place: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _Unsupported("a reference leads out of it")
        for step in filter(None, reference[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(place, dict) or name not in place:
                raise _Unsupported("a reference leads nowhere")
            place = place[name]
        return place


class TaggedValues(ValueShapes):
    """Tagged arguments: strings as they are, other values as JSON."""

    def __init__(self, layout: TaggedCalls, schema: bytes, *, strict: bool, param: str) -> None:
        super().__init__(schema, strict=strict, param=param)
        self._layout = layout

    def members(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        opening, closing = self._layout.key_open, self._layout.value_close
        if _accepts_any_key(schema):
            member = sequence(_KEY, self.anything(closing, depth))
            return sequence(Optional(sequence(Mark(opening), Repeated(member, opening))), Mark(end))

        def describe(key: str, each: Any) -> Shape:
            return sequence(Mark(opening + escaped(self._layout, key)), self.value(each, closing, depth))

        members = self.described(schema, describe)
        return sequence(*(each if required else Optional(each) for each, required in members), Mark(end))

    def typed(self, type: str, shape: Shape) -> Shape:
        layout = self._layout
        is_text = type == "string" or not layout.json_attribute
        attribute = layout.string_attribute if is_text else layout.json_attribute
        return sequence(Mark(attribute.replace("{type}", type) + layout.key_close), shape)

    def string(self, schema: dict[str, Any], end: str, *, is_alone: bool) -> Shape:
        regex = self.regex(schema)
        if regex:
            return _text(regex, end.rstrip(), end)
        # The parser ends a value at the mark, with or without the white space before it.
        return _text("" if is_alone else _UNLIKE_JSON, end.strip(), end)

    def array(self, items: Any, end: str, depth: int) -> Shape:
        return self._any_json({"type": "array", "items": items, "minItems": 1}, end)

    def object(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        return self._any_json({**schema, "type": "object"}, end)

    def literal(self, value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _any_json(self, schema: dict[str, Any], end: str) -> Shape:
        """A value as JSON. Its schema may refer to definitions of the tool's."""
        text = json.dumps(schema)
        references = set(_REFERENCE.findall(text))
        if any(not each.startswith(_DEFINITIONS) for each in references):
            raise _Unsupported("a reference does not lead to a definition")
        known = {key: self._root[key] for key in ("$defs", "definitions") if references and key in self._root}
        whole = json.dumps({**schema, **known}, ensure_ascii=False).encode()
        return sequence(Json(whole, self._strict, self._param), Mark(end))


class NestedTagValues(ValueShapes):
    """Trees of tags that are named by their keys."""

    def __init__(self, layout: NestedTagCalls, schema: bytes, *, strict: bool, param: str) -> None:
        super().__init__(schema, strict=strict, param=param)
        self._prefix, self._item_tag = layout.tag_prefix, layout.item_tag

    def members(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        if _accepts_any_key(schema):
            return self.anything(end, depth)

        def describe(key: str, each: Any) -> Shape:
            return sequence(Mark(f"{self._prefix}<{key}>"), self.value(each, self._closing(key), depth))

        members = self.described(schema, describe)
        return sequence(*(each if required else Optional(each) for each, required in members), Mark(end))

    def anything(self, end: str, depth: int) -> Shape:
        return TextUntil(end)

    def string(self, schema: dict[str, Any], end: str, *, is_alone: bool) -> Shape:
        regex = self.regex(schema)
        return _text(regex, end, end) if regex else _text("", self._prefix, end)

    def array(self, items: Any, end: str, depth: int) -> Shape:
        opening = f"{self._prefix}<{self._item_tag}>"
        item = self.value(items, self._closing(self._item_tag), depth)
        return sequence(Mark(opening), Repeated(item, opening), Mark(end))

    def object(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        return self.members(schema, end, depth + 1)

    def literal(self, value: Any) -> str:
        if isinstance(value, list):
            value = [(self._item_tag, each) for each in value]
        elif isinstance(value, dict):
            value = list(value.items())
        else:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return "".join(
            f"{self._prefix}<{key}>{self.literal(each)}{self._closing(key)}" for key, each in value
        )

    def _closing(self, key: str) -> str:
        return f"{self._prefix}</{key}>"


class BracketedValues(ValueShapes):
    """What Python's and Gemma's notations share: lists in brackets, objects in braces."""

    separator: str

    @abstractmethod
    def key(self, key: str, depth: int) -> Mark:
        """The key of a member, with what separates it from its value. ``depth``: 1 for arguments."""

    @abstractmethod
    def any_key(self, depth: int) -> Shape:
        """Any key, with what separates it from its value."""

    def members(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        if _accepts_any_key(schema):
            member = sequence(self.any_key(depth), self.anything("", depth))
            return sequence(Optional(Repeated(member, self.separator)), Mark(end))

        def describe(key: str, each: Any) -> Shape:
            return sequence(self.key(key, depth), self.value(each, "", depth))

        return sequence(_separated(self.described(schema, describe), self.separator), Mark(end))

    def array(self, items: Any, end: str, depth: int) -> Shape:
        return sequence(Mark("["), Repeated(self.value(items, "", depth), self.separator), Mark("]" + end))

    def object(self, schema: dict[str, Any], end: str, depth: int) -> Shape:
        return sequence(Mark("{"), self.members(schema, "}" + end, depth + 1))


class BracedValues(BracketedValues):
    """Unquoted keys, and strings between quote tokens."""

    separator = ","

    def __init__(self, layout: BracedCalls, schema: bytes, *, strict: bool, param: str) -> None:
        super().__init__(schema, strict=strict, param=param)
        self._quote = layout.quote

    def key(self, key: str, depth: int) -> Mark:
        return Mark(f"{key}:")

    def any_key(self, depth: int) -> Shape:
        return sequence(_KEY, Mark(":"))

    def string(self, schema: dict[str, Any], end: str, *, is_alone: bool) -> Shape:
        return sequence(Mark(self._quote), _text(self.regex(schema), self._quote, self._quote + end))

    def literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote}{value}{self._quote}"
        if isinstance(value, list):
            return f"[{self.separator.join(map(self.literal, value))}]"
        if isinstance(value, dict):
            return f"{{{self.separator.join(f'{key}:{self.literal(each)}' for key, each in value.items())}}}"
        return json.dumps(value)


class PythonValues(BracketedValues):
    """Python literals within keyword arguments. Strings and numbers are written as in JSON."""

    separator = ", "

    def key(self, key: str, depth: int) -> Mark:
        return Mark(f"{key}=" if depth == 1 else f"{json.dumps(key, ensure_ascii=False)}: ")

    def any_key(self, depth: int) -> Shape:
        return sequence(_KEY, Mark("=")) if depth == 1 else sequence(Mark('"'), _KEY, Mark('": '))

    def string(self, schema: dict[str, Any], end: str, *, is_alone: bool) -> Shape:
        return sequence(self.json(schema, "string"), Mark(end))

    def literal(self, value: Any) -> str:
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, list):
            return f"[{self.separator.join(map(self.literal, value))}]"
        if isinstance(value, dict):
            members = (f"{json.dumps(key)}: {self.literal(each)}" for key, each in value.items())
            return f"{{{self.separator.join(members)}}}"
        return json.dumps(value, ensure_ascii=False)


def escaped(layout: TaggedCalls, name: str) -> str:
    """A name or key as a layout writes it."""
    return name.replace("&", "&amp;").replace('"', "&quot;") if layout.has_escapes else name


def _text(regex: str, mark: str, end: str) -> Shape:
    """Text up to a mark, which is part of ``end``, and the rest of ``end``."""
    return sequence(TextUntil(mark, regex), Mark(end[end.index(mark) + len(mark) :]))


def _separated(members: list[tuple[Shape, bool]], separator: str) -> Shape:
    """Members in their order, of which some are optional, with separators between those that are there."""
    between = Mark(separator)
    anchor = next((number for number, (_, required) in enumerate(members) if required), None)

    def following(first: int) -> list[Shape]:
        return [
            sequence(between, each) if required else Optional(sequence(between, each))
            for each, required in members[first:]
        ]

    if anchor is not None:
        before = [Optional(sequence(each, between)) for each, _ in members[:anchor]]
        return sequence(*before, members[anchor][0], *following(anchor + 1))
    if not members:
        return sequence()
    return Optional(
        choice([sequence(each, *following(number + 1)) for number, (each, _) in enumerate(members)])
    )


def _accepts_any_key(schema: dict[str, Any]) -> bool:
    """Whether the keys of an object are up to the model."""
    return not schema.get("properties") and schema.get("additionalProperties") is not False


def _types(schema: dict[str, Any]) -> list[str]:
    """The types that a schema allows; empty if it does not say."""
    named = schema.get("type")
    if isinstance(named, list):
        return [each for each in named if isinstance(each, str)]
    if isinstance(named, str):
        return [named]
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if allowed:
        return list(dict.fromkeys(type_of(json.dumps(each)) for each in allowed))
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def _json_type(type: str) -> str:
    return "number" if type == "integer" else type


def _has_outer_choice(pattern: str) -> bool:
    """Whether a regular expression has alternatives outside of all groups."""
    depth = 0
    for part in _SYNTAX.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and depth == 0:
            return True
    return False
