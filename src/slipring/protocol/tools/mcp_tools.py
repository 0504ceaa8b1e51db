"""The ``mcp`` tool of a request: an MCP server whose tools the model may call and slipring runs.

``McpTool`` decodes the tool as clients send it, secrets included, and belongs to one request: what is echoed,
kept in a head or stored is made from ``McpTool.kept``, which has none.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.tools.tool_types import MOST_TOOLS
from slipring.protocol.wire import given

Label = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[A-Za-z0-9_-]+\Z")]
ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
MOST_SERVERS = 64
"""Per request."""
_WORDS = b'"mcp"'
_LONGEST_NAME = 64
"""Of ``label__name``: other servers accept no longer names of functions."""
_SEPARATOR = "__"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class ToolHints(Struct):
    """What a server claims about a tool. Not verified."""

    read_only: bool | None = False

    def __post_init__(self) -> None:
        self.read_only = self.read_only is True


class ListedTool(Struct, omit_defaults=True):
    """A tool of a server, as ``mcp_list_tools`` items list it: with annotations, and without a description if
    it has none. Clients may send nulls for both, but not all of them accept a null."""

    name: ToolName
    input_schema: Raw
    description: str | None = None
    annotations: ToolHints | None = None

    def __post_init__(self) -> None:
        if self.annotations is None:
            self.annotations = ToolHints()

    @property
    def is_read_only(self) -> bool:
        return self.annotations is not None and self.annotations.read_only is True


class ToolFilter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Selects tools by name, by the server's hint that they change nothing, or by both."""

    tool_names: list[ToolName] | None = None
    read_only: bool | None = None

    def selects(self, tool: ListedTool) -> bool:
        if self.tool_names is not None and tool.name not in self.tool_names:
            return False
        return self.read_only is None or tool.is_read_only == self.read_only


class ApprovalFilter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpTool(Struct, tag_field="type", tag="mcp"):
    """An ``mcp`` tool as sent. Its secrets never leave the turn that sent them."""

    server_label: Label
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[ToolName] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    server_description: str | None = None
    defer_loading: bool | None = None
    allowed_callers: list[Literal["direct", "programmatic"]] | None = None

    def __repr__(self) -> str:
        return f"<McpTool {self.server_label}>"

    def allows(self, tool: ListedTool) -> bool:
        """Whether ``allowed_tools`` lets the model call the tool."""
        if self.allowed_tools is None:
            return True
        if isinstance(self.allowed_tools, ToolFilter):
            return self.allowed_tools.selects(tool)
        return tool.name in self.allowed_tools

    @property
    def secrets(self) -> tuple[str, ...]:
        given = (self.authorization, *(self.headers or {}).values())
        return tuple(secret for secret in given if secret)

    @property
    def kept(self) -> "KeptServer":
        """The tool without its secrets."""
        return KeptServer(
            server_label=self.server_label,
            server_url=self.server_url,
            connector_id=self.connector_id,
            tunnel_id=self.tunnel_id,
            allowed_tools=self.allowed_tools,
            require_approval=self.require_approval,
            server_description=self.server_description,
            defer_loading=self.defer_loading,
        )


class KeptServer(Struct, tag_field="type", tag="mcp"):
    """An ``mcp`` tool as responses echo it, and as a head keeps it with the tools that the server listed."""

    server_label: str
    server_url: str | None = None
    connector_id: str | UnsetType | None = UNSET
    tunnel_id: str | UnsetType | None = UNSET
    allowed_tools: list[str] | ToolFilter | None = None
    headers: None = None
    """Always null: their values may be secrets, and a client could not use their names alone."""
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    server_description: str | None = None
    defer_loading: bool | UnsetType | None = UNSET
    listed: list[ListedTool] | UnsetType = UNSET
    """In a head only, never on the wire."""

    def __post_init__(self) -> None:
        for name in ("connector_id", "tunnel_id", "defer_loading"):
            if getattr(self, name) is None:
                setattr(self, name, UNSET)

    @property
    def echo(self) -> "KeptServer":
        """As responses show it."""
        return msgspec.structs.replace(self, listed=UNSET)


def model_name(label: str, name: str) -> str:
    """The name under which a model calls a tool, within the namespace of its server.

    Function names have a narrower alphabet than those of MCP. A name that had to be changed ends in a digest
    of the original, so that no two tools of a server share one.
    """
    most = max(_LONGEST_NAME - len(label) - len(_SEPARATOR), 16)
    if len(name) <= most and not _UNSAFE.search(name):
        return name
    digest = blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{_UNSAFE.sub('_', name)[: most - len(digest) - 1]}_{digest}"


_tools = msgspec.json.Decoder(list[Raw])
_server = msgspec.json.Decoder(McpTool)
_listed = msgspec.json.Decoder(list[ListedTool])


def read_servers(tools: Raw | UnsetType, *, elsewhere: bool = False) -> tuple[McpTool, ...]:
    """The ``mcp`` tools of a request's ``tools``. Raises ``InvalidRequest`` for an invalid one.

    ``elsewhere``: another server calls them, and judges the fields that slipring does not support.
    Everything else in the list is left to ``Toolset.read``, whose errors come first if the list is no list.
    """
    sent = given(tools)
    if sent is None or _WORDS not in bytes(sent):
        return ()
    wire.require_few(sent, MOST_TOOLS, "tools", "tools")
    found: list[McpTool] = []
    for index, raw in enumerate(wire.decode(_tools, sent, where="tools")):
        where = f"tools[{index}]"
        if _WORDS in bytes(raw) and wire.type_of(raw, where) == "mcp":
            found.append(wire.decode(_server, raw, where=where))
            if not elsewhere:
                _require_supported(found[-1], where)
    _require_distinct(found)
    return tuple(found)


def read_list(tools: bytes) -> list[ListedTool]:
    """The tools of a list that is in a context, without those whose schema is not an object."""
    return [tool for tool in _listed.decode(tools) if bytes(tool.input_schema).lstrip()[:1] == b"{"]


def respelled(tool: ListedTool) -> ListedTool:
    """A tool with its schema in one spelling: clients that send a list again spell it in their own way, and
    its tools must not look changed for that."""
    try:
        schema = wire.raw(msgspec.json.decode(tool.input_schema))
    except (msgspec.DecodeError, RecursionError):
        return tool
    return msgspec.structs.replace(tool, input_schema=schema)


def with_servers(tools: Raw | UnsetType, kept: Mapping[str, KeptServer]) -> Raw:
    """The ``tools`` of a request, with each ``mcp`` tool replaced by the one of the same label."""
    entries: list[object] = []
    for raw in _tools.decode(given(tools) or b"[]"):
        is_server = _WORDS in bytes(raw) and wire.type_of(raw) == "mcp"
        entries.append(kept[_server.decode(raw).server_label] if is_server else raw)
    return wire.raw(entries)


def place_of(tools: Raw | UnsetType, label: str) -> str:
    """Where a request defines a server, as errors name it: ``tools[2]``; ``tools`` if it is not there."""
    for index, raw in enumerate(_tools.decode(given(tools) or b"[]")):
        if _WORDS in bytes(raw):
            tool = msgspec.json.decode(raw)
            if isinstance(tool, dict) and (tool.get("type"), tool.get("server_label")) == ("mcp", label):
                return f"tools[{index}]"
    return "tools"


def _require_supported(server: McpTool, where: str) -> None:
    named = [
        name for name in ("server_url", "connector_id", "tunnel_id") if getattr(server, name) is not None
    ]
    if len(named) > 1:
        param = f"{where}.{named[1]}"
        raise InvalidRequest.at(param, f"'{named[0]}' is given too; send one of them")
    if server.tunnel_id is not None:
        param = f"{where}.tunnel_id"
        raise UnsupportedParameter.at(
            param,
            "tunnels belong to OpenAI's own service; this server takes 'server_url', or the"
            " 'server_label' of a registered server",
        )
    if server.allowed_callers is not None and "direct" not in server.allowed_callers:
        param = f"{where}.allowed_callers"
        raise UnsupportedParameter.at(param, "this server runs no programs that call tools")


def _require_distinct(servers: Sequence[McpTool]) -> None:
    if len(servers) > MOST_SERVERS:
        raise wire.too_many(MOST_SERVERS, "tools", "MCP servers")
    labels: set[str] = set()
    for server in servers:
        if server.server_label in labels:
            raise InvalidRequest.at("tools", f"two MCP servers have the label '{server.server_label}'")
        labels.add(server.server_label)
