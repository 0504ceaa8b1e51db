"""Threads for checks that compute, or that wait without yielding to the event loop.

A thread cannot be stopped. So these are daemon threads, unlike those of an executor: one that hangs does not
keep the process from ending. The tenant whose text it hangs on then has one thread less; the others keep
theirs.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from slipring.safety.source import SourceFailed

T = TypeVar("T")
_Work = tuple[Callable[[], Any], str, "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class CheckThreads:
    """A bounded number of threads, in total and per tenant, each started when it is first needed."""

    def __init__(self, name: str, per_tenant: int, most: int) -> None:
        self._name = name
        self._per_tenant = per_tenant
        self._most = most
        self._started = 0
        self._unfinished: Counter[str] = Counter()
        """By tenant: calls that have not returned."""
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()

    async def run(self, work: Callable[[], T], tenant: str) -> T:
        """Call ``work`` in a thread. Raises ``SourceFailed`` at once if every thread that the tenant may have
        is in use: the caller bounds its calls by the number of threads, so they hang in calls that were
        cancelled."""
        if self._unfinished.get(tenant, 0) >= self._per_tenant or self._unfinished.total() >= self._most:
            raise SourceFailed("all its threads are still busy with earlier calls")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        done.add_done_callback(_retrieve)
        self._unfinished[tenant] += 1
        if self._unfinished.total() > self._started:
            self._started += 1
            threading.Thread(target=self._serve, name=f"check-{self._name}", daemon=True).start()
        self._queue.put((work, tenant, done, loop))
        return await asyncio.shield(done)

    def close(self) -> None:
        """End the threads that are idle, and the others when they finish."""
        for _ in range(self._started):
            self._queue.put(None)

    def _serve(self) -> None:
        while (taken := self._queue.get()) is not None:
            work, tenant, done, loop = taken
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(self._finish, tenant, done, result, error)
            except RuntimeError:  # the loop has been closed
                return

    def _finish(
        self, tenant: str, done: "asyncio.Future[Any]", result: object, error: BaseException | None
    ) -> None:
        self._unfinished[tenant] -= 1
        if not self._unfinished[tenant]:
            del self._unfinished[tenant]
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            done.set_exception(SourceFailed(f"it raised {type(error).__name__}"))


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """Mark an exception as retrieved: the caller may have been cancelled."""
    if not done.cancelled():
        done.exception()
