"""Draws the screen on a terminal until ``q`` is pressed, and leaves the terminal as it was."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.live import Live

from slipring.commands.top.screen import Screen
from slipring.commands.top.state import State
from slipring.observation.live_messages import Greeting, Message

_INTERVAL_S = 0.25


class Drawing:
    """Shows the state in the terminal's second screen while the context is open."""

    def __init__(self, address: str, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False)
        self._screen = Screen(address)
        self._live = Live(
            self._screen,
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._state: State | None = None
        """What has changed since the last drawing."""
        self._drawn: object = None
        """Size and trouble that are drawn."""

    def __enter__(self) -> "Drawing":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def changed(self, state: State, message: Message) -> None:
        self._screen.trouble = None
        if not isinstance(message, Greeting):  # what was drawn stays until there is something new
            self._state = state

    def interrupted(self, trouble: str) -> None:
        self._screen.trouble = trouble

    async def draw_repeatedly(self) -> None:
        """Draw what has changed, the terminal's size included."""
        while True:
            self.draw()
            await asyncio.sleep(_INTERVAL_S)

    def draw(self) -> None:
        """Draw if something has changed."""
        now = (self._console.size, self._screen.trouble)
        if self._state is None and now == self._drawn:
            return
        if self._state is not None:
            self._screen.view = self._state.view()
        self._state, self._drawn = None, now
        self._live.refresh()


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
