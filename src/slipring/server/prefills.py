"""Prefills that run beside the turns: one at most for each response.

A prefill belongs to a response and not to a connection: it goes on when an HTTP request that produced the
response has been answered, and it ends when a turn continues the response on any connection of the tenant.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from slipring.core.generation import Job, Prefill
from slipring.engines.base import Engine
from slipring.errors import ApiError, forget_frames

log = logging.getLogger("slipring")

_MOST_RUNNING = 256
"""Further prefills are not started: they only save time."""


class Prefills:
    """The running prefills of one process."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._of_outputs: set[asyncio.Task[None]] = set()
        """Those of outputs that grow, for clients that will continue their responses."""

    def start(
        self, response_id: str, prefill: Prefill, engine: Engine, ended: Callable[[int | None], None]
    ) -> None:
        """Run a prefill, then call ``ended`` with its tokens, or with None if it failed or cannot run. Not
        called if the prefill is ended before."""
        key = (prefill.job.tenant, response_id)
        if key in self._tasks or len(self._tasks) >= _MOST_RUNNING:
            ended(None)
            return
        task = asyncio.create_task(self._run(key, prefill, engine, ended))
        self._tasks[key] = task
        # A task that is cancelled before its first step runs nothing of ``_run``.
        task.add_done_callback(partial(self._forget, key))
        if prefill.expects == "output":
            self._of_outputs.add(task)
            task.add_done_callback(self._of_outputs.discard)

    async def end_for(self, job: Job) -> None:
        """End the prefill of the response that a job continues, if there is one, and wait until the engine is
        free of it. A fork ends none. A history that was recognised is perhaps that of another client: it
        leaves outputs that grow alone."""
        if job.parent is None or (job.fork and not job.recognised):
            return
        task = self._tasks.get((job.tenant, job.parent.id))
        if task is not None and not (job.recognised and task in self._of_outputs):
            _cancel(task)
            await asyncio.wait([task])

    def cancel(self, tenant: str, response_id: str) -> None:
        """End the prefill of a response, if there is one, without waiting."""
        task = self._tasks.get((tenant, response_id))
        if task is not None:
            _cancel(task)

    async def close(self) -> None:
        """End all prefills."""
        tasks = list(self._tasks.values())
        for task in tasks:
            _cancel(task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(
        self, key: tuple[str, str], prefill: Prefill, engine: Engine, ended: Callable[[int | None], None]
    ) -> None:
        tokens: int | None = None
        try:
            tokens = await engine.prefill(prefill)
        except ApiError as error:
            log.debug("a prefill was refused: %s", error.message)
            forget_frames(error)
        except Exception as error:
            log.exception("a prefill failed unexpectedly")
            forget_frames(error)
        del self._tasks[key]  # before ``ended``, which may start the next one
        ended(tokens)

    def _forget(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, but only once: another time would interrupt the engine as it frees itself."""
    if not task.cancelling():
        task.cancel()
