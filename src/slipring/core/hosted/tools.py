"""What the driver finds out about the hosted tools of a request: servers, lists and outcomes of calls; and
the tools that can be called.

The core never calls a server. It asks the driver to resolve the servers of a request (``ResolveTools``), to
fetch their lists (``ListTools``) and to run calls (``CallTool``), and passes ``ResolvedServer.handle`` back
without looking at it.

A list in a context may be the one that a request needs. It belongs to a server and not to a label: a request
may name another server by the label of an earlier one, or the same with other credentials. The id of an
``mcp_list_tools`` item therefore ends in two values: a tag that identifies the MCP server, and that only this
server can make, and a digest of the part of the list that is shown. Both come back with chains, conversations
and histories.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from msgspec import Raw, Struct, UnsetType, structs

from slipring.base.errors import ApiError, UnsupportedParameter
from slipring.core.chain import item_ids
from slipring.core.hosted import approvals
from slipring.protocol import wire
from slipring.protocol.hosted.builtin_tools import BuiltinKind, SentBuiltin, with_builtins
from slipring.protocol.hosted.hosted_items import CallError
from slipring.protocol.hosted.mcp_tools import (
    ListedTool,
    McpTool,
    ToolFilter,
    model_name,
    respelled,
    with_servers,
)


class ResolvedServer(Struct, frozen=True, eq=False):
    """A server that a request names and that its caller may use."""

    handle: object
    """The driver's own: the server and the credentials of this request."""
    identity: str = ""
    """Equal for requests that get the same list: those to the same server with the same credentials. Says
    nothing about either."""
    permitted: frozenset[str] | None = None
    """The tools that operator and key permit; None: all."""
    always_approve: bool = False
    """Whether the operator requires approval of every call, whatever the client says."""


class FetchedList(Struct, frozen=True, eq=False):
    """How fetching the list of a server has ended."""

    tools: tuple[ListedTool, ...] = ()
    """What operator and key permit of it."""
    error: CallError | None = None
    """Why it could not be fetched."""
    refusal: ApiError | None = None
    """Set if the response fails for this, because the operator prefers not to go on without the list."""


class ResolvedBuiltin(Struct, frozen=True, eq=False):
    """The tool that answers a built-in type for the caller of a request."""

    server: ResolvedServer
    tool: str
    """Its name at the server."""
    argument: str
    """Gets what the model writes."""
    fields: Mapping[str, str] = {}
    """Fields of the type, as clients send them, and the arguments that get their values."""


class Builtin(Struct, frozen=True, eq=False):
    """A built-in type, and how its calls become calls of the tool that answers it."""

    kind: BuiltinKind
    argument: str
    given: Mapping[str, Raw] = {}
    """The arguments that the request itself determines."""
    container: str | None = None
    """The container that the request names for code."""

    def arguments(self, text: str) -> str:
        """The arguments of the tool, as JSON, for what the model wrote."""
        return wire.encode({**self.given, self.argument: text}).decode()


class HostedTool(Struct, frozen=True, eq=False):
    """A tool of a server, as the model may call it in one request."""

    server: ResolvedServer
    label: str
    tool: ListedTool
    needs_approval: bool
    builtin: Builtin | None = None
    """Set if it answers a built-in type: it is called by the name of that."""

    @property
    def key(self) -> tuple[str | None, str]:
        """The namespace and the name by which a model calls it."""
        if self.builtin is not None:
            return None, self.builtin.kind
        return self.label, model_name(self.label, self.tool.name)


class HostedCall(Struct, frozen=True, eq=False):
    """A call that the driver runs."""

    id: str
    """Of its item."""
    server: ResolvedServer
    label: str
    tool: str
    """Its name at the server."""
    arguments: str
    """JSON text, as the model wrote it."""


class CallOutcome(Struct, frozen=True):
    """How a call ended: ``output`` if the tool succeeded, otherwise ``error``."""

    output: str | None = None
    error: CallError | None = None
    pictures: tuple[str, ...] = ()
    """Data URLs of the images that the model sees after ``output``, which says what they are. Clients do not
    get them: their items have no place for images."""


class CallProgress(Struct, frozen=True):
    """What a server says of a call that still runs."""

    progress: float
    total: float | None = None
    message: str | None = None


class HostedTools:
    """All hosted tools that the model may call in one request."""

    __slots__ = ("_tools",)

    def __init__(self, tools: Iterable[HostedTool] = ()) -> None:
        self._tools = {each.key: each for each in tools}

    def find(self, namespace: str | None, name: str) -> HostedTool | None:
        """The tool that a model calls by this name; None if the client runs it."""
        return self._tools.get((namespace, name))

    def named(self, label: str, name: str) -> HostedTool | None:
        """The tool of this name at its server; None if it may not be called."""
        return self._tools.get((label, model_name(label, name)))


class Offered(Struct, frozen=True):
    """What one request offers of its MCP servers and built-in tools."""

    tools: HostedTools
    definitions: Raw
    """The request's ``tools`` without secrets, each server with the tools that it offers, and built-in ones
    as a head keeps them."""


def compose(
    sent: Raw | UnsetType,
    servers: Sequence[McpTool],
    resolved: Mapping[str, ResolvedServer],
    lists: Mapping[str, Iterable[ListedTool]],
    builtins: Mapping[int, HostedTool] = MappingProxyType({}),
) -> Offered:
    """Put the lists of the servers into the ``tools`` of a request. ``lists``: those that are known.
    ``builtins``: what answers built-in tools, by their indexes."""
    offered = {
        server.server_label: select(server, resolved[server.server_label], lists.get(server.server_label, ()))
        for server in servers
    }
    kept = {
        server.server_label: structs.replace(
            server.kept, listed=[each.tool for each in offered[server.server_label]]
        )
        for server in servers
    }
    listed_tools = [each for tools in offered.values() for each in tools]
    kinds = {index: tool.builtin.kind for index, tool in builtins.items() if tool.builtin is not None}
    return Offered(
        HostedTools([*listed_tools, *builtins.values()]), with_servers(with_builtins(sent, kinds), kept)
    )


def answering(sent: SentBuiltin, found: ResolvedBuiltin) -> HostedTool | None:
    """The tool that answers a built-in tool of a request; None if the client wants no search outside, and the
    tool cannot be told so. Raises ``UnsupportedParameter`` for filters that the tool cannot be given."""
    if sent.is_offline and "external_web_access" not in found.fields:
        return None
    if "filters" in sent.fields and "filters" not in found.fields:
        param = f"tools[{sent.index}].filters"
        raise UnsupportedParameter.at(param, f"the tool that answers '{sent.kind}' here takes no filters")
    given = {found.fields[name]: value for name, value in sent.fields.items() if name in found.fields}
    return HostedTool(
        found.server,
        sent.kind,
        ListedTool(found.tool, wire.NULL),
        needs_approval=False,
        builtin=Builtin(sent.kind, found.argument, given, sent.container),
    )


def select(server: McpTool, resolved: ResolvedServer, tools: Iterable[ListedTool]) -> list[HostedTool]:
    """The tools of a list that client, operator and key allow."""
    return [
        HostedTool(
            resolved,
            server.server_label,
            tool,
            needs_approval=approvals.needs_approval(server, tool, always=resolved.always_approve),
        )
        for tool in map(respelled, tools)
        if server.allows(tool) and (resolved.permitted is None or tool.name in resolved.permitted)
    ]


_SHOWN_DIGITS = 8
Tag = Callable[[bytes], str]
"""Makes a tag over bytes, for the tenant of the turn."""
Verify = Callable[[bytes, str], bool]
"""Whether a tag was made over these bytes, for the tenant of the turn."""


def tag_list(server: McpTool, resolved: ResolvedServer, tag: Tag) -> str:
    """What the id of a list ends with that is fetched for a request."""
    return tag(_server_bytes(server, resolved)) + _shown(resolved, server.allowed_tools)


def serves(
    list_id: str | None, tools: list[ListedTool], server: McpTool, resolved: ResolvedServer, verify: Verify
) -> bool:
    """Whether a list in the context is that of a server, and has everything that a request may use of it.

    A list without a tag is not from here: it is what its client says that the server has.
    """
    tags = item_ids.tag_of(list_id) if list_id is not None else None
    if tags is None:
        return True
    if not verify(_server_bytes(server, resolved), tags[:-_SHOWN_DIGITS]):
        return False
    if tags[-_SHOWN_DIGITS:] in (_shown(resolved, None), _shown(resolved, server.allowed_tools)):
        return True
    names = _names(server)
    return names is not None and names <= {tool.name for tool in tools}


def _names(server: McpTool) -> set[str] | None:
    """The names of the only tools that a request may use; None if it does not name them."""
    allowed = server.allowed_tools
    names = allowed.tool_names if isinstance(allowed, ToolFilter) else allowed
    return None if names is None else set(names)


def _server_bytes(server: McpTool, resolved: ResolvedServer) -> bytes:
    return wire.encode(("list", server.server_label, resolved.identity))


def _shown(resolved: ResolvedServer, allowed: list[str] | ToolFilter | None) -> str:
    """Identifies what of a list is shown: what the client allows of what operator and key permit."""
    permitted = None if resolved.permitted is None else sorted(resolved.permitted)
    return blake2b(wire.encode((allowed, permitted)), digest_size=_SHOWN_DIGITS // 2).hexdigest()
