"""The SQL store: assembles its parts on one database."""

import math
import time
from collections.abc import Callable

from slipring.core.chain.state import Positions
from slipring.stores import base
from slipring.stores.databases.database import Database
from slipring.stores.sql.approvals import SqlApprovals
from slipring.stores.sql.cluster import SqlCluster
from slipring.stores.sql.conversations import SqlConversations
from slipring.stores.sql.keys import SqlKeys
from slipring.stores.sql.pruning import Pruning
from slipring.stores.sql.recent_states import RecentStates
from slipring.stores.sql.responses import SqlResponses
from slipring.stores.sql.retention import Expiry
from slipring.stores.sql.runs import SqlRuns


class SqlStore(base.Store):
    def __init__(
        self,
        database: Database,
        *,
        positions: Positions | None = None,
        retention_s: float = 0.0,
        recent_bytes: int = 0,
        max_bytes: float = math.inf,
        tenant_max_bytes: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a store on a database that is not started yet.

        Responses, runs and used approvals expire after ``retention_s`` (0: never). Up to ``recent_bytes`` of
        states are cached in memory. If the database is in memory, pruning also removes the oldest data of the
        tenant that has the most, while it has more than ``tenant_max_bytes`` or all have more than
        ``max_bytes``.
        """
        self.name = database.name
        self.is_shared = database.is_shared
        self._database = database
        self._pruning = Pruning(database, max_bytes=max_bytes, tenant_max_bytes=tenant_max_bytes)
        expiry = Expiry(retention_s, clock)
        self.responses = SqlResponses(database, RecentStates(recent_bytes), expiry, positions)
        self.conversations = SqlConversations(database, expiry)
        self.runs = SqlRuns(database, expiry)
        self.approvals = SqlApprovals(database, expiry)
        self.keys = SqlKeys(database)
        self.cluster = SqlCluster(database)

    @property
    def failed_writes(self) -> int:
        return self._database.failed_writes

    @property
    def trouble(self) -> str | None:
        return self._database.trouble

    async def try_out(self) -> None:
        await self._database.try_out()

    def watch_commits(self, on_commit: Callable[[float], None]) -> None:
        self._database.on_commit = on_commit

    async def start(self) -> None:
        await self._database.start()

    async def close(self) -> None:
        await self._database.close()

    async def prune(self, now: float, limit: int = 1000) -> int:
        return await self._pruning.prune(now, limit)
