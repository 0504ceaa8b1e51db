"""The terminal of a chat: answers (Markdown or plain text) on standard output, everything else on standard
error, and the lines that are typed.

On a terminal, an answer is drawn again while it grows, and what is typed meanwhile does not appear in it.
"""

import contextlib
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, TextIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment, SegmentLines
from rich.text import Text

_PROMPT = "> "
_LOCAL_MODES = 3  # index in the list that tcgetattr returns
_UNDECIDED = re.compile(r"(?:^|\n)[ \t]*(?:[-=*_#`~>|+]+|\d+[.)]?)[ \t]*$")
"""An unfinished last line that holds nothing but marks: the next characters decide what they mean."""
_FALLBACK_SIZE = os.terminal_size((80, 24))
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Terminals execute these characters; the text of a model must not control the terminal."""
_Kind = Literal["answer", "reasoning", "note", "error"]


# --- The screen ------------------------------------------------------------------------------------


class Screen:
    """Writes to two streams in turn. On a terminal they share a cursor, so at most one has an open line."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        self._out = out
        self._err = err
        self._has_style = not environ.get("NO_COLOR")
        self._can_redraw = environ.get("TERM", "") not in ("", "dumb")
        self._kind: _Kind | None = None
        self._writer: Region | _PlainWriter | None = None

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

    def _open(self, kind: _Kind, stream: TextIO) -> "Region | _PlainWriter":
        if not (stream.isatty() and self._can_redraw):
            return _PlainWriter(stream)
        console = terminal_console(has_style=self._has_style)
        if kind == "answer":
            return Region(stream, MarkdownFormat(console))
        return Region(stream, TextFormat(console, "" if kind == "error" else "dim"))


class Region:
    """Growing text at the bottom of a terminal. The cursor stays at the end of its last line."""

    def __init__(self, stream: TextIO, format: "Format") -> None:
        self._stream = stream
        self._format = format
        self._width, self._height = _terminal_size(stream)
        self._text = ""
        self._drawn: list[str] = []
        """Lines on the terminal that may still change."""

    def append(self, text: str) -> None:
        """Add text. It becomes visible with the next ``refresh``."""
        self._text += text

    def refresh(self) -> None:
        """Draw the text as far as its meaning is known."""
        final = self._format.split(self._text)
        done = self._lines(self._text[:final], is_final=True) if final else []
        rest = self._lines(self._text[final:], is_final=False)
        if not (done and rest):
            self._draw(done or rest)
            return
        gap = [""] if self._format.gap else []
        self._draw([*done, *gap, *rest])
        self._drawn = rest
        self._text = self._text[final:]

    def end(self) -> None:
        """Draw all of the text and move to a new line."""
        self.refresh()
        self._draw(self._lines(self._text, is_final=True))
        self._stream.write("\n")
        self._stream.flush()

    def _lines(self, text: str, *, is_final: bool) -> list[str]:
        return self._format.lines(text, self._width, is_final=is_final)

    def _draw(self, lines: list[str]) -> None:
        """Replace the lines that may still change."""
        drawn, self._drawn = self._drawn or [""], lines
        first = next(
            (n for n, (old, new) in enumerate(zip(drawn, lines, strict=False)) if old != new),
            min(len(drawn), len(lines)),
        )
        first = max(first, len(drawn) - self._height)  # a line that has left the screen cannot be changed
        last = len(drawn) - 1
        rest = "\n".join(lines[first:])
        if first == len(lines):
            first = max(first - 1, 0)  # no new line, maybe fewer: leave the cursor at the end of the last one
            output = f"{_up(last - first)}\r\x1b[J{''.join(lines[first:])}" if last > first else ""
        elif first > last:
            output = f"\n{rest}"
        elif first == last and rest.startswith(drawn[last]):
            output = rest[len(drawn[last]) :]
        else:
            output = f"{_up(last - first)}\r\x1b[J{rest}"
        self._stream.write(output)
        self._stream.flush()


def _up(count: int) -> str:
    return f"\x1b[{count}A" if count > 0 else ""


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines of the terminal behind a stream."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = _FALLBACK_SIZE
    return size.columns or _FALLBACK_SIZE.columns, size.lines or _FALLBACK_SIZE.lines


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


# --- Formats of text -------------------------------------------------------------------------------


class Format(ABC):
    """Renders text that may still grow to lines that are at most ``width`` columns wide."""

    gap = False
    """Whether an empty line separates a finished part from the next one."""

    @abstractmethod
    def split(self, text: str) -> int:
        """Return the index before which ``text`` is final, whatever is appended: it is rendered only once."""

    @abstractmethod
    def lines(self, text: str, width: int, *, is_final: bool) -> list[str]:
        """Render; without ``is_final``, a last line whose meaning is still open may be left out."""


class MarkdownFormat(Format):
    """Renders CommonMark with tables. HTML is shown as text, and line breaks are kept."""

    gap = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])

    def split(self, text: str) -> int:
        starts = [block[0].map[0] for block in self._blocks(text) if block[0].map is not None]
        return sum(map(len, text.splitlines(keepends=True)[: starts[-1]])) if starts else 0

    def lines(self, text: str, width: int, *, is_final: bool) -> list[str]:
        if not is_final:
            text = _UNDECIDED.sub("", text)
        lines: list[str] = []
        for block in self._blocks(text):
            markdown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
            markdown.parsed = block
            rendered = "\n".join(_rendered(self._console, markdown, width)).strip("\n")
            lines += [*([""] if lines else []), *rendered.split("\n")]
        return lines

    def _blocks(self, text: str) -> list[list[Token]]:
        """Return the tokens of each top-level block: a paragraph, a list, a code block."""
        blocks: list[list[Token]] = [[]]
        for token in self._parser.parse(text):
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"  # models break lines where they mean it
            blocks[-1].append(token)
            if token.level == 0 and token.nesting <= 0:
                blocks.append([])
        return blocks[:-1]


class TextFormat(Format):
    """Wraps plain text between words, in one style."""

    def __init__(self, console: Console, style: str) -> None:
        self._console = console
        self._style = style

    def split(self, text: str) -> int:
        return text.rfind("\n") + 1

    def lines(self, text: str, width: int, *, is_final: bool) -> list[str]:
        text = text.removesuffix("\n")
        return _rendered(self._console, Text(text, self._style), width) if text else []


def terminal_console(*, has_style: bool) -> Console:
    """Return a console that renders for a terminal; with ``has_style`` false, without colours and bold."""
    return Console(
        file=io.StringIO(),  # never written: ``_rendered`` captures all output
        force_terminal=True,
        color_system="standard" if has_style else None,
        highlight=False,
        legacy_windows=False,
    )


def _rendered(console: Console, content: RenderableType, width: int) -> list[str]:
    """Return the lines of ``content``, without spaces at their ends."""
    options = console.options.update(width=width)
    lines = [_stripped(line) for line in console.render_lines(content, options, pad=False)]
    with console.capture() as capture:
        console.print(SegmentLines(lines, new_lines=True), end="")
    return capture.get().splitlines()


def _stripped(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept:
        text = kept[-1].text.rstrip()
        if text:
            kept[-1] = Segment(text, kept[-1].style)
            break
        kept.pop()
    return kept


# --- The keyboard ----------------------------------------------------------------------------------


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
