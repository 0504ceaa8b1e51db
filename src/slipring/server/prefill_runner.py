"""Prefills that run beside the turns: one at most for each response.

A prefill belongs to a response and not to a connection: it goes on when an HTTP request that produced the
response has been answered, and it ends when a turn continues the response on any connection of the tenant.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from slipring.base.errors import ApiError, forget_frames
from slipring.core.generation import Job, Prefill
from slipring.engines.base import Engine

log = logging.getLogger("slipring")

_MOST_RUNNING = 256
"""Further prefills wait."""
_MOST_WAITING = 1024
"""Further ones have no effect: they only save time."""

_Key = tuple[str, str]
"""A tenant and a response."""


class _Waiting(NamedTuple):
    """A prefill that waits until another one has ended."""

    prefill: Prefill
    engine: Engine
    ended: Callable[[int | None], None]
    permit: Callable[[], Awaitable[None]]


class Prefills:
    """The running prefills of one process, and those that wait."""

    def __init__(self) -> None:
        self.tasks: dict[_Key, asyncio.Task[None]] = {}
        """Those that run, by tenant and response."""
        self._waiting: dict[_Key, _Waiting] = {}
        """The oldest first."""
        self._of_outputs: set[asyncio.Task[None]] = set()
        """Those of outputs that grow, for clients that will continue their responses."""

    @property
    def running(self) -> int:
        """How many run."""
        return len(self.tasks)

    def start(
        self,
        response_id: str,
        prefill: Prefill,
        engine: Engine,
        ended: Callable[[int | None], None],
        permit: Callable[[], Awaitable[None]],
    ) -> None:
        """Run a prefill, then call ``ended`` with its tokens, or with None if it failed. Not called if the
        prefill is ended before. ``permit`` raises an ``ApiError`` if the client may not use the engine."""
        key = (prefill.job.tenant, response_id)
        if key in self.tasks or key in self._waiting:
            ended(None)
        elif len(self.tasks) < _MOST_RUNNING:
            self._begin(key, _Waiting(prefill, engine, ended, permit))
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting[key] = _Waiting(prefill, engine, ended, permit)
        else:
            ended(0)  # no failure: what follows may be prefilled again

    def _begin(self, key: _Key, waiting: _Waiting) -> None:
        task = asyncio.create_task(self._run(key, waiting))
        self.tasks[key] = task
        # A task that is cancelled before its first step runs nothing of ``_run``.
        task.add_done_callback(partial(self._forget, key))
        if waiting.prefill.expects == "output":
            self._of_outputs.add(task)
            task.add_done_callback(self._of_outputs.discard)

    async def end_for(self, job: Job) -> None:
        """End the prefill of the response that a job continues, if there is one, and wait until the engine is
        free of it. A fork ends none. A history that was recognised is perhaps that of another client: it
        leaves outputs that grow alone."""
        if job.parent is None or job.fork:
            return
        key = (job.tenant, job.parent.id)
        waiting = self._waiting.get(key)
        if waiting is not None and not (job.recognised and waiting.prefill.expects == "output"):
            del self._waiting[key]
        task = self.tasks.get(key)
        if task is not None and not (job.recognised and task in self._of_outputs):
            _cancel(task)
            await asyncio.wait([task])

    def cancel(self, tenant: str, response_id: str) -> None:
        """End the prefill of a response, if there is one, without waiting."""
        self._waiting.pop((tenant, response_id), None)
        task = self.tasks.get((tenant, response_id))
        if task is not None:
            _cancel(task)

    async def close(self) -> None:
        self._waiting.clear()
        tasks = list(self.tasks.values())
        for task in tasks:
            _cancel(task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, key: _Key, begun: _Waiting) -> None:
        tokens: int | None = None
        try:
            await begun.permit()
            tokens = await begun.engine.prefill(begun.prefill)
        except Exception as error:
            if isinstance(error, ApiError):
                log.debug("a prefill was refused: %s", error.message)
            else:
                log.exception("a prefill failed unexpectedly")
            forget_frames(error)
        del self.tasks[key]  # before ``ended``, which may start the next one
        begun.ended(tokens)

    def _forget(self, key: _Key, task: asyncio.Task[None]) -> None:
        if self.tasks.get(key) is task:
            del self.tasks[key]
        if self._waiting and len(self.tasks) < _MOST_RUNNING:
            running = Counter(tenant for tenant, _ in self.tasks)
            following = min(self._waiting, key=lambda each: running[each[0]])
            self._begin(following, self._waiting.pop(following))


def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, but only once: another time would interrupt the engine as it frees itself."""
    if not task.cancelling():
        task.cancel()
