"""The hosted tools of one request: what the driver found out about their servers, and each single tool.

The core never calls a server. It asks the driver to resolve the servers of a request (``ResolveTools``) and to
run calls (``CallTool``), and passes ``ResolvedServer.handle`` back without looking at it.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Struct

from slipring.protocol.hosted.mcp_items import CallError
from slipring.protocol.hosted.mcp_tools import ListedTool, McpTool

_LONGEST_NAME = 64
"""Of ``label__name``: other servers accept no longer names of functions."""
_SEPARATOR = "__"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class ResolvedServer(Struct, frozen=True, eq=False):
    """A server that a request names and that its caller may use."""

    handle: object
    """The driver's own: the server and the credentials of this request."""
    tools: tuple[ListedTool, ...] | None = None
    """Its list, if it was to be fetched."""
    error: CallError | None = None
    """Why the list is empty, if it could not be fetched and the operator prefers to go on."""
    permitted: frozenset[str] | None = None
    """The tools that operator and key permit; None: all. Lists that are fetched have only these."""
    always_approve: bool = False
    """Whether the operator requires approval of every call, whatever the client says."""


class HostedTool(Struct, frozen=True, eq=False):
    """A tool of a server, as the model may call it in one request."""

    server: ResolvedServer
    label: str
    tool: ListedTool
    needs_approval: bool


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


class CallProgress(Struct, frozen=True):
    """What a server says of a call that still runs."""

    progress: float
    total: float | None = None
    message: str | None = None


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


class HostedTools:
    """All hosted tools that the model may call in one request."""

    __slots__ = ("_tools",)

    def __init__(self, tools: Iterable[HostedTool] = ()) -> None:
        self._tools = {(each.label, model_name(each.label, each.tool.name)): each for each in tools}

    def __bool__(self) -> bool:
        return bool(self._tools)

    def find(self, namespace: str | None, name: str) -> HostedTool | None:
        """The tool that a model calls by this name; None if the client runs it."""
        return self._tools.get((namespace, name)) if namespace is not None else None

    def named(self, label: str, name: str) -> HostedTool | None:
        """The tool of this name at its server; None if it may not be called."""
        return self._tools.get((label, model_name(label, name)))


def select(server: McpTool, resolved: ResolvedServer, tools: Iterable[ListedTool]) -> list[HostedTool]:
    """The tools of a list that client, operator and key allow."""
    return [
        HostedTool(
            resolved,
            server.server_label,
            tool,
            needs_approval=resolved.always_approve or server.needs_approval(tool),
        )
        for tool in tools
        if server.allows(tool) and (resolved.permitted is None or tool.name in resolved.permitted)
    ]
