"""Decides when a signal unwinds what a command runs, instead of ending the process at once."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM


@contextmanager
def interruptible(*, by_termination: bool = False) -> Iterator[None]:
    """Within this, Ctrl-C raises ``KeyboardInterrupt`` in what a command runs, if it ends the process
    otherwise: see ``slipring.__main__``. ``by_termination``: SIGTERM raises ``SystemExit``, likewise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Callable[[int, FrameType | None], None]] = {signal.SIGINT: signal.default_int_handler}
    if by_termination:
        handlers[signal.SIGTERM] = _terminate
    deadly = [number for number in handlers if signal.getsignal(number) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
