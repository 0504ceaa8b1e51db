"""Work that a server repeats at intervals, beside serving clients."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from slipring.errors import ApiError

log = logging.getLogger("slipring")

_LAST_RUN_S = 2.0


class PeriodicTasks:
    """Runs each function in a loop in its own task, so that a slow one does not delay the others.

    A failure is logged, and the function runs again after the next interval.
    """

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._cancelled_at_stop: list[asyncio.Task[None]] = []
        self._run_at_stop: list[asyncio.Task[None]] = []

    def start(
        self, name: str, work: Callable[[], Awaitable[None]], interval_s: float, *, at_stop: bool = False
    ) -> None:
        """Call ``work`` after every interval; with ``at_stop``, ``stop`` calls it once more."""
        tasks = self._run_at_stop if at_stop else self._cancelled_at_stop
        tasks.append(asyncio.create_task(self._repeat(name, work, interval_s)))

    async def stop(self) -> None:
        """End all loops. Functions with ``at_stop`` are called once more, and cancelled after 2 s."""
        await cancel_and_wait(self._cancelled_at_stop)
        self._stopped.set()
        if self._run_at_stop:
            await asyncio.wait(self._run_at_stop, timeout=_LAST_RUN_S)
        await cancel_and_wait(self._run_at_stop)

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]], interval_s: float) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), interval_s)
            try:
                await work()
            except ApiError as error:
                log.warning("%s failed: %s", name, error.message)
            except Exception:
                log.exception("%s failed unexpectedly", name)


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
