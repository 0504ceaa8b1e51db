"""A worker's post: a process that is started, watched, and started again when it dies.

Owns the life of one worker process. What it serves and what its reports mean is the supervisor's affair.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable

from slipring.errors import StartupError
from slipring.server.process.worker_messages import (
    Assignment,
    Failed,
    Hurry,
    Order,
    Serving,
    Stop,
    Suspicion,
    encode,
    read_report,
)

log = logging.getLogger("slipring")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_STEADY_S = 60.0
"""A worker that lived so long did not die of how it was started."""


class Post:
    """One of the workers, and the next one in its place."""

    def __init__(self, assign: Callable[[], Assignment], on_suspicion: Callable[[Suspicion], None]) -> None:
        """``assign`` is asked each time a worker begins."""
        self._assign = assign
        self._on_suspicion = on_suspicion
        self._process: asyncio.subprocess.Process | None = None
        self._failure = ""
        self._dismissed = asyncio.Event()

    def start(self) -> None:
        self.serving: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        """What the first worker tells when it serves, or why it cannot."""
        self.gone = asyncio.create_task(self._keep_filled())

    def tell(self, order: Order) -> None:
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.write(encode(order))

    def dismiss(self, order: Stop | Hurry) -> None:
        """Let the worker go. ``gone`` is done when it went; there will be no other."""
        self._dismissed.set()
        self.tell(order)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _keep_filled(self) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        while not self._dismissed.is_set():
            began_at = clock()
            code = await self._live()
            if self._dismissed.is_set():
                return
            if not self.serving.done():
                reason = self._failure or f"a worker ended with {code} before it served"
                self.serving.set_exception(StartupError(reason))
                return
            log.error("a worker ended with %s; starting another one", self._failure or code)
            if clock() - began_at > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dismissed.wait(), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _live(self) -> int:
        """The life of one worker; its exit code.

        It is a new interpreter and no fork: a worker that dies has to be replaced while our own loop, its
        children and its signal handlers are there, none of which a copy of this process could have.
        """
        self._failure = ""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slipring.server.process.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            self._failure = f"a worker cannot be started: {error.strerror}"
            return 1
        self.tell(self._assign())
        if self._dismissed.is_set():  # while it was being started
            self.kill()
        assert process.stdout is not None
        async for line in process.stdout:
            self._heed(line)
        return await process.wait()

    def _heed(self, line: bytes) -> None:
        report = read_report(line)
        if isinstance(report, Suspicion):
            self._on_suspicion(report)
        elif isinstance(report, Failed):
            self._failure = report.reason
        elif not self.serving.done():
            self.serving.set_result(report)
