"""Shows on standard error what a long command is doing, in a line that counts the seconds.

Only on a terminal: to a file or a pipe, nothing is written. The line appears after a second, so that a fast
command shows none, and is erased at the end. A thread writes it, because some commands block for long.
"""

import os
import sys
import threading
import time
from typing import Self, TextIO

_DELAY_S = 1.0
_TICK_S = 0.5
_CLEAR = "\r\x1b[K"
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_WIDTH = 80
_BAR_WIDTH = 20


class ProgressLine:
    """The line of a command, from ``__enter__`` to ``end`` or ``__exit__``."""

    def __init__(
        self,
        text: str = "",
        *,
        stream: TextIO | None = None,
        delay_s: float = _DELAY_S,
        tick_s: float = _TICK_S,
    ) -> None:
        """``text``: what the command is doing; nothing is shown while it is empty."""
        self._text = text
        self._stream = sys.stderr if stream is None else stream
        self._delay_s = delay_s
        self._tick_s = tick_s
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_shown = False
        self._begun_at = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slipring-progress", daemon=True)

    def __enter__(self) -> Self:
        self._begun_at = time.monotonic()
        if self._is_terminal:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, text: str, *, restarts: bool = False) -> None:
        """Replace the text. ``restarts``: count the seconds from now."""
        with self._lock:
            self._text = text
            if restarts:
                self._begun_at = time.monotonic()

    def report(self, text: str) -> None:
        """Write a line that stays, about something that went wrong; to a file or a pipe too."""
        with self._lock:
            if self._is_terminal:
                self._write(f"{_CLEAR}{_RED}{_printable(text)}{_PLAIN}\n")
            else:
                self._write(f"{_printable(text)}\n")

    def end(self) -> None:
        """Erase the line, and show nothing more."""
        with self._lock:
            self._ended.set()
            if self._is_shown:
                self._write(_CLEAR)
                self._is_shown = False

    def _run(self) -> None:
        if self._ended.wait(self._delay_s):
            return
        while True:
            with self._lock:
                if self._ended.is_set():
                    return
                if self._text:
                    # The final return makes a log message overwrite this line instead of continuing it.
                    self._write(f"{_CLEAR}{self._line()}\r")
                    self._is_shown = True
            if self._ended.wait(self._tick_s):
                return

    def _line(self) -> str:
        """The text with the seconds, no longer than a line of the terminal: a longer one could not be
        erased."""
        elapsed = f" … {time.monotonic() - self._begun_at:.0f} s"
        return _printable(self._text)[: max(0, self._columns() - 1 - len(elapsed))] + elapsed

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _WIDTH
        except (OSError, ValueError):
            return _WIDTH

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal was closed
            self._is_terminal = False


def bar(done: int, total: int) -> str:
    """A bar with its figures, as in ``━━━━━───── 5/10``."""
    filled = _BAR_WIDTH * done // total if total else 0
    return f"{'━' * filled}{'─' * (_BAR_WIDTH - filled)} {done}/{total}"


def _printable(text: str) -> str:
    """A text of one line: anything that a terminal could interpret is replaced."""
    return "".join(each if each.isprintable() else " " for each in text)
