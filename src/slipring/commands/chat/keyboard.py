"""The keyboard of a chat: reads lines, and keeps what is typed meanwhile from the screen."""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

_PROMPT = "> "
_LOCAL_MODES = 3  # index in the list that tcgetattr returns


class Keyboard:
    """Iterates over typed lines until Ctrl-D or Ctrl-C. Leaving the context restores the terminal's modes."""

    def __init__(self, source: TextIO, out: TextIO, err: TextIO) -> None:
        self._descriptor = source.fileno()
        self._out = out
        self._err = err
        self._modes: list[Any] | None = None

    def __enter__(self) -> "Keyboard":
        with contextlib.suppress(ImportError):  # not available on every platform
            import readline  # noqa: F401, importing it gives ``input`` a history and line editing
        with contextlib.suppress(ImportError):
            import termios

            self._modes = termios.tcgetattr(self._descriptor)
        self._set_echo(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._set_echo(True)

    def __iter__(self) -> Iterator[str]:
        while True:
            if not self._out.isatty():
                print(_PROMPT, end="", file=self._err, flush=True)
            try:
                self._set_echo(True)  # readline echoes only if the terminal did
                line = input(_PROMPT if self._out.isatty() else "")
            except (EOFError, KeyboardInterrupt):
                print(file=self._err)
                return
            finally:
                self._set_echo(False)
            yield line

    def _set_echo(self, is_on: bool) -> None:
        """Restore the original modes, or switch off echo and the terminal's own line buffering.

        Without line buffering, the terminal hands unfinished lines and editing keys to readline, too.
        """
        if self._modes is None:
            return
        import termios

        modes = list(self._modes)
        if not is_on:
            modes[_LOCAL_MODES] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, modes)
