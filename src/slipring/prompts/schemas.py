"""Schemas as models are told them: tools, each as one JSON object, and the formats of answers."""

from msgspec import Raw

from slipring.prompts.parser import flat_name
from slipring.protocol import wire
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools import CallableTool, FunctionTool

_NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')
_ONE_STRING = Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],'
    b'"additionalProperties":false}'
)


def parameters_of(tool: CallableTool) -> Raw:
    """The JSON schema of a call's arguments; a custom tool takes one string."""
    if tool.kind == "custom":
        return _ONE_STRING
    schema = tool.parameters
    return Raw(schema) if schema is not None else _NO_PARAMETERS


def quoted(name: str) -> str:
    """A name as JSON."""
    return wire.encode(name).decode()


def description_of(tool: CallableTool) -> str:
    """What a tool is for; of a custom tool, also the format of its input, which no schema tells."""
    definition = tool.definition
    description = definition.description if isinstance(definition.description, str) else ""
    if not isinstance(definition, FunctionTool) and isinstance(definition.format, Raw):
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


def describe_format(format: TextFormat) -> str:
    """The format of answers, in words. A grammar may enforce it; the model has to know what is meant."""
    if format.schema is None:
        return "Answer with one JSON object and nothing else."
    schema = format.schema.decode()
    return f"Answer with one JSON document and nothing else. It follows this JSON schema:\n{schema}"
