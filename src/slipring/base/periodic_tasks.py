"""Work that a process repeats at intervals, beside everything else; and the end of tasks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from slipring.base.errors import ApiError

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
