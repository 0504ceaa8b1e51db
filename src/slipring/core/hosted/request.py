"""The hosted tools of one request: MCP servers, built-in tools, and the calls that its input approves."""

from collections.abc import Mapping
from functools import partial

from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, quoted
from slipring.core.chain import hosted_items_in_context
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import Approval, Carry
from slipring.core.generation import Hosting, UpstreamTools
from slipring.core.hosted import approvals
from slipring.core.hosted.approvals import Approved
from slipring.core.hosted.tool_lists import (
    FetchedList,
    Offered,
    answering,
    compose,
    list_in_context,
    select,
    tag_list,
)
from slipring.core.hosted.tools import HostedTool, HostedTools, ResolvedBuiltin, ResolvedServer
from slipring.protocol.hosted import tool_types
from slipring.protocol.hosted.builtin_tools import BuiltinKind, SentBuiltin, read_builtins
from slipring.protocol.hosted.mcp_tools import ListedTool, McpTool, read_servers, with_servers
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import McpApprovalRequestItem
from slipring.protocol.wire import given

_OF_TOOLS = ("code_interpreter_call.", "file_search_call.", "web_search_call.")
"""Values of ``include`` about tools that servers run begin with these."""


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
        answers = approvals.read(before, items)
        self.approved, self.unopened = answers.approved, answers.items
        if self.approved and not complete:
            where = self.approved[0].where
            raise InvalidRequest.at(where, "only a request that generates an answer can approve a call")
        opened = hosted_items_in_context.opened(self.unopened)
        return approvals.with_denials(before.approvals, opened) if complete else opened

    def take_results(self, results: Mapping[str, Item], before: Carry) -> None:
        """The approved calls have returned these results: they stand where the client approved the calls."""
        self.approved = []
        self.input = approvals.with_denials(
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
                raise _not_offered(each)
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
        return tag_list(server, self.awaited[label], partial(self.seal.tag, self.tenant))

    def take_list(self, label: str, fetched: FetchedList) -> list[ListedTool]:
        """The list of a server has been fetched: returns what of it the request offers."""
        server = self._server(label)
        assert server is not None
        self.lists[label] = list(fetched.tools)
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
            self.offered = compose(self.sent, self.servers, self.resolved, self.lists, builtins)
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


def _not_offered(approved: Approved) -> InvalidRequest:
    return InvalidRequest.at(
        approved.where,
        f"the request's 'tools' do not have the tool {quoted(approved.approval.name)} of the"
        f" MCP server {quoted(approved.approval.label)}",
    )
