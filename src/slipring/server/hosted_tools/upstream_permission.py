"""Whether a key may have the MCP servers of a request called by the engine's server."""

from slipring.base.errors import PermissionDenied, quoted
from slipring.core.generation import Job
from slipring.server.access.auth import Caller


def require_unbound(caller: Caller, job: Job) -> None:
    """Refuse a key that is limited to MCP servers or tools: its permissions are for servers that are
    registered here, and the engine's server would not apply them."""
    tools, key = job.upstream_tools, caller.key
    if tools is None or not tools.labels or key is None or not key.limits_mcp:
        return
    raise PermissionDenied(
        f"The MCP server {quoted(tools.labels[0])} would be called by the server of this model, where the"
        " limits of your API key do not apply.",
        param="tools",
    )
