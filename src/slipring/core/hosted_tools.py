"""The hosted tools of a request, MCP servers and built-in tools: what it offers, and what answers a call.

The core never calls a server. It asks the driver to resolve the servers of a request (``ResolveTools``), to
fetch their lists (``ListTools``) and to run calls (``CallTool``), and passes ``ResolvedServer.handle`` back
without looking at it. Of a list, a request offers what client, operator and key allow.

A list in a context may be the one that a request needs. It belongs to a server and not to a label: a request
may name another server by the label of an earlier one, or the same with other credentials. The id of an
``mcp_list_tools`` item therefore ends in two values: a tag that identifies the MCP server, and that only this
server can make, and a digest of the part of the list that is shown. Both come back with chains, conversations
and histories.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from types import MappingProxyType

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from slipring.base.errors import ApiError, UnsupportedParameter
from slipring.core.chain import approvals, hosted_items_in_context, item_ids
from slipring.core.chain.approvals import Approved, Verify
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import Approval, Carry
from slipring.core.generation import Hosting, UpstreamTools
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import CallError
from slipring.protocol.items.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import McpApprovalRequestItem
from slipring.protocol.tools import tool_types
from slipring.protocol.tools.builtin_tools import SentBuiltin, read_builtins, with_builtins
from slipring.protocol.tools.mcp_tools import (
    ListedTool,
    McpTool,
    ToolFilter,
    model_name,
    read_list,
    read_servers,
    respelled,
    with_servers,
)
from slipring.protocol.tools.tool_types import BuiltinKind
from slipring.protocol.wire import given

_OF_TOOLS = ("code_interpreter_call.", "file_search_call.", "web_search_call.")
"""Values of ``include`` about tools that servers run begin with these."""
_SHOWN_DIGITS = 8
"""Digits at the end of a list's id that identify what of it is shown."""
Tag = Callable[[bytes], str]
"""Makes a tag over bytes, for the tenant of the turn."""


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


class FetchedList(Struct, frozen=True, eq=False):
    """How fetching the list of a server has ended."""

    tools: tuple[ListedTool, ...] = ()
    """What operator and key permit of it."""
    error: CallError | None = None
    """Why it could not be fetched."""
    refusal: ApiError | None = None
    """Set if the response fails for this, because the operator prefers not to go on without the list."""


def tools_allowed(server: McpTool, resolved: ResolvedServer, tools: Iterable[ListedTool]) -> list[HostedTool]:
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


def list_tag(server: McpTool, resolved: ResolvedServer, tag: Tag) -> str:
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


def compose_offer(
    sent: Raw | UnsetType,
    servers: Sequence[McpTool],
    resolved: Mapping[str, ResolvedServer],
    lists: Mapping[str, Iterable[ListedTool]],
    builtins: Mapping[int, HostedTool] = MappingProxyType({}),
) -> Offered:
    """Put the lists of the servers into the ``tools`` of a request. ``lists``: those that are known.
    ``builtins``: what answers built-in tools, by their indexes."""
    offered = {
        server.server_label: tools_allowed(
            server, resolved[server.server_label], lists.get(server.server_label, ())
        )
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


def tool_answering(sent: SentBuiltin, found: ResolvedBuiltin) -> HostedTool | None:
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


class HostedRequest(Struct, eq=False):
    """The hosted tools of one turn."""

    seal: Seal
    tenant: str
    servers: tuple[McpTool, ...] = ()
    """The MCP servers of the request, as sent."""
    resolved: Mapping[str, ResolvedServer] | None = None
    """What the driver found out about them, by label; None before it was asked."""
    builtins: tuple[SentBuiltin, ...] = ()
    """The built-in tools of the request."""
    answers: Mapping[BuiltinKind, ResolvedBuiltin] = {}
    """What answers them."""
    offered: Offered | None = None
    """What the request offers of both, without the tools of lists that are awaited."""
    awaited: dict[str, ResolvedServer] = {}
    """By label, the servers whose lists the context does not have, until these are fetched."""
    lists: dict[str, list[ListedTool]] = {}
    """By label, the lists that are known."""
    sent: Raw | UnsetType = UNSET
    """The ``tools`` of the request before anything was put into them."""
    approved: list[Approved] = []
    """Calls that the input approves, until they have run."""
    upstream_tools: UpstreamTools | None = None
    """What the engine's server gets, if it runs tools of the request."""
    input: tuple[Item, ...] | None = None
    """The input with the results of approved calls, once these have run."""
    unopened: tuple[Item, ...] = ()
    """The input before its hosted items were opened, if it approves calls."""

    @property
    def is_read(self) -> bool:
        """Whether the tools of the request have been read."""
        return self.resolved is not None or self.upstream_tools is not None

    def read_servers(self, request: CreateRequest, hosting: Hosting) -> None:
        """Read what the driver is to resolve: MCP servers and built-in tools."""
        if hosting == "refuse":
            tool_types.refuse_hosted(request.tools)
        if hosting == "upstream":
            self._pass_on(request)
            return
        self.servers = read_servers(request.tools)
        self.builtins = read_builtins(request.tools)

    def resolve(
        self, servers: Mapping[str, ResolvedServer], answers: Mapping[BuiltinKind, ResolvedBuiltin]
    ) -> None:
        """The driver has looked up the servers, and what answers the built-in tools."""
        self.resolved, self.answers = servers, answers

    def _pass_on(self, request: CreateRequest) -> None:
        """Keep the tools for the engine's server; the request loses their secrets."""
        sent = given(request.tools)
        if sent is None or not tool_types.passes_on(sent):
            return
        servers = read_servers(sent, elsewhere=True)
        choice = given(request.tool_choice)
        self.upstream_tools = UpstreamTools(
            tools=bytes(sent),
            labels=tuple(server.server_label for server in servers),
            secrets=tuple(secret for server in servers for secret in server.secrets),
            choice=bytes(choice) if choice is not None else None,
            include=tuple(value for value in request.include or () if value.startswith(_OF_TOOLS)),
        )
        request.tools = with_servers(sent, {server.server_label: server.kept for server in servers})

    def follow(self, before: "HostedRequest") -> None:
        """Use the servers of an earlier turn with the same tools."""
        self.upstream_tools = before.upstream_tools
        if before.resolved is not None:
            self.servers, self.builtins, self.answers = before.servers, before.builtins, before.answers
            self.resolved = before.resolved

    def read_input(self, before: Carry, items: tuple[Item, ...], *, complete: bool) -> tuple[Item, ...]:
        """Find the calls that an input approves. Returns it as the model reads it: with its hosted items
        opened. ``complete``: a response will be generated."""
        if not before.approvals and approvals.KINDS.isdisjoint([item.type for item in items]):
            return hosted_items_in_context.opened(items)
        answers = approvals.read(before, items, complete=complete)
        self.approved, self.unopened = answers.approved, answers.items
        opened = hosted_items_in_context.opened(self.unopened)
        return hosted_items_in_context.with_denials(before.approvals, opened) if complete else opened

    def take_results(self, results: Mapping[str, Item], before: Carry) -> None:
        """The approved calls have returned these results: they stand where the client approved the calls."""
        self.approved = []
        self.input = hosted_items_in_context.with_denials(
            before.approvals, hosted_items_in_context.opened(self.unopened, results)
        )

    def offer(self, request: CreateRequest, carry: Carry) -> Offered | None:
        """Put the tools of the servers into the request, which loses its secrets, and check the approvals.
        The lists are those of the context; the others are ``awaited``.

        Returns what is offered; None if the request has no servers, and nothing answers its built-in tools.
        """
        self.sent = request.tools
        for server in self.servers:
            self._find_list(server, carry)
        self._compose(request)
        for each in self.approved:
            named = self._server(each.approval.label)
            if named is None:
                raise approvals.not_offered(each)
            approvals.require_genuine(each, named, partial(self.seal.verify, self.tenant))
        self._require_approved()
        return self.offered

    def _find_list(self, server: McpTool, carry: Carry) -> None:
        """Take the list of a server from the context, or await it."""
        assert self.resolved is not None
        label = server.server_label
        found, verify = self.resolved[label], partial(self.seal.verify, self.tenant)
        if (listed := list_in_context(server, found, carry, verify)) is not None:
            self.lists[label] = listed
        else:
            self.awaited[label] = found

    def tag_list(self, label: str) -> str:
        """What the id of the list of a server ends with."""
        server = self._server(label)
        assert server is not None
        return list_tag(server, self.awaited[label], partial(self.seal.tag, self.tenant))

    def take_list(self, label: str, fetched: FetchedList) -> list[ListedTool]:
        """The list of a server has been fetched: returns what of it the request offers."""
        server = self._server(label)
        assert server is not None
        self.lists[label] = list(fetched.tools)
        return [each.tool for each in tools_allowed(server, self.awaited[label], fetched.tools)]

    def take_lists(self, request: CreateRequest) -> HostedTools:
        """All lists have been fetched: put their tools into the request. Returns what can be called."""
        self.awaited = {}
        self._compose(request)
        self._require_approved()
        assert self.offered is not None
        return self.offered.tools

    def _compose(self, request: CreateRequest) -> None:
        builtins = self._answered() if self.builtins else {}
        if self.servers or builtins:
            assert self.resolved is not None
            self.offered = compose_offer(self.sent, self.servers, self.resolved, self.lists, builtins)
            request.tools = self.offered.definitions

    def _require_approved(self) -> None:
        """Refuse approved calls of tools that are not in the known lists."""
        for each in self.approved:
            if each.approval.label not in self.awaited and self.find_tool(each.approval) is None:
                raise approvals.not_offered(each)

    def _answered(self) -> dict[int, HostedTool]:
        """What answers the built-in tools, by their indexes in ``tools``."""
        found = {
            sent.index: tool_answering(sent, self.answers[sent.kind])
            for sent in self.builtins
            if sent.kind in self.answers
        }
        return {index: tool for index, tool in found.items() if tool is not None}

    def sign(self, request: McpApprovalRequestItem) -> str:
        """The tag of an approval request."""
        server = self._server(request.server_label)
        assert server is not None
        approval = Approval(request.server_label, request.name, request.arguments)
        return self.seal.tag(self.tenant, approvals.signed_bytes(server, approval))

    def find_tool(self, approval: Approval) -> HostedTool | None:
        """The tool that an approved call names; None if the request does not offer it."""
        return self.offered.tools.named(approval.label, approval.name) if self.offered is not None else None

    def _server(self, label: str) -> McpTool | None:
        return next((server for server in self.servers if server.server_label == label), None)
