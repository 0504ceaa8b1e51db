"""How a process that serves is told to stop, and, when it is told again, to wait for nobody.

SIGTERM and SIGINT stop it, and the second of them hurries it. SIGHUP stops it too, but never hurries it, and
is ignored where the process was started so, as by nohup. SIGUSR1 and SIGUSR2 are logged and change nothing.
"""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("slipring")

MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2)
_ONE_SIGNAL_S = 0.1
"""uvloop reports a signal twice when it comes together with another one: what comes so soon is the same."""


def ignore(*numbers: signal.Signals) -> None:
    """Ignore signals from now on, also before there is a loop that could log them."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def log_meaningless() -> None:
    """Ignore the signals that mean nothing here, and log each."""
    loop = asyncio.get_running_loop()
    for number in MEANINGLESS:
        loop.add_signal_handler(number, log.warning, "%s is ignored", number.name)


class Stopping:
    """What the process has been told so far."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._told_at: float | None = None

    def ask(self) -> None:
        """Stop; when asked again, wait for nobody."""
        clock = asyncio.get_running_loop().time()
        if self._told_at is None:
            self._told_at = clock
        elif clock - self._told_at >= _ONE_SIGNAL_S:
            self.hurried.set()
        self.asked.set()

    def hang_up(self) -> None:
        """Stop: the terminal is gone. That may be told several times, and hurries nobody."""
        log.warning("SIGHUP: stopping")
        self.asked.set()

    def heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.hang_up)
        log_meaningless()

    async def unless_asked(self, start: Coroutine[Any, Any, None]) -> bool:
        """Run a start, which may take minutes; whether it came to its end before the process was told."""
        starting, told = asyncio.create_task(start), asyncio.create_task(self.asked.wait())
        await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return False
        await starting
        return True
