"""Lists of tools in a context: whether one of them is the list that a request needs.

A list belongs to a server and not to a label: a request may name another server by the label of an earlier
one, or the same with other credentials. The id of an ``mcp_list_tools`` item therefore ends in two values: a
tag that identifies the MCP server, and that only this server can make, and a digest of the part of the list
that is shown. Both come back with chains, conversations and histories.
"""

from collections.abc import Callable
from hashlib import blake2b

from slipring.core.chain import item_ids
from slipring.core.hosted.tools import ResolvedServer
from slipring.protocol import wire
from slipring.protocol.hosted.mcp_tools import ListedTool, McpTool, ToolFilter

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
