"""Periodic work on the store: pruning it, announcing this node, exchanging key usage with other nodes."""

import asyncio

from slipring.server.clock import shared_now
from slipring.server.periodic_tasks import PeriodicTasks
from slipring.server.service import Service

_PRUNE_INTERVAL_S, _PRUNE_PAUSE_S = 60.0, 0.1
_EXCHANGE_INTERVAL_S = 1.0


class StoreMaintenance:
    """Maintains the store from ``start`` to ``stop``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks = PeriodicTasks()

    def start(self) -> None:
        # Not part of the server's tick, which must not wait for a slow store.
        self._tasks.start(
            "exchanging key usage with the store", self._service.sync_keys, _EXCHANGE_INTERVAL_S, at_stop=True
        )
        self._tasks.start("pruning the store", self._prune, _PRUNE_INTERVAL_S)

    async def stop(self) -> None:
        """Stop, after writing the last key usage. Call this when no client is served any more."""
        await self._tasks.stop()

    async def _prune(self) -> None:
        """Announce this node, then delete expired rows in small steps."""
        await self._service.peers.announce()
        while await self._service.store.prune(shared_now()):  # noqa: ASYNC110 - a pause, not a wait
            await asyncio.sleep(_PRUNE_PAUSE_S)
