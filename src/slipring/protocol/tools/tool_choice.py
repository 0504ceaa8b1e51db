"""``tool_choice``: how it is read and echoed, and which of the tools an engine may call.

``ToolChoice`` decodes it once. Applied to the tools of a context, it results in an ``Offer``: the tools that
an engine may call, and whether it must call one.
"""

from collections.abc import Container
from typing import Literal

import msgspec
from msgspec import Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.items.items import TOOL_SEARCH
from slipring.protocol.tools.client_tools import PARAMETERS
from slipring.protocol.tools.mcp_tools import model_name
from slipring.protocol.tools.tool_types import KIND_OF_TYPE
from slipring.protocol.tools.toolset import CallableTool
from slipring.protocol.wire import given

_OTHER_NAMES = {**KIND_OF_TYPE, "computer_use": "computer"}
"""Types by which ``tool_choice`` names tools, and their kinds, where the two differ."""

_NAMED_BY_TYPE: frozenset[str] = frozenset({*_OTHER_NAMES, *PARAMETERS})
"""Tools that ``tool_choice`` names by their type alone."""


class Offer(Struct, frozen=True):
    """The tools that an engine may call, and whether it must."""

    tools: tuple[CallableTool, ...] = ()
    required: bool = False
    forbidden: bool = False
    """Whether no tool may be called, hosted ones included."""
    narrowed: bool = False
    """Whether ``tool_choice`` restricted the list to named tools."""


class ChoiceObject(Struct):
    """The union of all object forms of ``tool_choice``."""

    type: str
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[Raw] | None = None


class NamedTool(Struct, omit_defaults=True):
    """A tool as ``tool_choice`` names it."""

    type: str
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"]
    tools: list[Raw]


_choice = msgspec.json.Decoder(Literal["none", "auto", "required"] | ChoiceObject)

_named = msgspec.json.Decoder(NamedTool)


class ToolChoice(Struct, frozen=True):
    """A decoded ``tool_choice``: what to echo, and which tools it allows."""

    echo: Raw = Raw(b'"auto"')
    mode: Literal["none", "auto", "required"] = "auto"
    only: tuple[NamedTool, ...] | None = None
    names_one: bool = False
    """Whether it names the one tool to call."""
    is_passed_on: bool = False
    """Whether the engine's server applies it."""

    @classmethod
    def read(cls, data: Raw | UnsetType) -> "ToolChoice":
        sent = given(data)
        if sent is None:
            return AUTO
        wire.require_short(sent, "tool_choice", wire.LONG_BYTES)
        choice = wire.decode(_choice, sent, where="tool_choice")
        if not isinstance(choice, ChoiceObject):
            return cls(echo=wire.raw(choice), mode=choice)
        if choice.type == "allowed_tools":
            return _allowed(choice)
        if choice.type in ("function", "custom"):
            if choice.name is None:
                raise wire.explain("Object missing required field `name`", "tool_choice")
            named = NamedTool(type=choice.type, name=choice.name, namespace=choice.namespace)
            return cls(echo=wire.raw(named), mode="required", only=(named,), names_one=True)
        if choice.type == "mcp":
            if choice.server_label is None:
                raise wire.explain("Object missing required field `server_label`", "tool_choice")
            named = NamedTool(type="mcp", name=choice.name, server_label=choice.server_label)
            return cls(echo=wire.raw(named), mode="required", only=(named,), names_one=True)
        if choice.type in _NAMED_BY_TYPE:
            named = NamedTool(type=choice.type)
            return cls(echo=wire.raw(named), mode="required", only=(named,), names_one=True)
        raise UnsupportedParameter.at(
            "tool_choice", f"{quoted(choice.type)} is a tool that this server does not run"
        )

    @classmethod
    def passed_on(cls, data: Raw | UnsetType) -> "ToolChoice":
        """A choice among tools that the engine's server knows and this one does not."""
        sent = given(data)
        if sent is not None:
            wire.require_short(sent, "tool_choice", wire.LONG_BYTES)
            wire.decode(_choice, sent, where="tool_choice")
        return cls(echo=AUTO.echo if sent is None else sent.copy(), is_passed_on=True)

    @property
    def once_called(self) -> "ToolChoice":
        """The choice for later steps of a rollout: a required call is required once."""
        if self.mode != "required":
            return self
        return ToolChoice(echo=self.echo, only=None if self.names_one else self.only)

    def require_possible(self, tools: tuple[CallableTool, ...], awaited: Container[str]) -> None:
        """Refuse a choice that names a tool which is not among these, and which no list of the awaited MCP
        servers can contain."""
        index = _ToolIndex(tools)
        for named in self.only or ():
            places = {"namespace": named.name, "mcp": named.server_label}
            if places.get(named.type, named.namespace) not in awaited:
                index.find(named)

    def offer(self, tools: tuple[CallableTool, ...]) -> Offer:
        """Apply the choice to the tools of a context. Raises if it names a tool that is not among them."""
        if self.is_passed_on:
            return Offer(tools=tools)
        if self.mode == "none":
            return Offer(forbidden=True)
        if self.only is not None:
            index = _ToolIndex(tools)
            tools = tuple(tool for named in self.only for tool in index.find(named))
            if self.names_one and not tools:
                raise _not_found(self.only[0])
        if self.mode == "required" and not tools:
            raise InvalidRequest.at(
                "tool_choice", "a tool call is required, but the request offers no callable tool"
            )
        return Offer(tools=tools, required=self.mode == "required", narrowed=self.only is not None)


class _ToolIndex:
    """Tools by name and by namespace, as ``tool_choice`` names them."""

    def __init__(self, tools: tuple[CallableTool, ...]) -> None:
        self._by_name: dict[tuple[str, str], list[CallableTool]] = {}
        self._by_namespace: dict[str | None, list[CallableTool]] = {}
        for tool in tools:
            self._by_name.setdefault((tool.kind, tool.name), []).append(tool)
            self._by_namespace.setdefault(tool.namespace, []).append(tool)

    def find(self, named: NamedTool) -> list[CallableTool]:
        if named.type == "namespace":
            found = self._by_namespace.get(named.name, []) if named.name is not None else []
        elif named.type in ("function", "custom"):
            alike = self._by_name.get((named.type, named.name or ""), [])
            found = [tool for tool in alike if named.namespace in (None, tool.namespace)]
        elif named.type == "mcp":
            found = self._of_server(named)
        elif named.type == "tool_search":
            return self._by_name.get((named.type, TOOL_SEARCH), [])
        else:
            # A list of allowed tools may have types that nothing here answers.
            kind = _OTHER_NAMES.get(named.type, named.type)
            return self._by_name.get((kind, kind), [])
        if not found:
            raise _not_found(named)
        return found

    def _of_server(self, named: NamedTool) -> list[CallableTool]:
        """The tools of an MCP server, or the one that is named."""
        label = named.server_label
        tools = self._by_namespace.get(label, []) if label is not None else []
        if label is None or named.name is None:
            return tools
        return [tool for tool in tools if tool.name == model_name(label, named.name)]


def _not_found(named: NamedTool) -> InvalidRequest:
    chosen = quoted(named.name or named.server_label or named.type)
    return InvalidRequest(f"Tool choice {chosen} not found in 'tools' parameter.", param="tool_choice")


AUTO = ToolChoice()


def _allowed(choice: ChoiceObject) -> ToolChoice:
    if choice.tools is None:
        raise wire.explain("Object missing required field `tools`", "tool_choice")
    named = tuple(
        wire.decode(_named, raw, where=f"tool_choice.tools[{index}]")
        for index, raw in enumerate(choice.tools)
    )
    # The API's type requires ``mode``; clients may omit it.
    echo = wire.raw(AllowedTools(mode=choice.mode, tools=choice.tools))
    return ToolChoice(echo=echo, mode=choice.mode, only=named)
