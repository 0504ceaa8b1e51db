"""A worker process, started by ``worker_start``.

Runs one server. Commands arrive on standard input: what to serve, where engines are, when to stop. The worker
exits when standard input closes, so that it never outlives its supervisor.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

from slipring.base.errors import StartupError
from slipring.base.garbage_collection import skip_last_collection
from slipring.config.settings import ADMIN_OFF
from slipring.engines.base import Engine
from slipring.engines.catalog import borrow_engine, open_engine
from slipring.engines.engine_hosts import Borrowed
from slipring.server.admin.live_view import LiveFeed
from slipring.server.observation.turn_log import set_up_logging
from slipring.server.process.event_loop import loop_factory
from slipring.server.process.server import Server
from slipring.server.process.shutdown import IGNORED_SIGNALS, StopRequest, ignore, log_ignored_signals
from slipring.server.process.worker_messages import (
    Assignment,
    Command,
    Describe,
    Described,
    Draining,
    EndWatch,
    EngineMoved,
    EngineSuspected,
    Failed,
    Measured,
    Report,
    StopNow,
    Watch,
    decode_command,
    encode,
)

_MEASURE_S = 1.0
"""Time between two reports of what was counted."""
_MOST_UNREAD_BYTES = 16 * 2**20
"""Beyond this, live updates are left out until the supervisor has read."""


def main() -> int:
    # A signal to all processes reaches this one too. The supervisor decides what follows: it may have been
    # started to survive its terminal.
    ignore(signal.SIGINT, signal.SIGHUP, *IGNORED_SIGNALS)
    reports = os.dup(1)
    os.dup2(2, 1)  # prints must not reach the supervisor
    commands = _read_lines(0)
    first = next(commands, None)
    if first is None:  # the supervisor has already ended
        return 1
    assignment = decode_command(first)
    assert isinstance(assignment, Assignment)
    set_up_logging(assignment.config.log_level, names_process=True)
    worker = Worker(assignment, reports)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(worker.run(commands))
    except StartupError as error:
        worker.report(Failed(str(error)))
        return 1
    skip_last_collection()
    return 0


class Worker:
    """Runs a server, carries out the supervisor's commands and reports to it."""

    def __init__(self, assignment: Assignment, reports: int) -> None:
        """``reports`` is the file descriptor to write reports to."""
        self._config = assignment.config
        self._number = assignment.number
        self._reports = ReportPipe(reports)
        self._feed: LiveFeed | None = None
        self._end_watch: Callable[[], None] | None = None
        self._measuring: asyncio.TimerHandle | None = None
        self._stop_request = StopRequest()
        self._borrowed = {
            name: Borrowed(loan.share, loan.key, partial(self._suspect, name))
            for name, loan in assignment.loans.items()
        }
        for name, loan in assignment.loans.items():
            self._borrowed[name].move(loan.url)

    async def run(self, commands: Iterator[bytes]) -> None:
        """Serve until a command or SIGTERM stops the server."""
        loop = asyncio.get_running_loop()

        def read_commands() -> None:
            for line in commands:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._execute, decode_command(line))
            os._exit(1)  # the supervisor was killed, and the engines that it ran with it

        # A thread, so that the death of the supervisor is noticed even if the loop is busy.
        threading.Thread(target=read_commands, name="commands", daemon=True).start()
        await self._reports.open()
        try:
            await self._serve(loop)
        finally:
            self._reports.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        server = Server(self._config, open_by_name=self._open, number=self._number)
        self._view = server.live
        server.stop_request = self._stop_request
        # A service manager may send SIGTERM to all processes of a service. The Stop command that follows from
        # the supervisor must not count as a second signal.
        loop.add_signal_handler(signal.SIGTERM, self._stop_request.requested.set)
        log_ignored_signals()
        await server.run(self._report_ready, lambda responses: self.report(Draining(responses)))
        if self._measuring is not None:
            self._measuring.cancel()
            self._measure(server)

    def report(self, report: Report) -> None:
        self._reports.write(encode(report))

    def _open(self, name: str) -> Engine:
        borrowed = self._borrowed.get(name)
        return open_engine(name) if borrowed is None else borrow_engine(name, borrowed)

    def _report_ready(self, server: Server) -> None:
        server.take_over_collections()
        self.report(server.describe())
        if self._config.admin != ADMIN_OFF:
            self._measure_regularly(server)

    def _measure_regularly(self, server: Server) -> None:
        self._measure(server)
        loop = asyncio.get_running_loop()
        self._measuring = loop.call_later(_MEASURE_S, self._measure_regularly, server)

    def _measure(self, server: Server) -> None:
        """Report what was counted. What a worker counts after its last report is lost if it is killed."""
        self._reports.write_if_read(encode(Measured(server.metrics.snapshot())))

    def _suspect(self, name: str, url: str) -> None:
        self.report(EngineSuspected(name, url))

    def _execute(self, command: Command) -> None:
        if isinstance(command, EngineMoved):
            self._borrowed[command.engine].move(command.url)
            return
        if isinstance(command, Watch | EndWatch | Describe):
            self._show(command)
            return
        self._stop_request.requested.set()
        if isinstance(command, StopNow):
            self._stop_request.immediate.set()

    def _show(self, command: Watch | EndWatch | Describe) -> None:
        """Carry out a command that serves watchers."""
        if isinstance(command, Describe):
            self.report(Described(command.request, self._view.detail(command.connection)))
        elif isinstance(command, Watch):
            self._feed = self._feed or LiveFeed(self._view)
            self._end_watch = self._feed.subscribe(self._reports.write_if_read)
        elif self._end_watch is not None:
            self._end_watch()
            self._end_watch = None


class ReportPipe:
    """Writes lines to the supervisor without waiting for it to read them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._transport: asyncio.WriteTransport | None = None

    async def open(self) -> None:
        """Write through the event loop from now on."""
        pipe = os.fdopen(os.dup(self._descriptor), "wb", 0)
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, pipe)

    def close(self) -> None:
        """Write directly from now on: the event loop is about to end."""
        assert self._transport is not None
        self._transport.close()
        self._transport = None

    def write(self, line: bytes) -> None:
        if self._transport is None:
            os.write(self._descriptor, line)
        else:
            self._transport.write(line)

    def write_if_read(self, line: bytes) -> None:
        """Write a line, unless the supervisor has not read much of what was written before."""
        pipe = self._transport
        if pipe is not None and pipe.get_write_buffer_size() < _MOST_UNREAD_BYTES:
            pipe.write(line)


def _read_lines(descriptor: int) -> Iterator[bytes]:
    """Yield lines from a descriptor. Not from ``sys.stdin``: the interpreter cannot exit while a thread reads
    it."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
