"""What a server does beside serving: it prunes its store, and compares notes with the other nodes on it."""

import asyncio
import contextlib
import logging

from slipring.errors import ApiError
from slipring.server.clock import shared_now
from slipring.server.service import Service

log = logging.getLogger("slipring")

_PRUNE_INTERVAL_S, _PRUNE_PAUSE_S = 60.0, 0.1
_NOTES_S = 1.0
_LAST_NOTES_S = 2.0


class Upkeep:
    """Tasks that go on for as long as a server serves."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._compare_notes()), asyncio.create_task(self._prune())]

    async def stop(self) -> None:
        """Nobody is served any more: compare notes once more, and end."""
        self._stopped.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_NOTES_S)
        for task in self._tasks:
            task.cancel()

    async def _prune(self) -> None:
        """Remove what has expired, little by little, and let other nodes know that this one is alive."""
        removed = 0
        while not await self._is_stopped(_PRUNE_PAUSE_S if removed else _PRUNE_INTERVAL_S):
            removed = 0
            try:
                await self._service.peers.announce()
                removed = await self._service.store.prune(shared_now())
            except ApiError as error:
                log.warning("the store could not be looked after: %s", error.message)
            except Exception:
                log.exception("looking after the store failed unexpectedly")

    async def _compare_notes(self) -> None:
        """Now and then, and once more at the end. Beside the ticks, since a store may take its time."""
        stopped = False
        while not stopped:
            stopped = await self._is_stopped(_NOTES_S)
            try:
                await self._service.compare_notes()
            except Exception:
                log.exception("notes about keys could not be compared with the store")

    async def _is_stopped(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), within_s)
        return self._stopped.is_set()
