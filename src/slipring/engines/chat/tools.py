"""Tools as Chat Completions knows them: functions with flat names, and the way back from these names."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from slipring.core.generation import Job
from slipring.errors import InvalidRequest
from slipring.prompts.parser import flat_name
from slipring.prompts.schemas import description_of, parameters_of
from slipring.protocol import wire
from slipring.protocol.items import AdditionalTools
from slipring.protocol.tools import CallableTool, FunctionTool, Toolset, merged

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


def choose(job: Job) -> tuple[Tools, object]:
    """The tools to send, and ``tool_choice`` where it has to say something.

    A model can call only what it is told of, whatever its server makes of ``tool_choice``: so a narrower
    offer is a shorter list. But one tool that must be called is named, and the list stays as it is in the
    server's cache.
    """
    offered = {(tool.namespace, tool.name) for tool in job.offer.tools}
    if not offered:
        return (), None
    tools = _all_tools(job)
    if job.offer.required and len(offered) == 1:
        return tools, {"type": "function", "function": {"name": flat_name(job.offer.tools[0])}}
    if len(offered) < len(tools):
        tools = tuple(tool for tool in tools if (tool.namespace, tool.name) in offered)
    return tools, "required" if job.offer.required else None


def _all_tools(job: Job) -> Tools:
    """The head's tools, and those that items brought."""
    added = job.parent.carry.tools if job.parent is not None else ()
    for item in job.input:
        if item.type == "additional_tools":
            body = item.body()
            assert isinstance(body, AdditionalTools)
            added = merged(added, Toolset.read(body.tools).callables)
    return merged(job.head.tools.callables, added)
