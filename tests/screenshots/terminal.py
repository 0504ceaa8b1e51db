"""What a terminal shows, as a drawing."""

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from operator import itemgetter

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI, TerminalTheme
from rich.text import Text

PALETTES: dict[str, tuple[str, str, TerminalTheme]] = {
    "light": ("#f5f7f9", "#16191d", DEFAULT_TERMINAL_THEME),
    "dark": ("#111418", "#e8ebef", MONOKAI),
}
"""Paper, ink, and the colours that programs name."""
_CELL, _LINE, _MARGIN = 8.4, 19, 14


class Cells:
    """The screen of a terminal that a program draws on: characters with their styles."""

    _TOKEN = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|\x1b[=>]|[\r\n\b]|[^\x00-\x1f]", re.DOTALL)

    def __init__(self) -> None:
        self._lines: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style = ""

    def write(self, text: str) -> None:
        for token in self._TOKEN.finditer(text):
            if token[2] is not None:
                self._control(token[2], token[1])
            elif token[0] == "\r":
                self._column = 0
            elif token[0] == "\b":
                self._column -= 1
            elif token[0] == "\n":
                self._row += 1
                self._lines += [[] for _ in range(self._row + 1 - len(self._lines))]
            elif token[0] >= " ":
                line = self._lines[self._row]
                line += [(" ", "")] * (self._column + 1 - len(line))
                line[self._column] = (token[0], self._style)
                self._column += 1

    def _control(self, kind: str, arguments: str) -> None:
        if kind == "A":
            self._row -= int(arguments or 1)
        elif kind in "JK":
            del self._lines[self._row][self._column :]
            if kind == "J":
                del self._lines[self._row + 1 :]
        elif kind == "m":
            self._style = "" if arguments in ("", "0") else f"{self._style}\x1b[{arguments}m"

    def lines(self) -> list[Text]:
        return [Text.from_ansi("".join(_ansi(line))) for line in self._lines]


def _ansi(line: list[tuple[str, str]]) -> Iterator[str]:
    for style, cells in groupby(line, key=itemgetter(1)):
        yield f"\x1b[0m{style}{''.join(character for character, _ in cells)}"


def drawing(title: str, lines: list[Text], columns: int, palette: str) -> str:
    """An SVG of lines of a terminal; loads nothing."""
    paper, ink, theme = PALETTES[palette]
    width = round(columns * _CELL + 2 * _MARGIN)
    height = len(lines) * _LINE + 2 * _MARGIN
    console = Console(width=columns, force_terminal=True, color_system="truecolor", highlight=False)
    rows = [
        "".join(_spans(console.render(line, console.options.update(no_wrap=True)), at, theme))
        for at, line in enumerate(lines)
    ]
    size = f'width="{width}" height="{height}"'
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img"'
    return "\n".join(
        (
            f'{head} aria-label="{escape(title)}">',
            f'<rect {size} rx="8" fill="{paper}"/>',
            f'<g {font} fill="{ink}">',
            *rows,
            "</g>",
            "</svg>",
            "",
        )
    )


def _spans(segments: Iterable[Segment], row: int, theme: TerminalTheme) -> list[str]:
    """The words of a row, each at its column: renderers treat spaces in different ways."""
    spans: list[str] = []
    column = 0
    for text, style, _ in segments:
        for word in re.finditer(r"\S+", text):
            x, y = _MARGIN + (column + word.start()) * _CELL, _MARGIN + row * _LINE + 14
            length = f'textLength="{len(word[0]) * _CELL:.1f}"'
            spans.append(f'<text x="{x:.1f}" y="{y}" {length}{_look(style, theme)}>{escape(word[0])}</text>')
        column += len(text.rstrip("\n"))
    return spans


def _look(style: Style | None, theme: TerminalTheme) -> str:
    if style is None:
        return ""
    parts = []
    if style.bold:
        parts.append(' font-weight="bold"')
    if style.italic:
        parts.append(' font-style="italic"')
    if style.dim:
        parts.append(' opacity="0.7"')
    if style.color is not None and not style.color.is_default:
        parts.append(f' fill="{style.color.get_truecolor(theme).hex}"')
    return "".join(parts)
