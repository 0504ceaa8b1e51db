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

from collections.abc import Iterable, Mapping

from msgspec import Raw, Struct

from slipring.protocol import wire
from slipring.protocol.hosted.builtin_tools import BuiltinKind
from slipring.protocol.hosted.hosted_items import CallError
from slipring.protocol.hosted.mcp_tools import (
    ListedTool,
    model_name,
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
