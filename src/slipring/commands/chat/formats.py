"""Formats that turn the text of an answer into lines for a terminal: Markdown, and plain wrapped text.

Each class implements ``region.Format``.
"""

import io
import re

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment, SegmentLines
from rich.text import Text

_UNDECIDED = re.compile(r"(?:^|\n)[ \t]*(?:[-=*_#`~>|+]+|\d+[.)]?)[ \t]*$")
"""An unfinished last line that holds nothing but marks: the next characters decide what they mean."""


class MarkdownFormat:
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


class TextFormat:
    """Wraps plain text between words, in one style."""

    gap = False

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
