"""The parent's side of a child process: starts it, sends it calls, and replaces it when it dies."""

import asyncio
import contextlib
import logging
import os
import signal
import sys

from slipring.base.errors import Unavailable
from slipring.sandbox import pipe_messages
from slipring.sandbox.pipe_messages import LENGTH_BYTES, Answer, Exceeded, Outcome, Reply, Setup

log = logging.getLogger("slipring")

_WALL_TIME_FACTOR = 10
"""A call may take this many times its processor time by the clock. After that the child is blocked, or the
machine is too busy."""
_START_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0
_MAX_REPLY_BYTES = 64 * 2**20
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

    async def run(self, data: bytes) -> Outcome:
        """Send an encoded call and return its outcome.

        Raises ``Unavailable`` if no child can be started, or if it got no processor time.
        """
        try:
            child = await self._started()
            async with asyncio.timeout(_WALL_TIME_FACTOR * self._setup.timeout_s):
                reply = await _exchange(child, data)
        except TimeoutError:
            await self.end()
            raise Unavailable("The server is too busy to compile this. Try again later.") from None
        except asyncio.CancelledError:
            await self.end()
            raise
        if not isinstance(reply, Answer):
            return await self._cause_of_death()
        if reply.has_grown:
            await self.end()
        return reply.outcome

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
            raise _unavailable(str(error)) from None
        async with asyncio.timeout(_START_TIMEOUT_S):
            if await _exchange(child, pipe_messages.encode(self._setup)) is None:
                await self.end()
                raise _unavailable("it exited at once")
        return child

    async def _cause_of_death(self) -> Outcome:
        """Which limit killed the child, from its exit status."""
        child, self._child = self._child, None
        assert child is not None
        code = await _wait(child)
        if code == -signal.SIGPROF:
            return Exceeded(
                f"takes more than {self._setup.timeout_s:g} s of processor time to compile"
                " (compile_timeout_s)"
            )
        return Exceeded(
            f"takes more than {self._setup.memory_bytes} bytes of memory to compile (compile_memory_bytes),"
            " or is more than the compiler can take"
        )


def _unavailable(reason: str) -> Unavailable:
    log.error("cannot start the process that compiles grammars and schemas: %s", reason)
    return Unavailable("Nothing can be compiled just now. Try again later.")


async def _exchange(child: asyncio.subprocess.Process, data: bytes) -> Reply | None:
    """Send a message and return the child's reply; None if the child has died."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(pipe_messages.with_length(data))
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
        if size > _MAX_REPLY_BYTES:
            return None
        return pipe_messages.decode_reply(await child.stdout.readexactly(size))
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
