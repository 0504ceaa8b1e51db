"""Reports when ``q`` is pressed on a terminal."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TextIO

_MOST_BYTES = 1024


@contextlib.contextmanager
def quit_key(source: TextIO, pressed: Callable[[], None]) -> Iterator[None]:
    """Call ``pressed`` for each ``q``. Leaving the context restores the terminal's modes.

    Does nothing if ``source`` is not a terminal.
    """
    if not source.isatty():
        yield
        return
    import termios  # not available on every platform
    import tty

    descriptor = source.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        keys = os.read(descriptor, _MOST_BYTES)
        if not keys:
            loop.remove_reader(descriptor)
        if b"q" in keys:
            pressed()

    modes = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
