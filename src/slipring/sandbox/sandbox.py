"""Running tasks on what clients sent: in child processes, or in a thread where there is no server."""

import asyncio
import logging
from collections.abc import Mapping
from hashlib import blake2b
from importlib import import_module
from typing import Any, Protocol

from slipring.errors import InvalidRequest, ServerError, Unavailable
from slipring.sandbox import pipe_messages
from slipring.sandbox.compile_limits import Bounds
from slipring.sandbox.outcome_cache import Cache, Key
from slipring.sandbox.pipe_messages import Broken, Call, Done, Exceeded, Outcome
from slipring.sandbox.process import Process
from slipring.sandbox.queue import FairQueue
from slipring.sandbox.tasks import TASKS

log = logging.getLogger("slipring")


class TooExpensive(InvalidRequest):
    """What a client sent takes more than it may. ``reason`` follows on "it"."""

    def __init__(self, reason: str, param: str | None = None) -> None:
        named = f"Invalid '{param}'" if param is not None else "The request cannot be served"
        super().__init__(f"{named}: it {reason}.", param=param)
        self.reason = reason


class Runner(Protocol):
    """Runs tasks."""

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        """What a task returns for arguments, which are data. Raises the ``InvalidRequest`` that the task
        raises, ``TooExpensive`` where it exceeds a bound, ``RateLimited`` and ``Unavailable``."""


class InThread:
    """Runs tasks in a thread of this process, without bounds: for engines that nobody serves."""

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(getattr(import_module(TASKS[task]), task), *arguments)


class _Pending:
    """A call that waits or runs, and those who want its outcome."""

    __slots__ = ("data", "future", "key", "wanted")

    def __init__(self, key: Key, data: bytes) -> None:
        self.key = key
        self.data = data
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.wanted = 0


class Sandbox:
    """Runs tasks in child processes, within bounds. Nothing is started before the first call.

    Outcomes are kept by the digest of their call, for each tenant by itself, refusals too. Calls that are the
    same and under way are one.
    """

    def __init__(self, bounds: Bounds, tasks: Mapping[str, str] = TASKS) -> None:
        self.bounds = bounds
        self._tasks = tasks
        self._cache = Cache(bounds.cache_bytes)
        self._queue: FairQueue[_Pending] = FairQueue(bounds.waiting)
        self._pending: dict[Key, _Pending] = {}
        self._idle = [Process(bounds, tasks) for _ in range(bounds.processes)]
        self._processes = tuple(self._idle)
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Of the child processes that there are."""
        return [process.pid for process in self._processes if process.pid is not None]

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        if task not in self._tasks:
            raise LookupError(f"there is no task '{task}'")
        data = pipe_messages.encode(Call(task, list(arguments)))
        if len(data) > self.bounds.call_bytes:
            raise TooExpensive(f"has more than {self.bounds.call_bytes} bytes (max_compiled_bytes)")
        key = tenant, blake2b(data, digest_size=20).digest()
        outcome = self._cache.find(key)
        if outcome is None:
            outcome = await self._outcome(key, data)
        return _result(outcome)

    async def close(self) -> None:
        """End the children. Whoever waits is told that nothing is compiled any more."""
        self._closed = True
        for pending in self._queue.clear():
            _settle(pending, _unavailable())
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for process in self._processes:
            await process.end()

    async def _outcome(self, key: Key, data: bytes) -> Outcome:
        """Have a call run, or wait for the same one that is under way."""
        if self._closed:
            raise _unavailable()
        pending = self._pending.get(key)
        if pending is None:
            pending = _Pending(key, data)
            self._queue.put(key[0], pending)
            self._pending[key] = pending
            self._dispatch()
        pending.wanted += 1
        try:
            return await asyncio.shield(pending.future)
        finally:
            pending.wanted -= 1
            if not pending.wanted and self._queue.remove(key[0], pending):
                del self._pending[key]  # nobody wants it any more, and nobody has begun with it

    def _dispatch(self) -> None:
        """Give calls to children that have nothing to do."""
        while self._idle and (taken := self._queue.take()) is not None:
            task = asyncio.create_task(self._carry_out(taken[1], self._idle.pop()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _carry_out(self, pending: _Pending, process: Process) -> None:
        try:
            outcome = await process.run(pending.data)
        except BaseException as error:
            _settle(pending, error if isinstance(error, Exception) else _unavailable())
            if not isinstance(error, Exception):
                raise
        else:
            if isinstance(outcome, Broken):
                log.error("a task of the sandbox failed:\n%s", outcome.traceback)
            else:
                self._cache.keep(pending.key, outcome, len(pipe_messages.encode(outcome)))
            if not pending.future.done():
                pending.future.set_result(outcome)
        finally:
            self._pending.pop(pending.key, None)
            self._queue.over(pending.key[0])
            self._idle.append(process)
            if not self._closed:
                self._dispatch()


def _result(outcome: Outcome) -> Any:
    if isinstance(outcome, Done):
        return outcome.value
    if isinstance(outcome, Exceeded):
        raise TooExpensive(outcome.reason)
    if isinstance(outcome, Broken):
        raise ServerError
    raise InvalidRequest(outcome.message, param=outcome.param, code=outcome.code)


def _unavailable() -> Unavailable:
    return Unavailable("Nothing is compiled any more: the server is stopping.")


def _settle(pending: _Pending, error: Exception) -> None:
    if not pending.future.done():
        pending.future.set_exception(error)
        pending.future.exception()  # seen, even if nobody waits any more
