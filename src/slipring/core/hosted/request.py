"""What one request has to do with hosted tools: its MCP servers, and the calls that its input approves."""

from collections.abc import Mapping
from functools import partial

from msgspec import structs

from slipring.core.chain import hosted_items
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import Approval, Carry
from slipring.core.hosted import approvals
from slipring.core.hosted.approvals import Approved
from slipring.core.hosted.tools import HostedTool, Offered, ResolvedServer, compose
from slipring.errors import InvalidRequest, quoted
from slipring.protocol.hosted.mcp_tools import McpTool, read_servers
from slipring.protocol.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import McpApprovalRequestItem


class HostedRequest:
    """The hosted tools of one turn."""

    __slots__ = ("_input", "_seal", "_tenant", "approved", "offered", "resolved", "servers")

    def __init__(self, seal: Seal, tenant: str) -> None:
        self._seal = seal
        self._tenant = tenant
        self.servers: tuple[McpTool, ...] = ()
        """The MCP servers of the request, as sent."""
        self.resolved: Mapping[str, ResolvedServer] | None = None
        """What the driver found out about them, by label; None before it was asked."""
        self.offered: Offered | None = None
        """What the request offers of them."""
        self.approved: list[Approved] = []
        """Calls that the input approves, until they have run."""
        self._input: tuple[Item, ...] = ()
        """The input before its hosted items were opened."""

    def read_servers(self, request: CreateRequest, before: Carry, items: tuple[Item, ...]) -> frozenset[str]:
        """Read the MCP servers; returns the labels whose lists the context does not have."""
        self.servers = read_servers(request.tools)
        known = hosted_items.carried(before, items).lists if self.servers else {}
        return frozenset(server.server_label for server in self.servers) - known.keys()

    def follow(self, before: "HostedRequest") -> None:
        """Use the servers of an earlier turn with the same tools, whose lists are in the context now."""
        if before.resolved is not None:
            self.servers = before.servers
            self.resolved = {
                label: structs.replace(server, tools=None, error=None)
                for label, server in before.resolved.items()
            }

    def read_input(self, before: Carry, items: tuple[Item, ...], *, complete: bool) -> tuple[Item, ...]:
        """Find the calls that the input approves; returns the input with its hosted items opened.
        ``complete``: a response will be generated."""
        self.approved = approvals.read(before.approvals, items)
        if self.approved and not complete:
            where = self.approved[0].where
            raise InvalidRequest(
                f"Invalid '{where}': only a request that generates an answer can approve a call.", param=where
            )
        self._input = items
        opened = hosted_items.opened(items)
        return approvals.with_denials(before.approvals, opened) if complete else opened

    def input_with(self, results: Mapping[str, str], before: Carry) -> tuple[Item, ...]:
        """The opened input, once the approved calls have returned these results: they stand where the client
        approved the calls."""
        self.approved = []
        return approvals.with_denials(before.approvals, hosted_items.opened(self._input, results))

    def offer(self, request: CreateRequest, carry: Carry) -> Offered | None:
        """Put the tools of the servers into the request, which loses its secrets, and check the approvals.

        Returns what is offered; None if the request has no servers.
        """
        if self.servers:
            assert self.resolved is not None
            self.offered = compose(request.tools, self.servers, self.resolved, carry.lists)
            request.tools = self.offered.definitions
        for each in self.approved:
            server = self._server(each.approval.label)
            if server is None or self.find_tool(each.approval) is None:
                raise InvalidRequest(
                    f"Invalid '{each.where}': the request's 'tools' do not have the tool"
                    f" {quoted(each.approval.name)} of the MCP server {quoted(each.approval.label)}.",
                    param=each.where,
                )
            approvals.require_genuine(each, server, partial(self._seal.verify, self._tenant))
        return self.offered

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
