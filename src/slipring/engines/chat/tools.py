"""Tools as Chat Completions takes them: functions with flat names, which are mapped back in answers."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from slipring.base.errors import InvalidRequest
from slipring.prompts.tool_definitions import description_of, flat_name, parameters_of
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool, FunctionTool, Offer

Tools = tuple[CallableTool, ...]


class Toolbox(Struct, frozen=True, eq=False):
    """Encoded tools, reused while they stay the same."""

    tools: Tools
    json: bytes
    names: Mapping[str, CallableTool]
    """By the names that the model uses."""

    @property
    def size_bytes(self) -> int:
        return len(self.json) + 200 * len(self.tools)


EMPTY = Toolbox((), b"[]", {})


class _Function(Struct):
    name: str
    parameters: Any
    description: str | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class _Definition(Struct):
    function: _Function
    type: str = "function"


def toolbox(tools: Tools, before: Toolbox) -> Toolbox:
    """Encode tools, or return ``before`` if it has the same. Raises ``InvalidRequest`` if names clash."""
    if tools == before.tools:
        return before
    names = {flat_name(tool): tool for tool in tools}
    if len(names) < len(tools):
        raise InvalidRequest(
            "Invalid 'tools': this model's server knows no namespaces, and two tools have the same name once"
            " namespace and name are joined by '__'.",
            param="tools",
        )
    return Toolbox(tools, wire.encode([_definition(tool) for tool in tools]), names)


def _definition(tool: CallableTool) -> _Definition:
    definition = tool.definition
    strict = isinstance(definition, FunctionTool) and definition.strict is True
    return _Definition(
        _Function(
            name=flat_name(tool),
            parameters=parameters_of(tool),
            description=description_of(tool) or UNSET,
            strict=True if strict else UNSET,
        )
    )


def offered_tools(offer: Offer) -> Tools:
    """The tools to send: those on offer, each once.

    Sending no others makes sure that the model calls no others, even if the server ignores ``tool_choice``;
    llama-server, for one, does not support a choice that names a function. The cost: when the offer changes,
    the server prefills the prompt again.
    """
    return tuple({(tool.namespace, tool.name): tool for tool in offer.tools}.values())
