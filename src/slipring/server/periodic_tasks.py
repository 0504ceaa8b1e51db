"""Work that a server repeats at intervals, beside serving clients: its own, and that on the store (pruning
it, announcing this node, exchanging key usage with other nodes)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from slipring.base.errors import ApiError
from slipring.server.clock import shared_now
from slipring.server.service import Service

log = logging.getLogger("slipring")

_LAST_RUN_S = 2.0


class PeriodicTasks:
    """Runs each function in a loop in its own task, so that a slow one does not delay the others.

    A failure is logged, and the function runs again after the next interval. One that lasts, such as a store
    that is away, is logged once, not at every interval.
    """

    def __init__(self) -> None:
        self._stopped: asyncio.Future[None] | None = None
        """Done when the loops are to end; created with the first of them."""
        self._cancelled_at_stop: list[asyncio.Task[None]] = []
        self._run_at_stop: list[asyncio.Task[None]] = []

    def start(
        self, name: str, work: Callable[[], Awaitable[None]], interval_s: float, *, at_stop: bool = False
    ) -> None:
        """Call ``work`` whenever the event loop's clock is a multiple of the interval, so that a process at
        rest wakes up once for all that is due every second; with ``at_stop``, ``stop`` calls it once more."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        tasks = self._run_at_stop if at_stop else self._cancelled_at_stop
        tasks.append(asyncio.create_task(self._repeat(name, work, interval_s, self._stopped)))

    async def stop(self) -> None:
        """End all loops. Functions with ``at_stop`` are called once more, and cancelled after 2 s."""
        await cancel_and_wait(self._cancelled_at_stop)
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        if self._run_at_stop:
            await asyncio.wait(self._run_at_stop, timeout=_LAST_RUN_S)
        await cancel_and_wait(self._run_at_stop)

    async def _repeat(
        self, name: str, work: Callable[[], Awaitable[None]], interval_s: float, stopped: asyncio.Future[None]
    ) -> None:
        clock = asyncio.get_running_loop().time
        failing = ""
        while not stopped.done():
            await asyncio.wait([stopped], timeout=interval_s - clock() % interval_s)
            try:
                await work()
                failing = ""
            except ApiError as error:
                if error.message != failing:
                    log.warning("%s failed: %s", name, error.message)
                failing = error.message
            except Exception:
                log.exception("%s failed unexpectedly", name)


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


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
