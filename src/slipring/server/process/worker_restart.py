"""Keeps one worker process running, and starts another one, with back-off, when it dies."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable

from slipring.base.errors import StartupError
from slipring.observation.snapshots import Snapshot
from slipring.server.process.worker_messages import (
    Assignment,
    Command,
    Described,
    Draining,
    EngineSuspected,
    Failed,
    Measured,
    Serving,
    Stop,
    StopNow,
    decode_report,
    encode,
    is_update,
)

log = logging.getLogger("slipring")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LONGEST_LINE = 64 * 2**20
"""Bytes of a line that a worker reports; a complete live update of 10,000 connections has 10 MB."""
_STEADY_S = 60.0
"""The pause starts over after a worker that ran this long: its start was not the cause of its death."""


class SlotObserver:
    """Is told what workers report and when they begin and end. Every method may be left as it is."""

    def updated(self, line: bytes) -> None:
        """A worker has written a live update."""

    def measured(self, process: int, snapshot: Snapshot) -> None:
        """The worker with this number has sent what it has counted."""

    def described(self, report: Described) -> None:
        """A worker has described a connection."""

    def began(self, process: int) -> None:
        """The worker with this number serves."""

    def ended(self, process: int) -> None:
        """The worker with this number has ended."""


class WorkerSlot:
    """Owns one worker process at a time, from ``start`` until ``ended`` is done."""

    def __init__(
        self,
        number: int,
        assign: Callable[[], Assignment],
        on_suspicion: Callable[[EngineSuspected], None],
        observer: SlotObserver,
    ) -> None:
        """``assign`` is called for each worker that starts."""
        self._number = number
        self._assign = assign
        self._on_suspicion = on_suspicion
        self._observer = observer
        self.is_serving = False
        self._process: asyncio.subprocess.Process | None = None
        self._failure = ""
        self._dismissed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while none runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.serving: asyncio.Future[Serving] = loop.create_future()
        """The first worker's report that it serves, or the ``StartupError`` that prevented it."""
        self.draining: asyncio.Future[int] = loop.create_future()
        """How many responses the dismissed worker waits for."""
        self.ended = asyncio.create_task(self._keep_running())
        self.ended.add_done_callback(lambda _: self._drains(0))

    def send(self, command: Command) -> None:
        """Send a command to the worker, if it runs."""
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.write(encode(command))

    def dismiss(self, command: Stop | StopNow) -> None:
        """Stop the worker and do not replace it. ``ended`` is done when it has exited."""
        self._dismissed.set()
        self.send(command)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _keep_running(self) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        while not self._dismissed.is_set():
            started_at = clock()
            code = await self._run_worker()
            if self._dismissed.is_set():
                return
            if not self.serving.done():
                reason = self._failure or f"a worker exited with code {code} before it served"
                self.serving.set_exception(StartupError(reason))
                return
            log.error("a worker ended (%s); starting another one", self._failure or f"exit code {code}")
            if clock() - started_at > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dismissed.wait(), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _run_worker(self) -> int:
        """Start a worker and wait for its exit code.

        A worker is a new interpreter and not a fork: it may have to be replaced while this process runs an
        event loop with child processes and signal handlers, which a forked copy could not use.
        """
        self._failure = ""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slipring.server.process.worker_start"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C goes to the supervisor alone, which then stops the worker
            )
        except OSError as error:
            self._failure = f"cannot start a worker: {error.strerror}"
            return 1
        self.send(self._assign())
        if self._dismissed.is_set():  # while it was being started
            self.kill()
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._receive(line)
            return await process.wait()
        finally:
            self.is_serving = False
            self._observer.ended(self._number)

    def _receive(self, line: bytes) -> None:
        if is_update(line):
            self._observer.updated(line)
            return
        report = decode_report(line)
        if isinstance(report, Measured):
            self._observer.measured(self._number, report.snapshot)
        elif isinstance(report, Described):
            self._observer.described(report)
        elif isinstance(report, EngineSuspected):
            self._on_suspicion(report)
        elif isinstance(report, Failed):
            self._failure = report.reason
        elif isinstance(report, Draining):
            # A worker that drains because it alone was signalled will be replaced.
            if self._dismissed.is_set():
                self._drains(report.responses)
        else:
            self.is_serving = True
            self._observer.began(self._number)
            if not self.serving.done():
                self.serving.set_result(report)

    def _drains(self, responses: int) -> None:
        if not self.draining.done():
            self.draining.set_result(responses)
