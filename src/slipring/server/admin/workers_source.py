"""Shows the workers of a supervisor on its admin listener.

Workers write their live updates to the line on which they report to the supervisor, which passes them on as
they are. A watcher gets, of each worker, a complete update first.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from slipring import __version__
from slipring.observation import live_messages
from slipring.observation.bounded_labels import BoundedLabels
from slipring.observation.metric_counts import Snapshot, totals_of
from slipring.observation.worker_metrics import Fold
from slipring.server.process.process_metrics import process_snapshot
from slipring.server.process.worker_messages import Command, Describe, Described, EndWatch, Watch

_DETAIL_TIMEOUT_S = 5.0


class Worker(Protocol):
    """What this module uses of a worker."""

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""

    @property
    def is_serving(self) -> bool: ...

    def send(self, command: Command) -> None:
        """Send it a command, if it runs."""


class WorkerHealth(Struct, frozen=True):
    pid: int | None
    serving: bool


class WorkersHealth(Struct, frozen=True):
    """``GET /health`` of a supervisor."""

    status: str
    version: str
    pid: int
    workers: list[WorkerHealth]


class _Heading(Struct):
    """The fields of an update that the supervisor reads: they decide who gets it, and outlive the worker."""

    process: int
    is_complete: bool
    totals: live_messages.Totals


_heading = msgspec.json.Decoder(_Heading)


class _Watcher:
    """One live stream."""

    def __init__(self, receive: live_messages.Receive) -> None:
        self.receive = receive
        self.known: set[int] = set()
        """Workers that have sent it a complete update."""


class WorkersSource:
    """The source of a supervisor's listener."""

    def __init__(self, workers: Sequence[Worker], api_url: str, bounds: BoundedLabels | None = None) -> None:
        """``workers``: by number. The list may be filled later. ``bounds``: of the labels of metrics."""
        self._workers = workers
        self._api_url = api_url
        self._started_at = time.time()
        self._watchers: list[_Watcher] = []
        self._numbers = itertools.count()
        self._metrics = Fold(bounds)
        self._totals: dict[int, live_messages.Totals] = {}
        """The latest counts that each running worker has reported."""
        self._departed = live_messages.Totals()
        self._details: dict[int, asyncio.Future[live_messages.ConnectionDetail | None]] = {}

    def greeting(self) -> live_messages.Greeting:
        return live_messages.Greeting(
            version=__version__,
            started_at=self._started_at,
            now=time.time(),
            interval_s=live_messages.INTERVAL_S,
            api_url=self._api_url,
            workers=len(self._workers),
            departed=self._departed,
        )

    def subscribe(self, receive: live_messages.Receive) -> Callable[[], None]:
        watcher = _Watcher(receive)
        self._watchers.append(watcher)
        for worker in self._workers:
            worker.send(Watch())

        def unsubscribe() -> None:
            self._watchers.remove(watcher)
            if not self._watchers:
                for worker in self._workers:
                    worker.send(EndWatch())

        return unsubscribe

    async def detail(self, process: int, number: int) -> live_messages.ConnectionDetail | None:
        if process >= len(self._workers) or not self._workers[process].is_serving:
            return None
        request = next(self._numbers)
        future: asyncio.Future[live_messages.ConnectionDetail | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._details[request] = future
        self._workers[process].send(Describe(request, number))
        try:
            async with asyncio.timeout(_DETAIL_TIMEOUT_S):
                return await future
        except TimeoutError:
            return None  # it has ended meanwhile
        finally:
            del self._details[request]

    def metrics(self) -> Snapshot:
        return self._metrics.snapshot(process_snapshot())

    def health(self) -> tuple[object, int]:
        workers = [WorkerHealth(worker.pid, worker.is_serving) for worker in self._workers]
        serving = sum(worker.serving for worker in workers)
        status = "ok" if serving == len(workers) else "degraded"
        return WorkersHealth(status, __version__, os.getpid(), workers), 200 if serving else 503

    # Called for what workers report.

    def updated(self, line: bytes) -> None:
        """A worker has sent a live update."""
        heading = _heading.decode(line)
        self._totals[heading.process] = heading.totals
        for watcher in list(self._watchers):
            # A complete update is for those that have none yet, the changes are for all others.
            if (heading.process in watcher.known) != heading.is_complete:
                watcher.known.add(heading.process)
                watcher.receive(line)

    def measured(self, process: int, snapshot: Snapshot) -> None:
        """A worker has sent what it has counted."""
        self._metrics.update(process, snapshot)
        self._totals[process] = totals_of(snapshot)

    def described(self, report: Described) -> None:
        future = self._details.get(report.request)
        if future is not None and not future.done():
            future.set_result(report.detail)

    def began(self, process: int) -> None:
        """A worker serves: one that replaces another has to be watched like it."""
        if self._watchers:
            self._workers[process].send(Watch())

    def ended(self, process: int) -> None:
        self._metrics.end(process)
        self._departed = live_messages.sum_of(
            (self._departed, self._totals.pop(process, live_messages.Totals()))
        )
        line = live_messages.encode(live_messages.ProcessGone(process, self._departed))
        for watcher in list(self._watchers):
            watcher.known.discard(process)
            watcher.receive(line)
