"""Approvals: which hosted calls need one, which the client has approved, and what models read of a denial.

An approval request is good for one call: that of this tool, with these arguments, at this server, for this
tenant. Its id ends in a tag over all of these, so that a request which comes back with a history proves that
this server made it. That it is used once is the driver's part (``ClaimApprovals``).
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slipring.base.errors import InvalidRequest, quoted
from slipring.core.chain import item_ids
from slipring.core.chain.state import Approval, Carry
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import McpApprovalRequest, McpApprovalResponse, McpCall
from slipring.protocol.items.items import Item
from slipring.protocol.tools.mcp_tools import ApprovalFilter, ListedTool, McpTool

KINDS = frozenset({"mcp_approval_request", "mcp_approval_response"})
"""The types of items that ask for approvals and give them."""
Verify = Callable[[bytes, str], bool]
"""Whether a tag was made over these bytes, for the tenant of the turn."""


def needs_approval(server: McpTool, tool: ListedTool, *, always: bool) -> bool:
    """Whether the client must approve each call of a tool. It must if the operator says ``always``, and
    unless ``require_approval`` says otherwise; a tool that both filters select needs approval."""
    rule = server.require_approval
    if always:
        return True
    if not isinstance(rule, ApprovalFilter):
        return rule != "never"
    if rule.always is not None and rule.always.selects(tool):
        return True
    return rule.never is None or not rule.never.selects(tool)


class Approved(Struct, frozen=True):
    """A call that the client has approved and that has not run."""

    request_id: str
    approval: Approval
    where: str
    """The item with which the client approved it, as errors name it."""


def signed_bytes(server: McpTool, approval: Approval) -> bytes:
    """What the tag of an approval request covers."""
    identity = server.server_url or server.connector_id or ""
    return wire.encode((server.server_label, identity, approval.name, approval.arguments))


class Answers(Struct, frozen=True):
    """What an input answers."""

    approved: list[Approved]
    items: tuple[Item, ...]
    """The input without the requests and answers that the context has already."""


def read(before: Carry, items: tuple[Item, ...], *, complete: bool) -> Answers:
    """The calls that these items approve; ``before``: of the context before them. ``complete``: a response
    will be generated; no other request may approve a call.

    A client that sends a part of its history again repeats requests and answers: these mean nothing new, and
    are left out. Raises ``InvalidRequest`` for a request that differs from the one with its id, for an answer
    to an unknown request, and for a second answer that contradicts the first.
    """
    reading = _Reading(before, items)
    kept = tuple(item for index, item in enumerate(items) if reading.is_new(item, index))
    if reading.approved and not complete:
        where = reading.approved[0].where
        raise InvalidRequest.at(where, "only a request that generates an answer can approve a call")
    return Answers(reading.approved, kept)


class _Reading:
    def __init__(self, before: Carry, items: Sequence[Item]) -> None:
        self.approved: list[Approved] = []
        self._waiting = dict(before.approvals)
        self._answered = dict(before.answered)
        self._requests: dict[str, Approval] = dict(before.approvals)
        """All requests whose call is known, answered or not."""
        self._have_run = {
            call.approval_request_id
            for item in items
            if item.type == "mcp_call" and isinstance(call := item.body(), McpCall)
        }

    def is_new(self, item: Item, index: int) -> bool:
        """Read the next item. Returns whether the context does not have it yet."""
        body = item.body() if item.type in KINDS else None
        if isinstance(body, McpApprovalRequest) and item.id is not None:
            return self._read_request(item.id, Approval(body.server_label, body.name, body.arguments))
        if isinstance(body, McpApprovalResponse):
            return self._read_answer(body, f"input[{index}].approval_request_id")
        return True

    def _read_request(self, request_id: str, approval: Approval) -> bool:
        known = self._requests.setdefault(request_id, approval)
        if known != approval:
            raise InvalidRequest(
                f"Duplicate item found with id {quoted(request_id)}. Remove duplicate items from your input"
                " and try again.",
                param="input",
            )
        if request_id in self._waiting or request_id in self._answered:
            return False
        self._waiting[request_id] = approval
        return True

    def _read_answer(self, answer: McpApprovalResponse, where: str) -> bool:
        request_id = answer.approval_request_id
        if (before := self._answered.get(request_id)) is not None:
            if before == answer.approve:
                return False
            decision = "approved" if before else "denied"
            raise InvalidRequest.at(
                where, f"the call of the approval request {quoted(request_id)} has been {decision} already"
            )
        approval = self._waiting.pop(request_id, None)
        if approval is None:
            raise InvalidRequest.at(where, f"no approval request {quoted(request_id)} waits for an answer")
        self._answered[request_id] = answer.approve
        if answer.approve and request_id not in self._have_run:
            self.approved.append(Approved(request_id, approval, where))
        return True


def require_genuine(approved: Approved, server: McpTool, verify: Verify) -> None:
    """Refuse an approval request that this server did not make for this tenant, server and call."""
    tag = item_ids.tag_of(approved.request_id)
    if tag is None or not verify(signed_bytes(server, approved.approval), tag):
        raise InvalidRequest.at(
            approved.where,
            f"the approval request {quoted(approved.request_id)} does not belong to this call: its"
            " server, tool or arguments have changed, or it was made elsewhere",
        )


def not_offered(approved: Approved) -> InvalidRequest:
    """The error about an approved call of a tool that the request does not offer."""
    return InvalidRequest.at(
        approved.where,
        f"the request's 'tools' do not have the tool {quoted(approved.approval.name)} of the"
        f" MCP server {quoted(approved.approval.label)}",
    )


def unanswered(request_id: str) -> InvalidRequest:
    """The error about an input that ends before it has answered an approval request."""
    return InvalidRequest.at("input", f"the approval request {quoted(request_id)} has no answer")


def denial_text(reason: str | None) -> str:
    """What a model reads of a call that was not approved."""
    given = f" Their reason: {reason}" if reason else ""
    return f"The user did not approve this call, so it was not made.{given}"


UNANSWERED = denial_text("They answered with something else.")
"""What a model reads of a call about which the client has decided nothing."""
