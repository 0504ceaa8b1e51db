"""What a chat shows, and where: answers on standard output, everything else on standard error.

So a pipe or a file gets the answers and nothing but the answers. On a terminal both streams share a cursor:
the screen knows whose line is unfinished.
"""

from collections.abc import Mapping
from typing import TextIO

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""A terminal obeys these characters, and a model must not command the terminal."""


class Screen:
    """Two streams that are written to in turn."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        self._out = out
        self._err = err
        self._dims = err.isatty() and not environ.get("NO_COLOR")
        self._unfinished: TextIO | None = None

    def answer(self, text: str) -> None:
        """A piece of an answer."""
        self._write(self._out, text)

    def thought(self, text: str) -> None:
        """A piece of reasoning."""
        self._write(self._err, text, dim=True)

    def note(self, text: str) -> None:
        """A line about the chat."""
        self._line(text, dim=True)

    def error(self, text: str) -> None:
        """A line about what went wrong."""
        self._line(f"error: {text}")

    def finish_line(self) -> None:
        """End the line that is unfinished, if any."""
        if self._unfinished is not None:
            self._unfinished.write("\n")
            self._unfinished.flush()
            self._unfinished = None

    def _line(self, text: str, *, dim: bool = False) -> None:
        self.finish_line()
        self._write(self._err, " ".join(text.split()), dim=dim)
        self.finish_line()

    def _write(self, stream: TextIO, text: str, *, dim: bool = False) -> None:
        if not text:
            return
        if self._unfinished is not stream:
            self.finish_line()
        ends_line = text.endswith("\n")
        if stream.isatty():
            text = text.translate(_CONTROLS)
        stream.write(f"{_DIM}{text}{_PLAIN}" if dim and self._dims else text)
        stream.flush()
        self._unfinished = None if ends_line else stream
