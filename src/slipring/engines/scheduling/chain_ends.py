"""When a chain, or the loop that it belongs to, has ended: nothing is left from which it could go on.

Clients do not say that they have ended. slipring finds out, and tells the engine's server, the router or its
own schedule, which keep something for the chain.
"""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable

from slipring.base.errors import ApiError
from slipring.core.generation import Job
from slipring.engines.remote.http_connection import HttpFailure
from slipring.prompts.rendering import Rendered

log = logging.getLogger("slipring")
_TELLING_S = 2.0
"""How long ``close`` waits until all ends have been reported."""


def gone_at_end(job: Job, position: Rendered) -> object:
    """What is gone when the loop of a job has ended, whose answer leads to ``position``.

    A chain that is not stored is continued by ids while its connection has it, or while it is kept for a
    client that was cut off: as long as the state is there that the job has continued. The others may be
    continued by their history, too, as long as the position is known.
    """
    first = job.began or job
    parent = first.parent
    if parent is None or first.recognised or parent.response.store:
        return position.body
    return parent


class ChainEnds:
    """Tells the end of each chain, known by a key: the moment when nothing that was watched of it is left,
    because its connection has closed or its responses were evicted. A chain that a store brings back begins
    anew."""

    def __init__(self, tell: Callable[[str], Awaitable[None]]) -> None:
        self._tell = tell
        self._watched: dict[str, dict[int, weakref.ref[object]]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def watch(self, key: str, position: Rendered) -> None:
        """Add a position to the chain with this key."""
        self._watched.setdefault(key, {}).update(self._reference(key, position.body))

    def watch_only(self, key: str, held: object) -> None:
        """The chain ends with this object, whatever was watched of it before."""
        self._watched[key] = self._reference(key, held)

    def _reference(self, key: str, held: object) -> dict[int, weakref.ref[object]]:
        number = id(held)
        return {number: weakref.ref(held, lambda _: self._dropped(key, number))}

    def forget(self, key: str) -> None:
        """Tell nothing of the chain with this key any more."""
        self._watched.pop(key, None)

    async def close(self) -> None:
        """Tell the end of every chain, as far as the server answers."""
        for key in list(self._watched):
            del self._watched[key]
            self._end(key)
        if self._telling:
            await asyncio.wait(self._telling, timeout=_TELLING_S)
        for task in self._telling:
            task.cancel()

    def _dropped(self, key: str, number: int) -> None:
        """What was watched is gone, in whichever thread its last reference was."""
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.pop(number, None)
        if not watched:
            try:
                self._loop.call_soon_threadsafe(self._end_if_gone, key)
            except RuntimeError:  # the loop has closed, and the engine with it
                return

    def _end_if_gone(self, key: str) -> None:
        if key in self._watched and not self._watched[key]:
            del self._watched[key]
            self._end(key)

    def _end(self, key: str) -> None:
        task = self._loop.create_task(self._report(key))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _report(self, key: str) -> None:
        try:
            await self._tell(key)
        except (HttpFailure, ApiError) as error:
            log.info("the end of a chain could not be reported to the server: %s", error)
