"""Approvals of tool calls that have been used: each is good for one call."""

from collections.abc import Sequence

from slipring.base.errors import InvalidRequest
from slipring.stores.databases.database import Database, Statement, UniqueViolated
from slipring.stores.pruning import Expiry

_CLAIM = "INSERT INTO slipring_approvals (tenant, id, expires_at) VALUES ($1, $2, $3)"


class Approvals:
    """Which approvals of tool calls have been used: each is good for one call."""

    def __init__(self, database: Database, expiry: Expiry) -> None:
        self._database = database
        self._expiry = expiry

    async def claim(self, tenant: str, approval_ids: Sequence[str]) -> None:
        """Use approvals, all or none. Raises ``InvalidRequest`` if one of them was used before, by any node.

        Claims are kept as long as stored responses are.
        """
        expires_at = self._expiry.expires_at(self._expiry.now())
        # Rows are inserted in a fixed order, so that two nodes cannot deadlock.
        ordered = sorted(approval_ids)
        try:
            await self._database.write(*(Statement(_CLAIM, (tenant, each, expires_at)) for each in ordered))
        except UniqueViolated:
            raise InvalidRequest.at(
                "input", "an approval has already been used. Each 'mcp_approval_request' can be approved once"
            ) from None
