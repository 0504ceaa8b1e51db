"""Work that takes long, done in threads: so many pieces at once, tenants in turn."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from slipring.engines.remote.admission import JobQueue

T = TypeVar("T")


class Crew:
    """Some threads, and the queue for them. They are started when they are first needed."""

    def __init__(self, name: str, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, name)
        # Whoever waits is a response that has been admitted; to bound their number is not done twice.
        self._queue = JobQueue(size, sys.maxsize)

    async def run(self, tenant: str, work: Callable[..., T], *given: object) -> T:
        """Do work off the event loop, when it is the tenant's turn."""
        with ExitStack() as stack:
            await stack.enter_context(self._queue.ticket(tenant)).turn()
            running = asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
            place = stack.pop_all()
        # A thread cannot be stopped. Its place is free when its work is done, whether anybody waits or not.
        running.add_done_callback(partial(_release, place))
        return await asyncio.shield(running)


def _release(place: ExitStack, done: "asyncio.Future[T]") -> None:
    place.close()
    if not done.cancelled():
        done.exception()  # nobody may be there to see it
