"""What a chat prints: answers on standard output, everything else on standard error.

A pipe or a file on standard output receives the text of the answers and nothing else. A terminal shows
answers as rendered Markdown, and wraps all text between words.
"""

from collections.abc import Mapping
from typing import Literal, Protocol, TextIO

from slipring.commands.chat.region import Region

_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Terminals execute these characters; the text of a model must not control the terminal."""

_Kind = Literal["answer", "reasoning", "note", "error"]


class _Writer(Protocol):
    def append(self, text: str) -> None: ...
    def refresh(self) -> None: ...
    def end(self) -> None: ...


class _PlainWriter:
    """Writes text unchanged, as soon as it is appended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_line_open = False

    def append(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
        self._is_line_open = not text.endswith("\n")

    def refresh(self) -> None:
        pass

    def end(self) -> None:
        if self._is_line_open:
            self._stream.write("\n")
            self._stream.flush()


class Screen:
    """Writes to two streams in turn. On a terminal they share a cursor, so at most one has an open line."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        self._out = out
        self._err = err
        self._has_style = not environ.get("NO_COLOR")
        self._can_redraw = environ.get("TERM", "") not in ("", "dumb")
        self._kind: _Kind | None = None
        self._writer: _Writer | None = None

    def answer(self, text: str) -> None:
        """Append text to the answer."""
        self._append("answer", text)

    def reasoning(self, text: str) -> None:
        """Append text to the model's reasoning."""
        self._append("reasoning", text)

    def note(self, text: str) -> None:
        """Print a line of information."""
        self._print_line("note", text)

    def error(self, text: str) -> None:
        """Print a line that reports an error."""
        self._print_line("error", f"error: {text}")

    def refresh(self) -> None:
        """Show everything that was appended."""
        if self._writer is not None:
            self._writer.refresh()

    def finish_line(self) -> None:
        """End the open line, if there is one."""
        if self._writer is not None:
            writer, self._writer, self._kind = self._writer, None, None
            writer.end()

    def _print_line(self, kind: _Kind, text: str) -> None:
        self.finish_line()
        self._append(kind, " ".join(text.split()))
        self.finish_line()

    def _append(self, kind: _Kind, text: str) -> None:
        if not text:
            return
        stream = self._out if kind == "answer" else self._err
        if self._writer is None or self._kind != kind:
            self.finish_line()
            self._kind, self._writer = kind, self._open(kind, stream)
        self._writer.append(text.translate(_CONTROLS) if stream.isatty() else text)

    def _open(self, kind: _Kind, stream: TextIO) -> _Writer:
        if not (stream.isatty() and self._can_redraw):
            return _PlainWriter(stream)
        # Imported here because it takes 0.1 s, and only terminals need it.
        from slipring.commands.chat.formats import MarkdownFormat, TextFormat, terminal_console

        console = terminal_console(has_style=self._has_style)
        if kind == "answer":
            return Region(stream, MarkdownFormat(console))
        return Region(stream, TextFormat(console, "" if kind == "error" else "dim"))
