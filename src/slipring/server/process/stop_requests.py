"""Requests to stop a serving process, by signal or from its supervisor.

SIGTERM and SIGINT start a graceful stop; the second of them makes it immediate. SIGHUP starts a graceful stop
too, but never makes it immediate, and is ignored if it was ignored when the process started, as by nohup.
SIGUSR1 and SIGUSR2 are logged and otherwise ignored.
"""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from slipring.base.periodic_tasks import cancel_and_wait

log = logging.getLogger("slipring")

IGNORED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
DUPLICATE_S = 0.1
"""uvloop reports a signal twice if another one arrives with it: a repetition within this time is dropped."""


def ignore(*numbers: signal.Signals) -> None:
    """Ignore signals, also before there is an event loop that could log them."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def block_stop_signals() -> None:
    """Block SIGINT and SIGTERM until the process has exited. A further Ctrl-C would print a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def log_ignored_signals() -> None:
    """Log each of ``IGNORED_SIGNALS`` that arrives."""
    loop = asyncio.get_running_loop()
    for number in IGNORED_SIGNALS:
        loop.add_signal_handler(number, log.warning, "%s is ignored", number.name)


class StopRequest:
    """Whether the process was asked to stop, and whether at once."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.immediate = asyncio.Event()
        """Do not wait for running responses."""
        self._signalled_at: float | None = None
        self.hint = "send SIGTERM twice"
        """What the operator can do to make the stop immediate."""

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Handle SIGTERM or SIGINT: stop; on the second signal, at once."""
        clock = asyncio.get_running_loop().time()
        if self._signalled_at is None:
            self._signalled_at = clock
            self.hint = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
        elif clock - self._signalled_at >= DUPLICATE_S:
            self.immediate.set()
        self.requested.set()

    def hang_up(self) -> None:
        """Handle SIGHUP, which may arrive several times when a terminal closes: stop, but never at once."""
        log.warning("SIGHUP: stopping")
        self.requested.set()

    def install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signal, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.hang_up)
        log_ignored_signals()


async def run_until(
    event: asyncio.Event, work: Coroutine[Any, Any, Any], *, timeout_s: float | None = None
) -> bool:
    """Run ``work`` until it ends, ``event`` is set, or the timeout passes. Returns whether it ended.

    Work that has not ended is cancelled. Raises what ``work`` raises.
    """
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait([working, waiting], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_ended = working.done()
        await cancel_and_wait([working, waiting])
    if has_ended:
        await working
    return has_ended
