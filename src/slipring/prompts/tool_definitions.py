"""Schemas as models are told them: tools, each as one JSON object, and the formats of answers."""

from msgspec import Raw

from slipring.prompts.parsing.parser import flat_name
from slipring.protocol import wire
from slipring.protocol.items import LoadedTools
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools import CallableTool, CustomTool, Toolset

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


def parameters_of(tool: CallableTool) -> Raw:
    """The JSON schema of a call's arguments; a custom tool takes one string."""
    if tool.kind == "custom":
        return _ONE_STRING
    schema = tool.parameters
    if schema is not None:
        return Raw(schema)
    return _QUERY if tool.kind == "tool_search" else _NO_PARAMETERS


def quoted(name: str) -> str:
    """A name as JSON."""
    return wire.encode(name).decode()


def description_of(tool: CallableTool) -> str:
    """What a tool is for; of a custom tool, also the format of its input, which no schema tells."""
    definition = tool.definition
    description = definition.description if isinstance(definition.description, str) else ""
    if tool.kind == "tool_search":
        return description or _SEARCH
    if isinstance(definition, CustomTool) and tool.grammar is not None:
        assert isinstance(definition.format, Raw)
        description = f"{description} Its input follows this format: {bytes(definition.format).decode()}"
    return description


def describe(tool: CallableTool) -> str:
    """A tool's definition as one line of JSON, in the form that chat templates made common."""
    function = {
        "name": flat_name(tool),
        "description": description_of(tool),
        "parameters": parameters_of(tool),
    }
    return wire.encode({"type": "function", "function": function}).decode()


def describe_found(found: LoadedTools) -> str:
    """What a search has found, one tool a line, by the names that the model has to use."""
    tools = Toolset.brought(found.tools).callables
    return "\n".join(map(describe, tools)) or "No tools were found."


def describe_format(format: TextFormat) -> str:
    """The format of answers, in words. A grammar may enforce it; the model has to know what is meant."""
    if format.schema is None:
        return "Answer with one JSON object and nothing else."
    schema = format.schema.decode()
    return f"Answer with one JSON document and nothing else. It follows this JSON schema:\n{schema}"
