"""Tool calls written as JSON, matched with the tools that the client offers."""

from collections import Counter

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.core.generation import CallArguments, CallStarted, Delta
from slipring.prompts.tool_definitions import flat_name
from slipring.protocol.tools import CallableTool, Offer
from slipring.protocol.wire import given


class _CallObject(Struct):
    """A call as models write it. Further keys (``type``, ``id``) are ignored."""

    name: str
    arguments: Raw | UnsetType = UNSET
    parameters: Raw | UnsetType = UNSET


class _CustomArguments(Struct, forbid_unknown_fields=True):
    """The arguments of a call to a custom tool."""

    input: str


_calls = msgspec.json.Decoder(_CallObject | list[_CallObject])
_object = msgspec.json.Decoder(dict[str, object])
_custom_arguments = msgspec.json.Decoder(_CustomArguments | str)
_string = msgspec.json.Decoder(str)


class ToolCallReader:
    """Decodes calls to the offered tools. Models address a tool by its name or its ``flat_name``."""

    __slots__ = ("tools",)

    def __init__(self, offer: Offer) -> None:
        # ``allowed_tools`` may list a tool and also its namespace: one tool offered twice is not ambiguous.
        tools = {(tool.namespace, tool.name): tool for tool in offer.tools}.values()
        self.tools = _unambiguous([(tool.name, tool) for tool in tools])
        self.tools |= _unambiguous([(flat_name(tool), tool) for tool in tools])

    def __bool__(self) -> bool:
        return bool(self.tools)

    def read(self, text: str, *, announced: bool) -> list[Delta]:
        """Decode JSON text into the deltas of its calls; empty if any part is not a valid call.

        ``announced``: a marker preceded the call, so a call without arguments is valid.
        """
        try:
            decoded = _calls.decode(text.encode())
            calls = decoded if isinstance(decoded, list) else [decoded]
            return [delta for call in calls for delta in self._deltas(call, announced=announced)]
        except (ValueError, LookupError, RecursionError):
            return []

    def _deltas(self, call: _CallObject, *, announced: bool) -> tuple[Delta, Delta]:
        tool = self.tools[call.name]
        arguments = given(call.arguments) or given(call.parameters)
        if arguments is not None:
            text = _custom_input(arguments) if tool.kind == "custom" else _function_arguments(arguments)
        elif announced and tool.kind != "custom":
            text = "{}"
        else:
            raise ValueError("no arguments")
        return CallStarted(tool.kind, tool.name, tool.namespace), CallArguments(text)


def _unambiguous(named: list[tuple[str, CallableTool]]) -> dict[str, CallableTool]:
    count = Counter(name for name, _ in named)
    return {name: tool for name, tool in named if count[name] == 1}


def _function_arguments(raw: Raw) -> str:
    """A function's arguments as the model wrote them: a JSON object, or a JSON string that contains one."""
    data = bytes(raw)
    text = _string.decode(data) if data.startswith(b'"') else data.decode()
    _object.decode(text)
    return text


def _custom_input(raw: Raw) -> str:
    value = _custom_arguments.decode(raw)
    return value if isinstance(value, str) else value.input
