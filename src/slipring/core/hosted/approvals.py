"""Approvals: which hosted calls the client has approved, denied or left unanswered.

An approval request is good for one call: that of this tool, with these arguments, at this server, for this
tenant. Its id ends in a tag over all of these, so that a request which comes back with a history proves that
this server made it. That it is used once is the driver's part (``ClaimApprovals``).
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from slipring.base.errors import InvalidRequest, quoted
from slipring.core.chain import hosted_items, item_ids
from slipring.core.chain.state import Approval
from slipring.protocol import wire
from slipring.protocol.hosted.mcp_items import McpApprovalRequest, McpApprovalResponse, McpCall
from slipring.protocol.hosted.mcp_tools import McpTool
from slipring.protocol.items import Item

KINDS = frozenset({"mcp_approval_request", "mcp_approval_response"})
"""The types of items that ask for approvals and give them."""
Verify = Callable[[bytes, str], bool]
"""Whether a tag was made over these bytes, for the tenant of the turn."""


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


def read(before: Mapping[str, Approval], items: Sequence[Item]) -> list[Approved]:
    """The calls that these items approve; ``before``: requests in the context before them.

    Raises ``InvalidRequest`` for a request that the context has already, and for an answer to a request that
    is unknown, or answered already.
    """
    waiting = dict(before)
    have_run = {
        call.approval_request_id
        for item in items
        if item.type == "mcp_call" and isinstance(call := item.body(), McpCall)
    }
    approved: list[Approved] = []
    for index, item in enumerate(items):
        body = item.body() if item.type in hosted_items.HOSTED else None
        if isinstance(body, McpApprovalRequest) and item.id is not None:
            if item.id in waiting:
                raise InvalidRequest(
                    f"Duplicate item found with id {quoted(item.id)}. Remove duplicate items from your input"
                    " and try again.",
                    param="input",
                )
            waiting[item.id] = Approval(body.server_label, body.name, body.arguments)
        elif isinstance(body, McpApprovalResponse):
            where = f"input[{index}].approval_request_id"
            request_id = body.approval_request_id
            approval = waiting.pop(request_id, None)
            if approval is None:
                raise InvalidRequest(
                    f"Invalid '{where}': no approval request {quoted(request_id)} waits for an answer.",
                    param=where,
                )
            if body.approve and request_id not in have_run:
                approved.append(Approved(request_id, approval, where))
    return approved


def require_genuine(approved: Approved, server: McpTool, verify: Verify) -> None:
    """Refuse an approval request that this server did not make for this tenant, server and call."""
    tag = item_ids.tag_of(approved.request_id)
    if tag is None or not verify(signed_bytes(server, approved.approval), tag):
        raise InvalidRequest(
            f"Invalid '{approved.where}': the approval request {quoted(approved.request_id)} does not belong"
            " to this call: its server, tool or arguments have changed, or it was made elsewhere.",
            param=approved.where,
        )


def with_denials(before: Mapping[str, Approval], items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The input of a response, where what the client left unanswered counts as denied: the model reads so
    before anything else of the input."""
    answered = {
        body.approval_request_id
        for item in items
        if item.type == "mcp_approval_response" and isinstance(body := item.body(), McpApprovalResponse)
    }
    left = [request_id for request_id in before if request_id not in answered]
    last = items[-1] if items else None
    if last is not None and last.type == "mcp_approval_request":
        raise _unanswered(last.id or "")
    if not left:
        return items
    if not items:
        raise _unanswered(left[0])
    outputs = tuple(hosted_items.output_item(each, hosted_items.UNANSWERED) for each in left)
    first = items[0]
    content = (first,) if first.opened is None else first.opened
    return (structs.replace(first, opened=(*outputs, *content)), *items[1:])


def _unanswered(request_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'input': the approval request {quoted(request_id)} has no answer.", param="input"
    )
