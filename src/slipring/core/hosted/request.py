"""The hosted tools of one request: MCP servers, built-in tools, and the calls that its input approves."""

from collections.abc import Mapping
from functools import partial

from msgspec import UNSET, Raw, UnsetType, structs

from slipring.base.errors import InvalidRequest, quoted
from slipring.core.chain import hosted_items_in_context
from slipring.core.chain.head import Head
from slipring.core.chain.hosted_items_in_context import HOSTED
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import Approval, Carry
from slipring.core.generation import Hosting, Model, UpstreamTools
from slipring.core.hosted import approvals
from slipring.core.hosted.approvals import Approved
from slipring.core.hosted.tool_lists import FetchedList, Offered, answering, compose, select, serves, tag_list
from slipring.core.hosted.tools import HostedTool, HostedTools, ResolvedBuiltin, ResolvedServer
from slipring.protocol.definitions import Definitions
from slipring.protocol.hosted import tool_types
from slipring.protocol.hosted.builtin_tools import BuiltinKind, SentBuiltin, read_builtins
from slipring.protocol.hosted.mcp_tools import ListedTool, McpTool, read_list, read_servers, with_servers
from slipring.protocol.hosted.tool_types import CLIENT_TYPES
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import McpApprovalRequestItem
from slipring.protocol.wire import given

_OF_TOOLS = ("code_interpreter_call.", "file_search_call.", "web_search_call.")
"""Values of ``include`` about tools that servers run begin with these."""


class HostedRequest:
    """The hosted tools of one turn."""

    def __init__(self, seal: Seal, tenant: str) -> None:
        self._seal = seal
        self._tenant = tenant
        self.servers: tuple[McpTool, ...] = ()
        """The MCP servers of the request, as sent."""
        self.resolved: Mapping[str, ResolvedServer] | None = None
        """What the driver found out about them, by label; None before it was asked."""
        self.builtins: tuple[SentBuiltin, ...] = ()
        """The built-in tools of the request."""
        self.answers: Mapping[BuiltinKind, ResolvedBuiltin] = {}
        """What answers them."""
        self.offered: Offered | None = None
        """What the request offers of both, without the tools of lists that are awaited."""
        self.awaited: dict[str, ResolvedServer] = {}
        """By label, the servers whose lists the context does not have, until these are fetched."""
        self._lists: dict[str, list[ListedTool]] = {}
        """By label, the lists that are known."""
        self._sent: Raw | UnsetType = UNSET
        """The ``tools`` of the request before anything was put into them."""
        self.approved: list[Approved] = []
        """Calls that the input approves, until they have run."""
        self.is_upstream = False
        """Whether the engine's server runs hosted tools. It then owns their items too: they are passed on as
        they are, and models of other engines do not see them."""
        self.upstream_tools: UpstreamTools | None = None
        """What that server gets, if the request has any."""
        self.input: tuple[Item, ...] = ()
        """The input as the model reads it: its hosted items are opened, and results of approved calls are in
        it once these have run."""
        self._input: tuple[Item, ...] = ()
        """The input before its hosted items were opened."""

    @property
    def is_read(self) -> bool:
        """Whether the tools of the request have been read."""
        return self.resolved is not None or self.upstream_tools is not None

    def read_servers(self, request: CreateRequest, hosting: Hosting, known: Head | None = None) -> None:
        """Read what the driver is to resolve: MCP servers and built-in tools. ``known``: a head that was read
        before, for the same model."""
        self.is_upstream = hosting == "upstream"
        if known is not None and known.tools.are_clients and known.has_tools_of(request):
            return
        if hosting == "refuse":
            tool_types.refuse_hosted(request.tools)
        if self.is_upstream:
            self._pass_on(request)
            return
        self.servers = read_servers(request.tools)
        self.builtins = read_builtins(request.tools)

    def resolve(
        self, servers: Mapping[str, ResolvedServer], answers: Mapping[BuiltinKind, ResolvedBuiltin]
    ) -> None:
        """The driver has looked up the servers, and what answers the built-in tools."""
        self.resolved, self.answers = servers, answers

    @property
    def must_resolve(self) -> bool:
        """Whether the driver has to look something up."""
        return bool(self.servers or self.builtins)

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
        self.is_upstream, self.upstream_tools = before.is_upstream, before.upstream_tools
        if before.resolved is not None:
            self.servers, self.builtins, self.answers = before.servers, before.builtins, before.answers
            self.resolved = before.resolved

    def read_input(self, before: Carry, items: tuple[Item, ...], *, complete: bool) -> None:
        """Set the input, and find the calls that it approves. ``complete``: a response will be generated."""
        self.input = items
        if self.is_upstream:
            return
        types = {item.type for item in items}
        if not before.approvals and approvals.KINDS.isdisjoint(types):
            self._input = items
            if not HOSTED.isdisjoint(types) or any(item.opened is not None for item in items):
                self.input = hosted_items_in_context.opened(items)
            return
        answers = approvals.read(before, items)
        self.approved, self._input = answers.approved, answers.items
        if self.approved and not complete:
            where = self.approved[0].where
            raise InvalidRequest.at(where, "only a request that generates an answer can approve a call")
        opened = hosted_items_in_context.opened(self._input)
        self.input = approvals.with_denials(before.approvals, opened) if complete else opened

    def take_results(self, results: Mapping[str, Item], before: Carry) -> None:
        """The approved calls have returned these results: they stand where the client approved the calls."""
        self.approved = []
        self.input = approvals.with_denials(
            before.approvals, hosted_items_in_context.opened(self._input, results)
        )

    def offer(self, request: CreateRequest, carry: Carry) -> Offered | None:
        """Put the tools of the servers into the request, which loses its secrets, and check the approvals.
        The lists are those of the context; the others are ``awaited``.

        Returns what is offered; None if the request has no servers, and nothing answers its built-in tools.
        """
        self._sent = request.tools
        for server in self.servers:
            self._find_list(server, carry)
        self._compose(request)
        for each in self.approved:
            named = self._server(each.approval.label)
            if named is None:
                raise _not_offered(each)
            approvals.require_genuine(each, named, partial(self._seal.verify, self._tenant))
        self._require_approved()
        return self.offered

    def _find_list(self, server: McpTool, carry: Carry) -> None:
        """Take the list of a server from the context, or await it."""
        assert self.resolved is not None
        label = server.server_label
        found, tools = self.resolved[label], carry.lists.get(label)
        if tools is not None:
            listed, verify = read_list(tools), partial(self._seal.verify, self._tenant)
            if serves(carry.list_ids.get(label), listed, server, found, verify):
                self._lists[label] = listed
                return
        self.awaited[label] = found

    def tag_list(self, label: str) -> str:
        """What the id of the list of a server ends with."""
        server = self._server(label)
        assert server is not None
        return tag_list(server, self.awaited[label], partial(self._seal.tag, self._tenant))

    def take_list(self, label: str, fetched: FetchedList) -> list[ListedTool]:
        """The list of a server has been fetched: returns what of it the request offers."""
        server = self._server(label)
        assert server is not None
        self._lists[label] = list(fetched.tools)
        return [each.tool for each in select(server, self.awaited[label], fetched.tools)]

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
            self.offered = compose(self._sent, self.servers, self.resolved, self._lists, builtins)
            request.tools = self.offered.definitions

    def _require_approved(self) -> None:
        """Refuse approved calls of tools that are not in the known lists."""
        for each in self.approved:
            if each.approval.label not in self.awaited and self.find_tool(each.approval) is None:
                raise _not_offered(each)

    def _answered(self) -> dict[int, HostedTool]:
        """What answers the built-in tools, by their indexes in ``tools``."""
        found = {
            sent.index: answering(sent, self.answers[sent.kind])
            for sent in self.builtins
            if sent.kind in self.answers
        }
        return {index: tool for index, tool in found.items() if tool is not None}

    def carry_on(self, carry: Carry) -> Carry:
        """The carry of the finished response, for later turns. Lists and approvals of another server mean
        nothing to this one, which may run the tools of a later turn."""
        return structs.replace(carry, lists={}, list_ids={}, approvals={}) if self.is_upstream else carry

    def accept_unanswered_tools(self, definitions: Definitions, model: Model) -> None:
        """Accept tools that nothing here answers if the engine's server does, or makes calls of them that the
        client answers."""
        if self.is_upstream:
            definitions.ignored_tools = None
        elif model.is_upstream and definitions.ignored_tools is not None:
            definitions.ignored_tools |= CLIENT_TYPES

    def sign(self, request: McpApprovalRequestItem) -> str:
        """The tag of an approval request."""
        server = self._server(request.server_label)
        assert server is not None
        approval = Approval(request.server_label, request.name, request.arguments)
        return self._seal.tag(self._tenant, approvals.signed_bytes(server, approval))

    def find_tool(self, approval: Approval) -> HostedTool | None:
        """The tool that an approved call names; None if the request does not offer it."""
        return self.offered.tools.named(approval.label, approval.name) if self.offered is not None else None

    def _server(self, label: str) -> McpTool | None:
        return next((server for server in self.servers if server.server_label == label), None)


def _not_offered(approved: Approved) -> InvalidRequest:
    return InvalidRequest.at(
        approved.where,
        f"the request's 'tools' do not have the tool {quoted(approved.approval.name)} of the"
        f" MCP server {quoted(approved.approval.label)}",
    )
