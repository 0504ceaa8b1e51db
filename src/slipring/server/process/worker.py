"""One of several processes that serve a port together: ``python -m slipring.server.process.worker``.

It is told what to serve, where engines are and when to stop on its standard input, and lives as long as that
is open, so that it ends with its supervisor however the supervisor ends. Whatever else a server does it does
as if it were alone.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial

from slipring.engines.base import Engine
from slipring.engines.catalog import borrow_engine, open_engine
from slipring.engines.sharing import Borrowed
from slipring.errors import StartupError
from slipring.server.process.runtime import loop_factory, set_up_logging
from slipring.server.process.server import Server
from slipring.server.process.shutdown import MEANINGLESS, Stopping, ignore, log_meaningless
from slipring.server.process.worker_messages import (
    Assignment,
    Failed,
    Hurry,
    Move,
    Order,
    Report,
    Suspicion,
    encode,
    read_order,
)


def main() -> int:
    # Ctrl-C and the end of a terminal reach everybody; what follows is for the supervisor to say. It may have
    # been started to survive its terminal.
    ignore(signal.SIGINT, signal.SIGHUP, *MEANINGLESS)
    reports = os.dup(1)
    os.dup2(2, 1)  # whoever prints something does not speak to the supervisor
    orders = _lines(0)
    first = next(orders, None)
    if first is None:  # the supervisor has ended already
        return 1
    assignment = read_order(first)
    assert isinstance(assignment, Assignment)
    set_up_logging(assignment.config.log_level, names_process=True)
    worker = Worker(assignment, reports)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(worker.run(orders))
    except StartupError as error:
        worker.report(Failed(str(error)))
        return 1
    return 0


class Worker:
    """A server, and its supervisor's side of things."""

    def __init__(self, assignment: Assignment, reports: int) -> None:
        """``reports`` is the descriptor to write to."""
        self._config = assignment.config
        self._reports = reports
        self._stopping = Stopping()
        self._borrowed = {
            name: Borrowed(loan.share, loan.key, partial(self._suspect, name))
            for name, loan in assignment.loans.items()
        }
        for name, loan in assignment.loans.items():
            self._borrowed[name].move(loan.url)

    async def run(self, orders: Iterator[bytes]) -> None:
        """Serve until the supervisor has had enough."""
        loop = asyncio.get_running_loop()

        def listen() -> None:
            for line in orders:
                with contextlib.suppress(RuntimeError):  # the loop has come to its end
                    loop.call_soon_threadsafe(self._obey, read_order(line))
            os._exit(1)  # the supervisor was killed; what it ran for us is gone as well

        # A thread, so that the end of the supervisor is noticed whatever the loop is busy with.
        threading.Thread(target=listen, name="orders", daemon=True).start()
        server = Server(self._config, open_by_name=self._open)
        server.stopping = self._stopping
        # A service manager may tell all processes of a service to stop. That, and the order to stop which
        # then comes, are not to be taken for impatience.
        loop.add_signal_handler(signal.SIGTERM, self._stopping.asked.set)
        log_meaningless()
        await server.run(self._tell_readiness)

    def report(self, report: Report) -> None:
        os.write(self._reports, encode(report))

    def _open(self, name: str) -> Engine:
        borrowed = self._borrowed.get(name)
        return open_engine(name) if borrowed is None else borrow_engine(name, borrowed)

    def _tell_readiness(self, server: Server) -> None:
        self.report(server.describe())

    def _suspect(self, name: str, url: str) -> None:
        self.report(Suspicion(name, url))

    def _obey(self, order: Order) -> None:
        if isinstance(order, Move):
            self._borrowed[order.engine].move(order.url)
            return
        self._stopping.asked.set()
        if isinstance(order, Hurry):
            self._stopping.hurried.set()


def _lines(descriptor: int) -> Iterator[bytes]:
    """What is read, line by line. Not by way of ``sys.stdin``: with a thread that waits in there, the
    interpreter cannot end."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


if __name__ == "__main__":
    sys.exit(main())
