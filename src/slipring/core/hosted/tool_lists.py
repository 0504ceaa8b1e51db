"""Lists of hosted tools: which of their tools client, operator and key allow, and whether a list in the
context serves for a request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from msgspec import Raw, Struct, UnsetType, structs

from slipring.base.errors import ApiError, UnsupportedParameter
from slipring.core.chain import item_ids
from slipring.core.chain.state import Carry
from slipring.core.hosted import approvals
from slipring.core.hosted.tools import Builtin, HostedTool, HostedTools, ResolvedBuiltin, ResolvedServer
from slipring.protocol import wire
from slipring.protocol.hosted.builtin_tools import SentBuiltin, with_builtins
from slipring.protocol.hosted.hosted_items import CallError
from slipring.protocol.hosted.mcp_tools import (
    ListedTool,
    McpTool,
    ToolFilter,
    read_list,
    respelled,
    with_servers,
)


class FetchedList(Struct, frozen=True, eq=False):
    """How fetching the list of a server has ended."""

    tools: tuple[ListedTool, ...] = ()
    """What operator and key permit of it."""
    error: CallError | None = None
    """Why it could not be fetched."""
    refusal: ApiError | None = None
    """Set if the response fails for this, because the operator prefers not to go on without the list."""


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


def list_in_context(
    server: McpTool, resolved: ResolvedServer, carry: Carry, verify: Verify
) -> list[ListedTool] | None:
    """The list of a server that the context has, so that it is not fetched; None if there is none that serves
    for the request."""
    label = server.server_label
    if (tools := carry.lists.get(label)) is None:
        return None
    listed = read_list(tools)
    return listed if _serves(carry.list_ids.get(label), listed, server, resolved, verify) else None


def _serves(
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
    """The tool that answers a built-in tool of a request. None if the request forbids web access and the tool
    has no argument for that. Raises ``UnsupportedParameter`` if the request has filters and the tool takes
    none."""
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
