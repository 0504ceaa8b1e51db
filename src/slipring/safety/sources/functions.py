"""Sources that are Python functions of other packages: ``python:MODULE:FACTORY``, or entry points.

The factory is called once, with the settings of the check as keyword arguments. It returns a function that
takes a ``Subject`` and returns scores: a mapping of categories to numbers from 0 to 1, one number, or a bool;
the two latter stand for one category with the name of the check. The function may have a ``version``, a
string. It may be a coroutine function; any other one is called in a thread (``CheckThreads``), unless
``thread`` is false.
"""

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from queue import SimpleQueue
from typing import Any, TypeVar

from slipring.base.errors import StartupError
from slipring.core.checks.verdicts import Subject
from slipring.safety.source_calls import MOST_LATE, Findings, SourceFailed

log = logging.getLogger("slipring")
PREFIX = "python:"
GROUP = "slipring.checks"
"""The group of entry points that name factories."""

T = TypeVar("T")


class Functions:
    """Calls a function once for each subject."""

    def __init__(
        self, check: str, factory: Callable[..., Any], settings: Mapping[str, Any], at_once: int
    ) -> None:
        """``at_once``: calls of one tenant that may run at the same time."""
        given = dict(settings)
        in_thread = given.pop("thread", True)
        if type(in_thread) is not bool:
            raise StartupError("settings.thread must be true or false")
        self._check = check
        self._factory = factory
        self._settings = given
        self._in_thread = in_thread
        self._threads = CheckThreads(check, at_once, at_once + MOST_LATE)
        self._function: Callable[[Subject], Any] | None = None
        self._is_async = False
        self.version = ""
        self.longest_match = 0

    async def start(self) -> None:
        """Call the factory, which may load a model, in a thread."""
        try:
            function = await self._threads.run(lambda: self._factory(**self._settings), "")
        except Exception as error:
            log.debug("the factory of check %s failed", self._check, exc_info=True)
            raise StartupError(f"its factory raised {type(error).__name__}: {error}") from None
        if not callable(function):
            raise StartupError("its factory returned no function")
        self._function = function
        self._is_async = _is_coroutine_function(function)
        self.version = str(getattr(function, "version", ""))
        longest = getattr(function, "longest_match", 0)
        self.longest_match = longest if type(longest) is int and longest > 0 else 0

    async def close(self) -> None:
        self._threads.close()
        close = getattr(self._function, "close", None)
        if callable(close) and inspect.isawaitable(closing := close()):
            await closing

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        assert self._function is not None, "not started"
        if self._is_async:
            return [await self._awaited(subject) for subject in subjects]
        if self._in_thread:
            return await self._threads.run(lambda: [self._called(each) for each in subjects], tenant)
        return [self._called(subject) for subject in subjects]

    async def _awaited(self, subject: Subject) -> Findings:
        assert self._function is not None
        try:
            return self._findings(await self._function(subject))
        except SourceFailed:
            raise
        except Exception as error:
            raise self._failure(error) from None

    def _called(self, subject: Subject) -> Findings:
        assert self._function is not None
        try:
            return self._findings(self._function(subject))
        except SourceFailed:
            raise
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> SourceFailed:
        """The text of the exception stays in the debug log: it may repeat what was inspected."""
        log.debug("check %s raised", self._check, exc_info=error)
        return SourceFailed(f"it raised {type(error).__name__}")

    def _findings(self, answer: object) -> Findings:
        if isinstance(answer, Mapping):
            scores = {str(category): _score(value) for category, value in answer.items()}
        else:
            scores = {self._check: _score(answer)}
        return Findings(scores)


def _score(value: object) -> float:
    """A score as a number. Raises ``SourceFailed`` for anything that is not from 0 to 1."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise SourceFailed("it returned no scores") from None
    if isinstance(value, str | bytes) or not 0 <= number <= 1:
        raise SourceFailed("it returned a score that is not from 0 to 1")
    return number


def _is_coroutine_function(function: object) -> bool:
    is_one = inspect.iscoroutinefunction
    return is_one(function) or is_one(type(function).__dict__.get("__call__"))


def _import(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def find_factory(source: str) -> Callable[..., Any] | None:
    """The factory that a source names; None if it names neither a module nor an entry point. Raises
    ``StartupError`` if it cannot be imported."""
    if source.startswith(PREFIX):
        module, _, name = source.removeprefix(PREFIX).rpartition(":")
        if not module or not name.isidentifier():
            raise StartupError(f"source must be written as {PREFIX}MODULE:FACTORY")
        load: Callable[[], Any] = partial(_import, module, name)
    else:
        found = next(iter(entry_points(group=GROUP, name=source)), None)
        if found is None:
            return None
        load = found.load
    try:
        factory: Callable[..., Any] = load()
    except Exception as error:
        raise StartupError(f"source cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(factory):
        raise StartupError("source names no function")
    return factory


_Work = tuple[Callable[[], Any], str, "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class CheckThreads:
    """Threads for functions that compute, or that wait without yielding to the event loop.

    Bounded in number, in total and per tenant; each is started when it is first needed. A thread cannot be
    stopped. So these are daemon threads, unlike those of an executor: one that hangs does not keep the
    process from ending. The tenant whose text it hangs on then has one thread less; the others keep theirs.
    """

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
