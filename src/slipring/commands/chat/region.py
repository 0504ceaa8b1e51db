"""The part of a terminal in which text grows: writes what is new and redraws the lines that changed."""

import os
from typing import Protocol, TextIO

_FALLBACK_SIZE = os.terminal_size((80, 24))


class Format(Protocol):
    """Renders text that may still grow to lines that are at most ``width`` columns wide."""

    gap: bool
    """Whether an empty line separates a finished part from the next one."""

    def split(self, text: str) -> int:
        """Return the index before which ``text`` is final, whatever is appended: it is rendered only once."""
        ...

    def lines(self, text: str, width: int, *, is_final: bool) -> list[str]:
        """Render; without ``is_final``, a last line whose meaning is still open may be left out."""
        ...


class Region:
    """Growing text at the bottom of a terminal. The cursor stays at the end of its last line."""

    def __init__(self, stream: TextIO, format: Format) -> None:
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
