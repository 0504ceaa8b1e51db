"""How prompts name and describe tools, and describe the format of answers."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Raw

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


def quoted(name: str) -> str:
    """A name as a JSON string."""
    return wire.encode(name).decode()


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
