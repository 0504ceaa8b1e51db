"""Tools, MCP servers and ``tool_choice`` of the Messages API, as the Responses API has them.

A tool with ``defer_loading`` is not offered until the result of a search, which the client has run, refers to
it. Messages of the system add and withdraw tools: ``LoadedTools`` says which functions a model may call from
each place of a conversation on. A context describes a tool where it is added, so that all that stands before
is the same as without it.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.items.items import Name
from slipring.protocol.tools.mcp_tools import MOST_SERVERS
from slipring.protocol.tools.tool_types import MOST_TOOLS

_HOSTED = {"web_search_": "web_search", "code_execution_": "code_interpreter"}
"""The types of server tools, without their dates, and those of the Responses API."""
_SEARCH = "tool_search_tool_"
_INSTEAD = "; a function of the client can search, and return tool_reference blocks"
_Dated = Annotated[str, Meta(max_length=100)]


class MessagesTool(Struct):
    """A tool as clients define it. Without ``type``, it is a function that the client runs."""

    name: Name | UnsetType = msgspec.UNSET
    type: _Dated | None = None
    description: str | None = None
    input_schema: Raw | UnsetType = msgspec.UNSET
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: Raw | UnsetType = msgspec.UNSET
    allowed_callers: list[str] | None = None
    mcp_server_name: str | None = None
    default_config: "ToolConfig | None" = None
    configs: "dict[str, ToolConfig] | None" = None
    tools: list[Raw] | None = None


class ToolConfig(Struct):
    enabled: bool | None = None
    defer_loading: bool | None = None


class ToolConfiguration(Struct):
    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class McpServer(Struct):
    type: Literal["url"]
    name: str
    url: str
    authorization_token: str | None = None
    tool_configuration: ToolConfiguration | None = None


class AutoChoice(Struct, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, tag_field="type", tag="tool"):
    name: Name
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, tag_field="type", tag="none"): ...


Choice = AutoChoice | AnyChoice | NamedChoice | NoChoice

_list = msgspec.json.Decoder(list[Raw])
_tool = msgspec.json.Decoder(MessagesTool)
_server = msgspec.json.Decoder(McpServer)
_examples = msgspec.json.Decoder(list[dict[str, Any]])


class Function(Struct, frozen=True, gc=False):
    """A function that the client runs."""

    name: str
    sent: dict[str, object]
    """As the Responses API has it."""
    where: str
    is_deferred: bool
    """Whether it is not offered before a message adds it."""


class Tools:
    """The tools of a request, as JSON, and where each comes from."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.places: list[str] = []
        """The field of each tool."""
        self.hosted: set[str] = set()
        """The types of the tools that the server runs, by those of the Responses API."""
        self._tools: list[dict[str, object]] = []
        self._named: dict[str, str] = {}
        """The types of the tools that ``tool_choice`` names by their type, by their names."""
        self._servers: set[str] = set()
        """The names of the MCP servers."""
        self._toolsets: dict[str, tuple[str, MessagesTool]] = {}

    def read(self, tools: Raw | UnsetType, servers: Raw | UnsetType) -> None:
        """Add the tools and MCP servers of a request. Raises ``InvalidRequest``, which names the field."""
        for index, raw in enumerate(_entries(tools, MOST_TOOLS, "tools")):
            where = f"tools[{index}]"
            self._add(_read_tool(raw, where), where)
        for index, raw in enumerate(_entries(servers, MOST_SERVERS, "mcp_servers")):
            where = f"mcp_servers[{index}]"
            self._add_server(wire.decode(_server, raw, where=where), where)
        for name, (where, toolset) in self._toolsets.items():
            self._add_registered(name, toolset, where)

    @property
    def raw(self) -> Raw | UnsetType:
        return wire.raw(self._tools) if self._tools else msgspec.UNSET

    def choice(
        self, choice: Choice | None, offered: Sequence[str] = (), withdrawn: Sequence[str] = ()
    ) -> Raw | UnsetType:
        """``tool_choice`` as the Responses API has it, without the functions that messages have
        ``withdrawn``; those that they have left are ``offered``."""
        if isinstance(choice, NamedChoice):
            if choice.name in withdrawn:
                raise InvalidRequest.at("tool_choice.name", f"{quoted(choice.name)} was withdrawn")
            function = self.functions.get(choice.name)
            if function is not None and function.is_deferred and choice.name not in offered:
                raise InvalidRequest(
                    f"Invalid 'tool_choice.name': no message has loaded {quoted(choice.name)}, which has"
                    " defer_loading.",
                    param="tool_choice.name",
                )
            if choice.name in self._named:
                return wire.raw({"type": self._named[choice.name]})
            return wire.raw({"type": "function", "name": choice.name})
        if isinstance(choice, NoChoice):
            return Raw(b'"none"')
        is_required = isinstance(choice, AnyChoice)
        if withdrawn:
            return self._all_of(offered, "required" if is_required else "auto")
        return Raw(b'"required"') if is_required else msgspec.UNSET

    def _all_of(self, functions: Sequence[str], mode: str) -> Raw:
        """The choice of these functions and of all tools that the server runs."""
        allowed: list[dict[str, object]] = [{"type": "function", "name": name} for name in functions]
        for tool in self._tools:
            if tool["type"] == "mcp":
                allowed.append({"type": "mcp", "server_label": tool["server_label"]})
            elif tool["type"] != "function":
                allowed.append({"type": tool["type"]})
        if not allowed:
            return Raw(b'"none"')
        return wire.raw({"type": "allowed_tools", "mode": mode, "tools": allowed})

    def _add(self, tool: MessagesTool, where: str) -> None:
        kind = tool.type
        if kind == "mcp_toolset":
            if tool.mcp_server_name is None:
                raise wire.explain("Object missing required field `mcp_server_name`", where)
            self._toolsets[tool.mcp_server_name] = (where, tool)
            return
        if _is_function(tool):
            self._add_function(_read_function(tool, where))
            return
        assert kind is not None
        hosted = next((name for prefix, name in _HOSTED.items() if kind.startswith(prefix)), None)
        if hosted is None:
            why = f"this server does not have the tool {quoted(kind)}"
            raise UnsupportedParameter.at(
                f"{where}.type", f"{why}{_INSTEAD if kind.startswith(_SEARCH) else ''}"
            )
        _require_direct(tool, where)
        self.hosted.add(hosted)
        self._named[hosted if tool.name is msgspec.UNSET else tool.name] = hosted
        sent: dict[str, object] = {"type": hosted}
        if hosted == "code_interpreter":
            sent["container"] = {"type": "auto"}
        self._put(sent, where)

    def _add_function(self, function: Function) -> None:
        earlier = self.functions.get(function.name)
        if earlier is not None and (earlier.is_deferred or function.is_deferred):
            param = f"{function.where}.name"
            raise InvalidRequest.at(param, f"two tools are named {quoted(function.name)}")
        self.functions[function.name] = function
        if not function.is_deferred:
            self._put(function.sent, function.where)

    def _add_server(self, server: McpServer, where: str) -> None:
        if server.name in self._servers:
            raise InvalidRequest.at(f"{where}.name", f"two servers are named {quoted(server.name)}")
        self._servers.add(server.name)
        allowed = _allowed(server, where)
        if server.name in self._toolsets:
            allowed = _enabled(*self._toolsets.pop(server.name))
        if allowed == []:
            return
        self.hosted.add("mcp")
        tool: dict[str, object] = {
            "type": "mcp",
            "server_label": server.name,
            "server_url": server.url,
            "require_approval": "never",
        }
        if server.authorization_token is not None:
            tool["authorization"] = server.authorization_token
        if allowed is not None:
            tool["allowed_tools"] = allowed
        self._put(tool, where)

    def _add_registered(self, name: str, toolset: MessagesTool, where: str) -> None:
        """Add the tools of a server that is not among those of the request: its operator may have registered
        one by this name."""
        if (allowed := _enabled(where, toolset)) == []:
            return
        self.hosted.add("mcp")
        tool: dict[str, object] = {"type": "mcp", "server_label": name, "require_approval": "never"}
        if allowed is not None:
            tool["allowed_tools"] = allowed
        self._put(tool, where)

    def _put(self, tool: dict[str, object], where: str) -> None:
        self._tools.append(tool)
        self.places.append(where)


def _entries(data: Raw | UnsetType, most: int, where: str) -> list[Raw]:
    sent = wire.given(data)
    if sent is None:
        return []
    wire.require_few(sent, most, where, "entries")
    entries = wire.decode(_list, sent, where=where)
    if len(entries) > most:
        raise wire.too_many(most, where, "entries")
    return entries


def _read_tool(data: Raw, where: str) -> MessagesTool:
    """Decode a tool. Raises ``InvalidRequest``, which names the field."""
    return wire.decode(_tool, data, where=where)


def _is_function(tool: MessagesTool) -> bool:
    """Whether the client runs it."""
    return tool.type is None or tool.type == "custom"


def _read_function(tool: MessagesTool, where: str) -> Function:
    """A tool that the client runs. Raises ``InvalidRequest``, which names the field."""
    if isinstance(tool.name, UnsetType):
        raise wire.explain("Object missing required field `name`", where)
    if isinstance(tool.input_schema, UnsetType):
        raise wire.explain("Object missing required field `input_schema`", where)
    _require_direct(tool, where)
    wire.require_object(tool.input_schema, f"{where}.input_schema")
    sent: dict[str, object] = {"type": "function", "name": tool.name}
    description = tool.description or ""
    if (examples := wire.given(tool.input_examples)) is not None:
        description = f"{description}\n\nExamples of its input: {_examples_of(examples, where)}".lstrip()
    if description:
        sent["description"] = description
    sent["parameters"] = tool.input_schema
    sent["strict"] = tool.strict is True
    return Function(tool.name, sent, where, is_deferred=tool.defer_loading is True)


def _examples_of(sent: Raw, where: str) -> str:
    """Examples of inputs, in one spelling: without escapes, a model and safety checks read what is meant."""
    wire.require_short(sent, f"{where}.input_examples", wire.LONG_BYTES)
    return wire.encode(wire.decode(_examples, sent, where=f"{where}.input_examples")).decode()


def _require_direct(tool: MessagesTool, where: str) -> None:
    """Refuse a tool that only code may call."""
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise UnsupportedParameter.at(f"{where}.allowed_callers", "only 'direct' is supported")


def _allowed(server: McpServer, where: str) -> list[str] | None:
    """The tools of a server that may be called; None: all of them."""
    configuration = server.tool_configuration
    if configuration is None:
        return None
    return [] if configuration.enabled is False else configuration.allowed_tools


def _enabled(where: str, toolset: MessagesTool) -> list[str] | None:
    """The same, as a toolset says it."""
    configs = toolset.configs or {}
    named = {"default_config": toolset.default_config} if toolset.default_config is not None else {}
    named |= {f"configs.{name}": config for name, config in configs.items()}
    for field, config in named.items():
        if config.defer_loading:
            raise UnsupportedParameter.at(f"{where}.{field}.defer_loading", "this server runs no tool search")
    if toolset.tools is not None:
        raise UnsupportedParameter.at(f"{where}.tools", "this server asks MCP servers for their tools itself")
    if toolset.default_config is not None and toolset.default_config.enabled is False:
        return [name for name, config in configs.items() if config.enabled is True]
    if any(config.enabled is False for config in configs.values()):
        raise UnsupportedParameter.at(
            f"{where}.configs", "tools can be enabled one by one if 'default_config' disables the others"
        )
    return None


class Addition(Struct, frozen=True, gc=False):
    """Tools that are added at one place, as an item, and the field of each."""

    item: dict[str, object]
    places: tuple[str, ...]


class LoadedTools:
    """Which functions are offered, while the messages of a request are read."""

    def __init__(self, tools: Tools) -> None:
        self._known = dict(tools.functions)
        self._offered = {name: True for name, function in tools.functions.items() if not function.is_deferred}
        """Whether a function may be called, for those that were offered at some time."""
        self._new: dict[str, Function] = {}

    @property
    def offered(self) -> list[str]:
        """The functions that may be called."""
        return [name for name, is_offered in self._offered.items() if is_offered]

    @property
    def withdrawn(self) -> list[str]:
        """The functions that a context describes, and that may no longer be called."""
        return [name for name, is_offered in self._offered.items() if not is_offered]

    def add(self, name: str, param: str) -> None:
        """Offer a function that is known by its name. Raises ``InvalidRequest``."""
        function = self._of(name, param)
        if not self._offered.get(name):
            self._offered[name] = True
            self._new[name] = function

    def define(self, definition: Raw, where: str) -> None:
        """Offer a function that is defined here, in place of any other of its name. Raises
        ``InvalidRequest``."""
        tool = _read_tool(definition, where)
        if not _is_function(tool):
            raise UnsupportedParameter.at(f"{where}.type", "only functions can be defined in messages")
        function = _read_function(tool, where)
        name = function.name
        self._known[name] = self._new[name] = function
        self._offered[name] = True

    def withdraw(self, name: str, param: str) -> None:
        """No longer offer a function. Raises ``InvalidRequest``."""
        self._of(name, param)
        self._new.pop(name, None)
        if name in self._offered:
            self._offered[name] = False

    def take(self) -> Addition | None:
        """What was added since the last time."""
        if not self._new:
            return None
        functions, self._new = list(self._new.values()), {}
        tools = [function.sent for function in functions]
        item: dict[str, object] = {"type": "additional_tools", "role": "developer", "tools": tools}
        return Addition(item, tuple(function.where for function in functions))

    def _of(self, name: str, param: str) -> Function:
        function = self._known.get(name)
        if function is None:
            raise InvalidRequest.at(param, f"no tool of this request is named {quoted(name)}")
        return function
