"""Tools as Chat Completions knows them: functions with flat names, and the way back from these names."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from slipring.errors import InvalidRequest
from slipring.prompts.parsing.parser import flat_name
from slipring.prompts.tool_definitions import description_of, parameters_of
from slipring.protocol import wire
from slipring.protocol.tools import CallableTool, FunctionTool, Offer

Tools = tuple[CallableTool, ...]


class Toolbox(Struct, frozen=True, eq=False):
    """Tools as they are sent, written once for as long as they stay the same."""

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
    """These tools as they are sent; ``before``: those of the turn before, which are likely the same."""
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
    """The tools to send: those on offer, each once, and no others.

    A model can call only what it is told of, whatever its server makes of ``tool_choice``; llama-server, for
    one, does not understand a choice that names a function. So a narrower offer is a shorter list, though
    the server then reads its prompt anew.
    """
    return tuple({(tool.namespace, tool.name): tool for tool in offer.tools}.values())
