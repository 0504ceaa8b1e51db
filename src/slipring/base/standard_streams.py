"""Standard input, output and error of a command: what it prints may go to a full disk, to a pipe that nothing
reads, to a terminal that knows ASCII only, or nowhere. And plain tables, for people and for ``cut``."""

import codecs
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

_PLAIN = "slipring-plain"
_ASCII = {
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": "|",
    "•": "*",
    "×": "x",
    "≈": "~",
    "±": "+-",
    "→": "->",
    "←": "<-",
    "↑": "^",
    "↓": "v",
    "✓": "ok",
    "✗": "x",
    "█": "#",
    "░": ".",
    "│": "|",
    "─": "-",
    "›": ">",
    "’": "'",
    "“": '"',
    "”": '"',
    "µ": "u",
    "\u00a0": " ",
}
"""How characters that this package prints are written where they cannot be encoded."""


class OutputFailed(OSError):
    """Standard output cannot be written, though something should read it."""

    def __str__(self) -> str:
        return f"cannot write to standard output: {self.strerror}"


def prepare() -> None:
    """Make the standard streams of this process usable, whatever they are. To be called before anything is
    opened: it would get the number of a stream that is closed."""
    codecs.register_error(_PLAIN, _written_plainly)
    # A closed output fails as it would without this; messages are lost.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        if not _is_open(number):
            os.dup2(os.open(os.devnull, flags), number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - it is open as long as the process
    sys.stdout = _stream(_Output(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _stream(_Messages(2, "wb", closefd=False), sys.stderr)


def discard_output() -> None:
    """Write to nowhere from now on. Otherwise Python would fail once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_encoded(document: bytes) -> None:
    """Print a line of UTF-8, which a program will read, whatever the encoding of the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.buffer.flush()


class _Output(io.FileIO):
    """A file descriptor whose failures have a type of their own, unlike those of other files."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(error.errno, error.strerror) from None


class _Messages(io.FileIO):
    """A file descriptor for messages. One that cannot be written does not end what it tells of."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _stream(raw: io.FileIO, former: TextIO | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=former.encoding if former is not None else "utf-8",
        errors=_PLAIN,
        line_buffering=raw.isatty() or isinstance(raw, _Messages),
        write_through=isinstance(former, io.TextIOWrapper) and former.write_through,
    )


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _written_plainly(error: UnicodeError) -> tuple[str, int]:
    """Handle what cannot be encoded: as ASCII that means the same, else as question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost: Sequence[str] = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in lost), error.end


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as lines, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
