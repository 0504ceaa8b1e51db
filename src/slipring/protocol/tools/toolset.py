"""The tools of a request: their definitions, what is echoed of them, and the functions that a model sees.

``Toolset`` decodes the ``tools`` of a request once. A continuation whose raw bytes equal its parent's reuses
the parent's ``Toolset``, so 40 kB of definitions cost one comparison. ``tool_choice.py`` decides which of the
tools may be called.
"""

from itertools import chain
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.items.items import TOOL_SEARCH, Name
from slipring.protocol.tools import client_tools
from slipring.protocol.tools.builtin_tools import FUNCTIONS, TAG, KeptBuiltin, unanswered
from slipring.protocol.tools.client_tools import (
    PARAMETERS,
    ApplyPatchTool,
    ClientKind,
    ClientTool,
    ComputerTool,
    ComputerUsePreviewTool,
    LocalShellTool,
    ShellTool,
)
from slipring.protocol.tools.grammars_and_schemas import Definitions, Grammar, read_grammar
from slipring.protocol.tools.mcp_tools import KeptServer, model_name
from slipring.protocol.tools.tool_types import ALWAYS_CLIENT_TYPES, MOST_TOOLS, BuiltinKind
from slipring.protocol.wire import NULL, given

Kind = Literal["function", "custom", "tool_search"] | ClientKind | BuiltinKind


class FunctionTool(Struct, tag_field="type", tag="function"):
    name: Name
    description: str | None = None
    # A default factory, since msgspec cannot put a Raw default into a JSON schema.
    parameters: Raw = msgspec.field(default_factory=lambda: NULL)
    strict: bool | None = None
    defer_loading: bool | UnsetType | None = UNSET
    asynchronous: bool | UnsetType | None = msgspec.field(name="async", default=UNSET)
    output_schema: Raw | UnsetType = UNSET
    allowed_callers: list[Literal["direct", "programmatic"]] | UnsetType | None = UNSET


class CustomTool(Struct, tag_field="type", tag="custom"):
    name: Name
    description: str | UnsetType | None = UNSET
    format: Raw | UnsetType = UNSET
    defer_loading: bool | UnsetType | None = UNSET
    asynchronous: bool | UnsetType | None = msgspec.field(name="async", default=UNSET)
    allowed_callers: list[Literal["direct", "programmatic"]] | UnsetType | None = UNSET


class NamespaceTool(Struct, tag_field="type", tag="namespace"):
    name: Name
    tools: list[FunctionTool | CustomTool]
    description: str = ""


class ToolSearchTool(Struct, tag_field="type", tag="tool_search"):
    """Lets the model search for deferred tools. The client runs the search."""

    execution: Literal["server", "client"] | None = None
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET


Definition = FunctionTool | CustomTool | ToolSearchTool


class CallableTool(Struct, frozen=True):
    """A tool that the model can call. Tools of other kinds than ``custom`` are functions to a model."""

    kind: Kind
    name: str
    namespace: str | None
    definition: Definition

    @property
    def size_bytes(self) -> int:
        """Estimated memory of a definition: its objects and the strings they refer to."""
        description = self.definition.description
        described = len(description) if isinstance(description, str) else 0
        return 600 + 2 * described + 2 * len(self.parameters or b"") + 2 * len(self._format)

    @property
    def parameters(self) -> bytes | None:
        """The JSON schema of a call's arguments, as the client sent it; None for custom tools."""
        if not isinstance(self.definition, CustomTool) and (schema := given(self.definition.parameters)):
            return bytes(schema)
        return None

    @property
    def grammar(self) -> Grammar | None:
        """The grammar that a custom tool's input must match; None if any text is allowed."""
        return read_grammar(Raw(self._format), "format") if self._format else None

    @property
    def is_deferred(self) -> bool:
        """Whether the model sees it only after a tool search has returned it."""
        return not isinstance(self.definition, ToolSearchTool) and self.definition.defer_loading is True

    @property
    def _format(self) -> bytes:
        return bytes(given(self.definition.format) or b"") if isinstance(self.definition, CustomTool) else b""


class _Inner(Struct):
    tools: Raw | UnsetType = UNSET


class _ChatForm(Struct):
    """A function as Chat Completions has it."""

    function: Raw | UnsetType = UNSET


_tools = msgspec.json.Decoder(list[Raw])
_inner = msgspec.json.Decoder(_Inner)
_chat_form = msgspec.json.Decoder(_ChatForm)
_server = msgspec.json.Decoder(KeptServer)
_builtin = msgspec.json.Decoder(KeptBuiltin)
_CLIENT_TOOLS: dict[str, msgspec.json.Decoder[ClientTool]] = {
    "shell": msgspec.json.Decoder(ShellTool),
    "local_shell": msgspec.json.Decoder(LocalShellTool),
    "apply_patch": msgspec.json.Decoder(ApplyPatchTool),
    "computer": msgspec.json.Decoder(ComputerTool),
    "computer_use_preview": msgspec.json.Decoder(ComputerUsePreviewTool),
}
_DECODERS: dict[str, msgspec.json.Decoder[Definition | NamespaceTool]] = {
    "function": msgspec.json.Decoder(FunctionTool),
    "custom": msgspec.json.Decoder(CustomTool),
    "namespace": msgspec.json.Decoder(NamespaceTool),
    "tool_search": msgspec.json.Decoder(ToolSearchTool),
}


class Toolset(Struct, frozen=True):
    """The tools of a request."""

    raw: bytes
    """As sent."""
    echo: Raw
    """As the response object repeats them."""
    callables: tuple[CallableTool, ...]
    """Tools that the model can call, without deferred ones."""
    are_clients: bool = True
    """Whether clients run all of them, as their types alone say."""

    @classmethod
    def read(
        cls,
        data: Raw | UnsetType,
        where: str = "tools",
        *,
        loaded: bool = False,
        definitions: Definitions | None = None,
    ) -> "Toolset":
        """Decode tools; errors name the field below ``where``.

        ``loaded``: they arrived with an item, so that deferred tools are callable too. ``definitions``
        collects and bounds their grammars and schemas; None for tools that were accepted before.
        """
        sent = given(data)
        if sent is not None:
            wire.require_few(sent, MOST_TOOLS, where, "tools")
        tools = wire.decode(_tools, sent, where=where) if sent is not None else []
        if sent is None or not tools:
            return NO_TOOLS
        raw = bytes(sent)
        echo: list[object] = []
        callables: list[CallableTool] = []
        kinds: set[str] = set()
        for index, tool in enumerate(tools):
            kind = _read_tool(bytes(tool), f"{where}[{index}]", echo, callables, definitions, loaded=loaded)
            kinds.add(kind)
            if len(echo) > MOST_TOOLS or len(callables) > MOST_TOOLS:
                raise wire.too_many(MOST_TOOLS, where, "tools")
        _refuse_twins(callables, where)
        visible = tuple(tool for tool in callables if loaded or not tool.is_deferred)
        return cls(raw, wire.raw(echo), visible, kinds <= ALWAYS_CLIENT_TYPES)

    @classmethod
    def brought(cls, data: Raw) -> "Toolset":
        """Decode the tools of an item that is already part of a context."""
        return cls.read(data, loaded=True)

    @property
    def size_bytes(self) -> int:
        """Estimated memory: the JSON as sent and as echoed, and the decoded definitions."""
        return len(self.raw) + len(bytes(self.echo)) + sum(tool.size_bytes for tool in self.callables)


NO_TOOLS = Toolset(raw=b"[]", echo=Raw(b"[]"), callables=())


def _read_tool(
    raw: bytes,
    where: str,
    echo: list[object],
    callables: list[CallableTool],
    definitions: Definitions | None,
    *,
    loaded: bool,
) -> str:
    """Read one tool; returns its type."""
    kind = wire.type_of(raw, where)
    if kind == "mcp":
        if loaded:
            raise UnsupportedParameter.at(f"{where}.type", "MCP servers are given in 'tools', not by items")
        server = wire.decode(_server, raw, where=where)
        echo.append(server.echo)
        callables += _listed(server)
        return kind
    decoder = _DECODERS.get(kind)
    if decoder is None:
        _read_builtin(kind, raw, where, echo, callables, definitions)
        return kind
    if (
        len(raw) > wire.LONG_BYTES
        and (inner := given(wire.decode(_inner, raw, where=where).tools)) is not None
    ):
        wire.require_few(inner, MOST_TOOLS, f"{where}.tools", "tools")
    try:
        tool = wire.decode(decoder, raw, where=where)
    except InvalidRequest as error:
        if kind != "function" or given(wire.decode(_chat_form, raw, where=where).function) is None:
            raise
        raise InvalidRequest(
            f"{error.message} The fields of a function are fields of the tool itself here, not of an inner"
            " 'function' as in Chat Completions.",
            param=error.param,
            code=error.code,
        ) from None
    echo.append(tool)
    if isinstance(tool, NamespaceTool):
        callables += [_callable(inner, tool.name) for inner in tool.tools]
    else:
        callables.append(_callable(tool, None))
    if definitions is not None:
        _take_definitions(tool, where, definitions)
    return kind


def _read_builtin(
    kind: str,
    raw: bytes,
    where: str,
    echo: list[object],
    callables: list[CallableTool],
    definitions: Definitions | None,
) -> None:
    """Read a tool that only its type describes."""
    if kind == TAG:
        kept = wire.decode(_builtin, raw, where=where)
        function = FUNCTIONS[kept.kind]
        echo.append(kept.sent)
        callables.append(_described(kept.kind, function.description, function.parameters))
        return
    echo.append(Raw(raw))
    if (decoder := _CLIENT_TOOLS.get(kind)) is not None:
        tool = wire.decode(decoder, raw, where=where)
        if definitions is not None and definitions.ignored_tools is not None:
            client_tools.require_local(tool, where)
        client_kind = client_tools.kind_of(tool)
        parameters = Raw(PARAMETERS[client_kind])
        callables.append(_described(client_kind, client_tools.description_of(tool), parameters))
    elif definitions is not None and not definitions.ignores(kind):
        raise unanswered(kind, where)


def _described(kind: ClientKind | BuiltinKind, description: str, parameters: Raw) -> CallableTool:
    definition = FunctionTool(name=kind, description=description, parameters=parameters, strict=True)
    return CallableTool(kind=kind, name=kind, namespace=None, definition=definition)


def _listed(server: KeptServer) -> list[CallableTool]:
    """The tools of an MCP server, as functions in a namespace with the server's label."""
    label = server.server_label
    return [
        _callable(
            FunctionTool(
                name=model_name(label, tool.name),
                description=tool.description,
                parameters=tool.input_schema,
                defer_loading=server.defer_loading,
            ),
            label,
        )
        for tool in (() if server.listed is UNSET else server.listed)
    ]


def _take_definitions(tool: Definition | NamespaceTool, where: str, definitions: Definitions) -> None:
    """Add a tool's grammar to ``definitions`` and check its schemas: each must be a JSON object."""
    if isinstance(tool, NamespaceTool):
        for index, inner in enumerate(tool.tools):
            _take_definitions(inner, f"{where}.tools[{index}]", definitions)
    elif isinstance(tool, FunctionTool):
        _check_schema(tool.parameters, f"{where}.parameters", definitions)
        _check_schema(tool.output_schema, f"{where}.output_schema", definitions)
    elif isinstance(tool, ToolSearchTool):
        _check_schema(tool.parameters, f"{where}.parameters", definitions)
        _check_search(tool, where)
    else:
        wire.require_object(tool.format, f"{where}.format")
        grammar = read_grammar(tool.format, f"{where}.format")
        if grammar is not None:
            definitions.add_grammar(grammar, f"{where}.format")


def _check_schema(schema: Raw | UnsetType, where: str, definitions: Definitions) -> None:
    wire.require_object(schema, where)
    definitions.check_schema(schema, where)


def _check_search(tool: ToolSearchTool, where: str) -> None:
    if tool.execution != "client":
        param = f"{where}.execution"
        raise UnsupportedParameter.at(param, "only 'client' is supported; this server runs no tool search")


def _callable(tool: Definition, namespace: str | None) -> CallableTool:
    if isinstance(tool, ToolSearchTool):
        return CallableTool(kind="tool_search", name=TOOL_SEARCH, namespace=None, definition=tool)
    kind: Kind = "function" if isinstance(tool, FunctionTool) else "custom"
    return CallableTool(kind=kind, name=tool.name, namespace=namespace, definition=tool)


def _refuse_twins(callables: list[CallableTool], where: str) -> None:
    seen: set[tuple[str | None, str]] = set()
    for tool in callables:
        key = (tool.namespace, tool.name)
        if key in seen:
            raise InvalidRequest.at(where, f"two tools are named '{tool.name}'")
        seen.add(key)


def merged(tools: tuple[CallableTool, ...], *newer: tuple[CallableTool, ...]) -> tuple[CallableTool, ...]:
    """Concatenate lists of tools; a later tool replaces an earlier one of the same name."""
    if not any(newer):
        return tools
    named: dict[tuple[str | None, str], CallableTool] = {}
    for tool in chain(tools, *newer):
        key = (tool.namespace, tool.name)
        named.pop(key, None)  # so that it moves to its new position
        named[key] = tool
    return tuple(named.values())
