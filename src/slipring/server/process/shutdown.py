"""The shutdown of a process: what asks for it, how long it lets running responses finish, and what clients
and the operator are told meanwhile.

SIGTERM and SIGINT start a graceful stop; the second of them makes it immediate. SIGHUP starts a graceful stop
too, but never makes it immediate, and is ignored if it was ignored when the process started, as by nohup.
SIGUSR1 and SIGUSR2 are logged and otherwise ignored. A worker is asked by its supervisor instead.

While a server drains, nothing new is accepted, and running responses finish within the deadline.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from slipring.base.errors import ApiError, Unavailable
from slipring.base.periodic_tasks import cancel_and_wait

log = logging.getLogger("slipring")

IGNORED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
DUPLICATE_S = 0.1
"""uvloop reports a signal twice if another one arrives with it: a repetition within this time is dropped."""
_TICKS_S = 2.0
"""The deadline is enforced by the tick of the server: so much later, nothing is waited for any more."""


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


def shutting_down() -> ApiError:
    """The error that clients get when the server stops."""
    return Unavailable("The server is shutting down. Connect again.", code="server_shutting_down")


class DrainedClient(Protocol):
    """A client that may have running responses when the server stops."""

    @property
    def in_flight(self) -> int:
        """Responses that are running for it."""

    def wind_down(self, error: ApiError, grace_s: float) -> None:
        """Finish running responses within ``grace_s``, refuse new ones with ``error``."""


async def drain(
    clients: Collection[DrainedClient],
    idle: Callable[[], Coroutine[Any, Any, None]],
    grace_s: float,
    stop: StopRequest,
    on_drain: Callable[[int], None] | None = None,
) -> None:
    """Let the running responses of clients finish, until their deadline or a request to stop at once. Calls
    ``on_drain`` with the number of responses that it waits for. ``idle``: waits until nothing is left
    to do."""
    refusal = shutting_down()
    for client in list(clients):
        client.wind_down(refusal, grace_s)
    if on_drain is not None:
        on_drain(sum(client.in_flight for client in clients))
    await run_until(stop.immediate, idle(), timeout_s=grace_s + _TICKS_S)


def print_wait(stop: StopRequest, responses: int, timeout_s: float) -> None:
    """Print to standard error, at any log level, why the process does not stop yet."""
    if not responses or not timeout_s or stop.immediate.is_set():
        return
    noun = "response" if responses == 1 else "responses"
    start = "\r" if sys.stderr.isatty() else ""  # over the terminal's echo of Ctrl-C
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(
            f"{start}slipring: waiting for {responses} running {noun}, up to {timeout_s:g} s;"
            f" {stop.hint} to stop at once",
            file=sys.stderr,
            flush=True,
        )


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
