"""The tools of a request, by the names that models write, and the arguments of calls to them."""

from collections import Counter
from typing import Final

import msgspec
from msgspec import Struct

from slipring.prompts.parsing.calls.argument_schema import ArgumentSchema
from slipring.prompts.parsing.calls.held_text import BrokenCall
from slipring.prompts.parsing.calls.json_scanner import Members, object_text
from slipring.prompts.tool_definitions import flat_name, parameters_of
from slipring.protocol.tools import CallableTool, Offer


class _CustomArguments(Struct, forbid_unknown_fields=True):
    """The arguments of a call to a custom tool."""

    input: str


_object = msgspec.json.Decoder(dict[str, object])
_custom_arguments = msgspec.json.Decoder(_CustomArguments | str)
_string = msgspec.json.Decoder(str)
_INVALID: Final = (ValueError, LookupError, RecursionError)


class OfferedTools:
    """The tools of an offer. Models address a tool by its name or its ``flat_name``."""

    __slots__ = ("_schemas", "by_name")

    def __init__(self, offer: Offer) -> None:
        # ``allowed_tools`` may list a tool and also its namespace: one tool offered twice is not ambiguous.
        tools = {(tool.namespace, tool.name): tool for tool in offer.tools}.values()
        self.by_name = _unambiguous([(tool.name, tool) for tool in tools])
        self.by_name |= _unambiguous([(flat_name(tool), tool) for tool in tools])
        self._schemas: dict[tuple[str | None, str], ArgumentSchema] = {}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def find(self, name: str) -> CallableTool:
        """The tool of that name. Raises ``BrokenCall`` if there is none."""
        tool = self.by_name.get(name)
        if tool is None:
            raise BrokenCall
        return tool

    def schema(self, tool: CallableTool) -> ArgumentSchema:
        """The schema of a tool's arguments."""
        key = (tool.namespace, tool.name)
        if key not in self._schemas:
            self._schemas[key] = ArgumentSchema(bytes(parameters_of(tool)))
        return self._schemas[key]


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


def _unambiguous(named: list[tuple[str, CallableTool]]) -> dict[str, CallableTool]:
    count = Counter(name for name, _ in named)
    return {name: tool for name, tool in named if count[name] == 1}


def _function_arguments(data: bytes) -> str:
    """A function's arguments as the model wrote them: a JSON object, or a JSON string that contains one."""
    text = _string.decode(data) if data.startswith(b'"') else data.decode()
    _object.decode(text)
    return text


def _custom_input(data: bytes) -> str:
    value = _custom_arguments.decode(data)
    return value if isinstance(value, str) else value.input
