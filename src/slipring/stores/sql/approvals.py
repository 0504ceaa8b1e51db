"""Approvals of tool calls that have been used."""

from collections.abc import Sequence

from slipring.stores import base
from slipring.stores.databases.database import Database, Statement, UniqueViolated
from slipring.stores.sql.retention import Expiry

_CLAIM = "INSERT INTO slipring_approvals (tenant, id, expires_at) VALUES ($1, $2, $3)"


class SqlApprovals(base.Approvals):
    def __init__(self, database: Database, expiry: Expiry) -> None:
        self._database = database
        self._expiry = expiry

    async def claim(self, tenant: str, approval_ids: Sequence[str]) -> bool:
        expires_at = self._expiry.expires_at(self._expiry.now())
        # Rows are inserted in a fixed order, so that two nodes cannot deadlock.
        ordered = sorted(approval_ids)
        try:
            await self._database.write(*(Statement(_CLAIM, (tenant, each, expires_at)) for each in ordered))
        except UniqueViolated:
            return False
        return True
