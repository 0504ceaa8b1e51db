"""One child process, as its parent sees it: started with the first call, ended when a call takes too long.

A child that dies is the outcome of the call that it was working on. The next call gets another one.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping

from slipring.errors import Unavailable
from slipring.sandbox import pipe_messages
from slipring.sandbox.compile_limits import Bounds
from slipring.sandbox.pipe_messages import LENGTH_BYTES, Answer, Exceeded, Orders, Outcome, Report

log = logging.getLogger("slipring")

_START_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0
_LONGEST_REPORT_BYTES = 64 * 2**20
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
"""Of the environment. Keys of the server are none of the child's business."""


class Process:
    """A child, while there is one. Takes one call at a time."""

    def __init__(self, bounds: Bounds, tasks: Mapping[str, str]) -> None:
        self._bounds = bounds
        self._tasks = tasks
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def run(self, data: bytes) -> Outcome:
        """The outcome of an encoded call. Raises ``Unavailable`` where no child can be started, or where one
        got no processor time."""
        try:
            child = await self._started()
            async with asyncio.timeout(self._bounds.wall_s):
                report = await _ask(child, data)
        except TimeoutError:
            await self.end()
            raise Unavailable("The server is too busy to compile this. Try again later.") from None
        except asyncio.CancelledError:
            await self.end()
            raise
        if not isinstance(report, Answer):
            return await self._cause()
        if report.has_grown:
            await self.end()
        return report.outcome

    async def end(self) -> None:
        """Kill the child, if there is one."""
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
        await self.end()  # it may have died while nobody asked it for anything
        bounds = self._bounds
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slipring.sandbox.child"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # Native code that gives up writes there, in the words of whoever sent what it was given.
                stderr=asyncio.subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                start_new_session=True,
            )
        except OSError as error:
            raise _unavailable(str(error)) from None
        orders = Orders(dict(self._tasks), bounds.timeout_s, bounds.memory_bytes, bounds.call_bytes)
        async with asyncio.timeout(_START_TIMEOUT_S):
            if await _ask(child, pipe_messages.encode(orders)) is None:
                await self.end()
                raise _unavailable("it ended at once")
        return child

    async def _cause(self) -> Outcome:
        """Why a child has died over a call."""
        child, self._child = self._child, None
        assert child is not None
        code = await _wait(child)
        if code == -signal.SIGPROF:
            return Exceeded(
                f"takes more than {self._bounds.timeout_s:g} s of processor time to compile"
                " (compile_timeout_s)"
            )
        return Exceeded(
            f"takes more than {self._bounds.memory_bytes} bytes of memory to compile (compile_memory_bytes),"
            " or is more than the compiler can take"
        )


def _unavailable(why: str) -> Unavailable:
    log.error("the process that compiles what clients send cannot be started: %s", why)
    return Unavailable("Nothing can be compiled just now. Try again later.")


async def _ask(child: asyncio.subprocess.Process, data: bytes) -> Report | None:
    """What a child answers to a message; None: it has died."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(pipe_messages.framed(data))
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
        if size > _LONGEST_REPORT_BYTES:
            return None
        return pipe_messages.report.decode(await child.stdout.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


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
