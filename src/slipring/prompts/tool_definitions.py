"""How prompts name, describe and declare tools, how large their JSON may be, and how prompts describe the
format of answers.

Templates get tools as JSON (``template_tools``). Those of Kimi K2.5 and later also get them as TypeScript
types, in the variable ``tools_ts_str``, for which Moonshot's tokenizer brings code (``declare_tools``).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from slipring.base.errors import InvalidRequest
from slipring.protocol import wire
from slipring.protocol.items.items import LoadedTools
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools.toolset import CallableTool, CustomTool, Toolset

_NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')
_ONE_STRING = Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],'
    b'"additionalProperties":false}'
)
_QUERY = Raw(b'{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}')
_SEARCH = (
    "Searches for tools that are not listed here. Those that it finds can be called afterwards, by the names"
    " that it returns."
)


class Named(Protocol):
    """A tool, or a call to one."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str | None: ...


def flat_name(tool: Named) -> str:
    """The name of a tool in prompts and model output, ``namespace__name``: models know no namespaces."""
    return f"{tool.namespace}__{tool.name}" if tool.namespace else tool.name


def parameters_of(tool: CallableTool) -> Raw:
    """The JSON schema of a call's arguments. A custom tool takes one string, ``input``."""
    if tool.kind == "custom":
        return _ONE_STRING
    schema = tool.parameters
    if schema is not None:
        return Raw(schema)
    return _QUERY if tool.kind == "tool_search" else _NO_PARAMETERS


def description_of(tool: CallableTool) -> str:
    """A tool's description; for a custom tool with a grammar, also the format of its input."""
    definition = tool.definition
    description = definition.description if isinstance(definition.description, str) else ""
    if tool.kind == "tool_search":
        return description or _SEARCH
    if isinstance(definition, CustomTool) and tool.grammar is not None:
        assert isinstance(definition.format, Raw)
        description = f"{description} Its input follows this format: {bytes(definition.format).decode()}"
    return description


def describe(tool: CallableTool) -> str:
    """A tool's definition as one line of JSON, in the form that chat templates use."""
    function = {
        "name": flat_name(tool),
        "description": description_of(tool),
        "parameters": parameters_of(tool),
    }
    return wire.encode({"type": "function", "function": function}).decode()


def tool_instructions(tools: Iterable[CallableTool]) -> str:
    """A description of tools and of how to call them, for models whose template does not write tools.

    The form is that of Hermes, which most models know.
    """
    lines = "\n".join(map(describe, tools))
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n"
        "</tools>\n\nFor each function call, return a json object with function name and arguments"
        " within <tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def describe_found(found: LoadedTools) -> str:
    """The result of a tool search: one definition per line, under the tools' flat names."""
    tools = Toolset.brought(found.tools).callables
    return "\n".join(map(describe, tools)) or "No tools were found."


def describe_format(format: TextFormat) -> str:
    """An instruction to answer in JSON. A grammar may enforce it, but the model needs to know the intent."""
    if format.schema is None:
        return "Answer with one JSON object and nothing else."
    schema = format.schema.decode()
    return f"Answer with one JSON document and nothing else. It follows this JSON schema:\n{schema}"


_MAX_JSON_DEPTH = 100
"""Nesting of JSON that is passed to a template as a value."""

_MAX_JSON_VALUES = 100_000
"""Number of values in JSON that is passed to a template as a value: it is decoded and encoded in one step."""

Dict = dict[str, Any]

_object = msgspec.json.Decoder(Dict)


def read_object(text: str) -> Dict | None:
    """Decode a JSON object; None if the text is not one, or it is nested too deeply or too large."""
    if sum(map(text.count, ",[{")) > _MAX_JSON_VALUES:  # an upper bound of the number of values
        return None
    try:
        value = _object.decode(text.encode())
    except (ValueError, RecursionError):
        return None
    return value if _is_shallow(value, _MAX_JSON_DEPTH) else None


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


_TYPE_INDENT = "  "
_MAX_TYPE_DEPTH = 64
_OWN_TYPE = "parameters"
_COMMENTED_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
"""The keywords of each type that are written as a comment."""
_TYPE_NAMES = {"integer": "number", "object": "{}", "array": "Array<any>"}
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
            properties = self._properties(self._schema, self._schema.get("properties", {}), _TYPE_INDENT, 0)
            body = ",\n".join(properties)
            lines.append(f"interface {_OWN_TYPE} {{\n{body}\n}}" if body else f"interface {_OWN_TYPE} {{}}")
            parameters = _OWN_TYPE
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
        if not isinstance(schema, Mapping) or depth > _MAX_TYPE_DEPTH:
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
            return " | ".join(str(_TYPE_NAMES.get(each, each)) for each in type)
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
            return _OWN_TYPE
        name = str(reference).removeprefix("#/$defs/")
        if name == reference or name not in self._definitions:
            raise _Undeclarable
        return name

    def _object(self, schema: Mapping[str, Any], indent: str, depth: int) -> str:
        self._definitions |= schema.get("$defs") or {}
        required = schema.get("required") or ()
        properties = schema.get("properties") or {}
        inner = indent + _TYPE_INDENT
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
        inner = indent + _TYPE_INDENT
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
    keys = _COMMENTED_KEYWORDS.get(type, ()) if is_plain and isinstance(type, str) else ()
    if limits := ", ".join(f"{key}: {schema[key]}" for key in keys if key in schema):
        comments.append(f"{indent}// {limits}")
    return comments


def _comments(text: str, indent: str) -> Iterable[str]:
    return (f"{indent}// {line}" if line else "" for line in text.split("\n"))
