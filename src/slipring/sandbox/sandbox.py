"""The sandbox: runs tasks on client input in child processes, fairly and with a cache.

This is the side of the server, which starts the processes, sends them calls and replaces those that die;
``child`` is what runs in them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import OrderedDict, deque
from collections.abc import Mapping
from hashlib import blake2b
from importlib import import_module
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from slipring.base.errors import (
    OVERLOAD_RETRY_S,
    InvalidRequest,
    RateLimited,
    ServerError,
    TooExpensive,
    Unavailable,
)
from slipring.base.periodic_tasks import cancel_and_wait
from slipring.core.tenant_caches import CacheKey, TenantCache
from slipring.sandbox import pipe_messages
from slipring.sandbox.pipe_messages import (
    COMPILING,
    LENGTH_BYTES,
    Answer,
    Call,
    Crashed,
    Done,
    Exceeded,
    Outcome,
    Reply,
    SandboxLimits,
    Setup,
    Words,
)

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting calls. Tenants take turns, and each has at most one call running: after ``take``, the caller
    must report the end of the call with ``finish``."""

    def __init__(self, max_waiting: int, words: Words = COMPILING) -> None:
        """``max_waiting``: calls of one tenant that may wait."""
        self._max_waiting = max_waiting
        self._words = words
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """By tenant, in the order of their next turns."""
        self._running: set[str] = set()

    def put(self, tenant: str, call: T) -> None:
        """Add a call. Raises ``RateLimited`` if too many calls of the tenant are waiting."""
        calls = self._waiting.setdefault(tenant, deque())
        if len(calls) >= self._max_waiting:
            raise RateLimited(
                f"{len(calls)} {self._words.subjects} of yours wait to be {self._words.participle}. Try again"
                " later.",
                retry_after_s=OVERLOAD_RETRY_S,
            )
        calls.append(call)

    def take(self) -> tuple[str, T] | None:
        """Remove and return the next call of a tenant that has none running; None if there is none."""
        for tenant, calls in self._waiting.items():
            if tenant not in self._running:
                call = calls.popleft()
                if calls:
                    self._waiting.move_to_end(tenant)
                else:
                    del self._waiting[tenant]
                self._running.add(tenant)
                return tenant, call
        return None

    def finish(self, tenant: str) -> None:
        """The running call of a tenant has ended."""
        self._running.discard(tenant)

    def remove(self, tenant: str, call: T) -> bool:
        """Remove a waiting call; returns whether it was waiting."""
        calls = self._waiting.get(tenant)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        if not calls:
            del self._waiting[tenant]
        return True

    def clear(self) -> list[T]:
        """Remove and return all waiting calls."""
        waiting = [call for calls in self._waiting.values() for call in calls]
        self._waiting.clear()
        return waiting


log = logging.getLogger("slipring")

TASKS: Mapping[str, str] = {
    "check_grammar": "slipring.engines.constraints.grammar_checks",
    "sample_document": "slipring.engines.constraints.sample_values",
    "sample_input": "slipring.engines.constraints.sample_values",
    "write_constraint": "slipring.engines.constraints.server_constraint",
    "write_structural_tag": "slipring.engines.constraints.server_constraint",
    "write_grammar": "slipring.engines.constraints.llama_grammar",
}
"""The functions that a child may call, each with its module. Only the child imports these modules: this layer
knows their names alone."""


class Runner(Protocol):
    """Runs tasks."""

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        """Call the function named ``task`` with serializable arguments and return its result.

        Raises the ``InvalidRequest`` that the function raises, ``TooExpensive`` if it exceeds a limit,
        ``RateLimited`` and ``Unavailable``.
        """


class InThread:
    """Runs tasks in a thread of this process, without limits: for engines used outside a server."""

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(getattr(import_module(TASKS[task]), task), *arguments)


_WALL_TIME_FACTOR = 10
"""A call may take this many times its processor time by the clock. After that the child is blocked, or the
machine is too busy."""
_START_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0
_MAX_REPLY_BYTES = 64 * 2**20
_PIECE_BYTES = 256 * 1024
"""Larger messages are written in pieces, and decoded in a thread."""
_PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
"""The rest of the environment is withheld from the child: it may contain API keys."""


class ChildProcess:
    """A child process, started by the first call. Takes one call at a time."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def run(self, data: bytes) -> "tuple[Outcome, int]":
        """Send an encoded call and return its outcome, and how many bytes that has.

        Raises ``Unavailable`` if no child can be started, or if it got no processor time.
        """
        try:
            child = await self._started()
            async with asyncio.timeout(_WALL_TIME_FACTOR * self._setup.limits.timeout_s):
                reply, size = await _exchange(child, data)
        except TimeoutError:
            await self.end()
            busy = f"The server is too busy to {self._setup.limits.words.verb} this. Try again later."
            raise Unavailable(busy) from None
        except asyncio.CancelledError:
            await self.end()
            raise
        if not isinstance(reply, Answer):
            return await self._cause_of_death(), 0
        if reply.has_grown:
            await self.end()
        return reply.outcome, size

    async def end(self) -> None:
        """Kill the child, if it runs."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await _wait(child)

    async def _started(self) -> asyncio.subprocess.Process:
        child = self._child
        if child is not None and child.stdout is not None and not child.stdout.at_eof():
            return child
        await self.end()  # it may have died between two calls
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slipring.sandbox.child"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # Native code that aborts prints parts of a client's input there.
                stderr=asyncio.subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
                start_new_session=True,
            )
        except OSError as error:
            raise self._unavailable(str(error)) from None
        async with asyncio.timeout(_START_TIMEOUT_S):
            ready, _ = await _exchange(child, pipe_messages.encode(self._setup))
            if ready is None:
                await self.end()
                raise self._unavailable("it exited at once")
        return child

    async def _cause_of_death(self) -> Outcome:
        """Which limit killed the child, from its exit status."""
        child, self._child = self._child, None
        assert child is not None
        code = await _wait(child)
        limits, words = self._setup.limits, self._setup.limits.words
        if code == -signal.SIGPROF:
            return Exceeded(
                f"takes more than {limits.timeout_s:g} s of processor time to {words.verb} ({words.timeout})"
            )
        return Exceeded(
            f"takes more than {limits.memory_bytes} bytes of memory to {words.verb} ({words.memory}), or is"
            " more than this process can take"
        )

    def _unavailable(self, reason: str) -> Unavailable:
        words = self._setup.limits.words
        log.error("cannot start the process in which %s are %s: %s", words.subjects, words.participle, reason)
        return Unavailable(f"Nothing can be {words.participle} just now. Try again later.")


async def _exchange(child: asyncio.subprocess.Process, data: bytes) -> tuple[Reply | None, int]:
    """Send a message and return the child's reply with its size; None if the child has died."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        await _write(child.stdin, data)
        size = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
        if size > _MAX_REPLY_BYTES:
            return None, 0
        pieces = await _read(child.stdout, size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None, 0
    if size <= _PIECE_BYTES:
        return _decoded(pieces), size
    return await asyncio.to_thread(_decoded, pieces), size


def _decoded(pieces: list[bytes]) -> Reply:
    return pipe_messages.decode_reply(b"".join(pieces))


async def _write(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write a message piece by piece: the event loop would copy a large one as a whole."""
    pipe.write(len(data).to_bytes(LENGTH_BYTES, "big"))
    for start in range(0, len(data), _PIECE_BYTES):
        pipe.write(data[start : start + _PIECE_BYTES])
        await pipe.drain()


async def _read(pipe: asyncio.StreamReader, size: int) -> list[bytes]:
    """Read so many bytes."""
    pieces: list[bytes] = []
    while size:
        piece = await pipe.read(min(size, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        pieces.append(piece)
        size -= len(piece)
    return pieces


async def _wait(child: asyncio.subprocess.Process) -> int:
    """The exit status of a child that has closed its pipes or was killed."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT_S):
            code = await child.wait()
    except TimeoutError:
        child.kill()
        code = await child.wait()
    with contextlib.suppress(ConnectionError):
        await child.stdin.wait_closed()
    return code


class EncodedCall(NamedTuple):
    """A call as it is sent to a child."""

    task: str
    data: bytes
    digest: bytes


def encoded_call(task: str, *arguments: Any) -> EncodedCall:
    """Encode a call. Takes time in proportion to its arguments: large ones are to be encoded in a thread."""
    data = pipe_messages.encode(Call(task, list(arguments)))
    return EncodedCall(task, data, blake2b(data, digest_size=20).digest())


class _PendingCall:
    """A waiting or running call, with the number of tasks that await its outcome."""

    __slots__ = ("data", "future", "key", "waiters")

    def __init__(self, key: CacheKey, data: bytes) -> None:
        self.key = key
        self.data = data
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.waiters = 0


class Sandbox:
    """Runs tasks in child processes, within limits. Starts no process before the first call.

    Caches outcomes, rejections included, by tenant and digest of the call. Concurrent equal calls of a tenant
    run once.
    """

    def __init__(self, limits: SandboxLimits, tasks: Mapping[str, str] = TASKS) -> None:
        self.limits = limits
        self._tasks = tasks
        self._cache: TenantCache[Outcome] = TenantCache(limits.cache_bytes)
        self._queue: FairQueue[_PendingCall] = FairQueue(limits.waiting, limits.words)
        self._pending: dict[CacheKey, _PendingCall] = {}
        setup = Setup(dict(tasks), limits)
        self._idle = [ChildProcess(setup) for _ in range(limits.processes)]
        self._processes = tuple(self._idle)
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the running children."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def cached_bytes(self) -> int:
        """Size of the cached outcomes."""
        return self._cache.used_bytes

    async def run(self, tenant: str, task: str, *arguments: Any) -> Any:
        return await self.run_encoded(tenant, encoded_call(task, *arguments))

    async def run_encoded(self, tenant: str, call: EncodedCall) -> Any:
        """``run``, of a call that is encoded already."""
        if call.task not in self._tasks:
            raise LookupError(f"there is no task '{call.task}'")
        if len(call.data) > self.limits.call_bytes:
            raise TooExpensive(f"has more than {self.limits.call_bytes} bytes ({self.limits.words.size})")
        key = tenant, call.digest
        outcome = self._cache.find(key)
        if outcome is None:
            outcome = await self._outcome(key, call.data)
        return _result(outcome)

    def forget(self, tenant: str) -> None:
        """Forget the outcomes of a tenant's calls."""
        self._cache.forget(tenant)

    async def close(self) -> None:
        """Kill the children. Waiting and running calls raise ``Unavailable``."""
        self._closed = True
        for call in self._queue.clear():
            _fail(call, _stopping())
        await cancel_and_wait(self._running)
        for process in self._processes:
            await process.end()

    async def _outcome(self, key: CacheKey, data: bytes) -> Outcome:
        """Queue a call and wait for its outcome, or join an equal call that is pending."""
        if self._closed:
            raise _stopping()
        call = self._pending.get(key)
        if call is None:
            call = _PendingCall(key, data)
            self._queue.put(key[0], call)
            self._pending[key] = call
            self._dispatch()
        call.waiters += 1
        try:
            return await asyncio.shield(call.future)
        finally:
            call.waiters -= 1
            if not call.waiters and self._queue.remove(key[0], call):
                del self._pending[key]  # every waiter was cancelled before the call started

    def _dispatch(self) -> None:
        """Give queued calls to idle children."""
        while self._idle and (taken := self._queue.take()) is not None:
            task = asyncio.create_task(self._execute(taken[1], self._idle.pop()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _execute(self, call: _PendingCall, process: ChildProcess) -> None:
        try:
            outcome, size = await process.run(call.data)
        except BaseException as error:
            _fail(call, error if isinstance(error, Exception) else _stopping())
            if not isinstance(error, Exception):
                raise
        else:
            if isinstance(outcome, Crashed):
                log.error("a sandbox task failed:\n%s", outcome.traceback)
            else:
                self._cache.put(call.key, outcome, size)
            if not call.future.done():
                call.future.set_result(outcome)
        finally:
            self._pending.pop(call.key, None)
            self._queue.finish(call.key[0])
            self._idle.append(process)
            if not self._closed:
                self._dispatch()


def _result(outcome: Outcome) -> Any:
    if isinstance(outcome, Done):
        return outcome.value
    if isinstance(outcome, Exceeded):
        raise TooExpensive(outcome.reason)
    if isinstance(outcome, Crashed):
        raise ServerError
    raise InvalidRequest(outcome.message, param=outcome.param, code=outcome.code)


def _stopping() -> Unavailable:
    return Unavailable("The server is stopping.")


def _fail(call: _PendingCall, error: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(error)
        call.future.exception()  # marked as retrieved: every waiter may have been cancelled
