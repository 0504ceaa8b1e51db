"""Approvals of tool calls are good once, over all workers and nodes that share a store."""

from collections.abc import Sequence

from slipring.base.errors import InvalidRequest
from slipring.stores.used_approvals import Approvals


async def claim(approvals: Approvals, tenant: str, ids: Sequence[str]) -> None:
    """Use approvals, all or none. Raises ``InvalidRequest`` if one of them was used before."""
    if not await approvals.claim(tenant, ids):
        raise InvalidRequest(
            "Invalid 'input': an approval has already been used. Each 'mcp_approval_request' can be approved"
            " once.",
            param="input",
        )
