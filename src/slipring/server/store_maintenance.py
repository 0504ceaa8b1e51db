"""What a server does with the store beside serving clients: pruning it, announcing this node, and exchanging
key usage with other nodes."""

from slipring.base.periodic_tasks import PeriodicTasks
from slipring.server.clock import shared_now
from slipring.server.service import Service

_PRUNE_INTERVAL_S = 60.0
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
        """Announce this node, then delete expired rows."""
        await self._service.peers.announce()
        await self._service.store.pruning.prune(shared_now)
