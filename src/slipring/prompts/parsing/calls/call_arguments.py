"""The arguments of calls: from what a model wrote to JSON that suits the tool's schema.

``ArgumentSchema`` says what a value is that was written without quotes:

- A value whose schema is a string stays as it is, even if it looks like JSON.
- Where the schema allows other types, a value that is JSON of such a type is JSON. Python's spellings
  (``True``, ``None``, ``['a']``) are accepted. If a string is allowed as well, JSON takes precedence.
- Without a schema, a number, ``true``, ``false``, ``null``, an object or an array is JSON.
- Everything else stays a string, so that nothing is lost.

``stream_json`` and ``MemberStream`` emit arguments as they arrive, once the name of an offered function is
certain. The last brace is held back until the call is complete. So a call that the model breaks off has no
complete JSON as its arguments, and no client can run it by mistake. The calls of custom tools have no status
that could say the same. Their input (the string in ``{"input": "…"}``, decoded) is therefore streamed only if
a grammar enforces the rest of the call.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from slipring.prompts.parsing.calls.json_scanner import Members, object_text, quoted, type_of
from slipring.prompts.parsing.calls.python_literals import python_literal
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, Reading
from slipring.protocol.tools.toolset import CallableTool

_MAX_STEPS: Final = 64
"""Schemas that one question about types looks at: references may form circles."""
JSON_TYPES: Final = frozenset({"null", "boolean", "number", "string", "object", "array"})
_ANY: Final = JSON_TYPES - {"string"}
_SPELLINGS: Final = {"True": "true", "False": "false", "None": "null"}


class ArgumentSchema:
    """The schema of a tool's arguments."""

    __slots__ = ("required", "root")

    def __init__(self, schema: bytes) -> None:
        self.root: dict[str, Any] = _object.decode(schema)
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


class _CustomArguments(Struct, forbid_unknown_fields=True):
    """The arguments of a call to a custom tool."""

    input: str


_object = msgspec.json.Decoder(dict[str, Any])
_custom_arguments = msgspec.json.Decoder(_CustomArguments | str)
_string = msgspec.json.Decoder(str)
_INVALID: Final = (ValueError, LookupError, RecursionError)


def arguments_of_json(tool: CallableTool, arguments: str) -> str:
    """The arguments of a call that are written as JSON: an object, or a string that contains one. For a
    custom tool, its input. Raises ``BrokenCall`` if they are something else."""
    try:
        data = arguments.encode()
        return _custom_input(data) if tool.kind == "custom" else _function_arguments(data)
    except _INVALID:
        raise BrokenCall from None


def arguments_of_members(tool: CallableTool, members: Members) -> str:
    """The arguments of a call that are written one by one. A custom tool takes exactly one, a string, under
    any name. Raises ``BrokenCall`` if the arguments do not suit the tool."""
    if tool.kind == "custom":
        if len(members) != 1:
            raise BrokenCall
        return arguments_of_json(tool, members[0][1])
    return arguments_of_json(tool, object_text(members))


def _function_arguments(data: bytes) -> str:
    """A function's arguments as the model wrote them: a JSON object, or a JSON string that contains one."""
    text = _string.decode(data) if data.startswith(b'"') else data.decode()
    _object.decode(text)
    return text


def _custom_input(data: bytes) -> str:
    value = _custom_arguments.decode(data)
    return value if isinstance(value, str) else value.input


_IN_STRING: Final = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_ESCAPE: Final = re.compile(
    r"""
      \\u(?P<high>[dD][89abAB]HH)\\u(?P<low>[dD][c-fC-F]HH)
    | (?P<half>\\ (u (H{0,3} | [dD][89abAB]HH (\\ (uH{0,3})?)?) )?)\Z
    | \\u(?P<code>HHHH)
    | \\(?P<letter>.)
    """.replace("H", "[0-9a-fA-F]"),
    re.VERBOSE | re.DOTALL,
)
_LETTERS: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def stream_json(held: HeldText, tool: CallableTool, *, trusted: bool) -> Reading[bool]:
    """Read the arguments of a call that are JSON and emit them as they arrive. ``end_call`` has to follow.

    Returns False, and takes nothing, if they cannot be streamed. ``trusted``: a grammar enforces the form of
    the call.
    """
    if tool.kind == "function" and (yield from _begins_with(held, "{", peek='"}')):
        yield from held.spaces()
        held.begin(tool)
        arguments_of_json(tool, (yield from held.write_json()))
        return True
    if tool.kind == "custom" and trusted and (yield from _begins_with(held, "{", '"input"', ":", '"')):
        held.begin(tool)
        yield from _write_input(held)
        yield from held.spaces()
        yield from held.require("}")
        return True
    return False


def end_call(held: HeldText, tool: CallableTool) -> None:
    """End a call whose arguments were streamed."""
    held.write("}" if tool.kind == "function" else "")
    held.end()


def _begins_with(held: HeldText, *parts: str, peek: str = "") -> Reading[bool]:
    """Whether the next text is these parts, with any white space between them. They are then taken, except if
    ``peek`` is given: then one of its characters has to follow, and nothing is taken."""
    count = len(held.taken)
    for part in parts:
        yield from held.spaces()
        if not (yield from held.accept(part)):
            held.rewind(count)
            return False
    if not peek:
        return True
    yield from held.spaces()
    following = yield from held.next()
    held.rewind(count)
    return bool(following) and following in peek


def _write_input(held: HeldText) -> Reading[None]:
    """Read a string after its opening quote, and emit it decoded."""
    decoder = _InputDecoder()
    while True:
        match = _IN_STRING.match(held.pending)
        assert match is not None
        end = match.end()
        if held.pending[end : end + 1] == '"':
            held.write(decoder.decode(held.take(end + 1))[:-1])
            return
        # A backslash at the end of the text waits for what it escapes.
        size = len(held.pending) if held.is_last else end
        held.write(decoder.decode(held.take(size)))
        if held.is_last:
            raise BrokenCall
        yield


class _InputDecoder:
    """Decodes the escapes of a JSON string that arrives in pieces. Invalid ones are kept or replaced, and an
    incomplete one at the end is dropped."""

    def __init__(self) -> None:
        self._half = ""  # an incomplete escape sequence

    def decode(self, text: str) -> str:
        text, self._half = self._half + text, ""
        return _ESCAPE.sub(self._decode, text)

    def _decode(self, escape: re.Match[str]) -> str:
        high, low, half, code, letter = escape.group("high", "low", "half", "code", "letter")
        if half:
            self._half = half
            return ""
        if high:
            return bytes.fromhex(high + low).decode("utf-16-be")
        if code:
            return bytes.fromhex(code).decode("utf-16-be", "replace")
        return _LETTERS.get(letter, escape.group())


class MemberStream:
    """Emits arguments that are written one by one: the call begins with the first."""

    def __init__(self, held: HeldText, tool: CallableTool) -> None:
        self._held = held
        self._tool = tool
        self._members: Members = []  # of a call that is emitted at its end
        self._key = ""
        self.is_streaming = tool.kind == "function"
        """Whether arguments are emitted before the call ends."""

    def open(self, key: str) -> None:
        """Begin an argument."""
        self._key = key
        if not self.is_streaming:
            return
        opening = ", " if self._held.is_streaming else "{"
        if not self._held.is_streaming:
            self._held.begin(self._tool)
        self._held.write(f"{opening}{quoted(key)}: ")

    def value(self, text: str) -> None:
        """Add the value of the argument, as JSON."""
        if self.is_streaming:
            self._held.write(text)
        else:
            self._members.append((self._key, text))

    def piece(self, text: str) -> None:
        """Add a piece of a value that is a string."""
        self._held.write(quoted(text)[1:-1])

    def end(self) -> None:
        """End the call. Raises ``BrokenCall`` if the arguments do not suit the tool."""
        if self._held.is_streaming:
            end_call(self._held, self._tool)
        else:
            self._held.emit(self._tool, arguments_of_members(self._tool, self._members))
