"""Windows: cuts a text that is still being written into the pieces that checks inspect.

A window ends at the end of a line, a sentence or a word, and begins with the last characters of the window
before it, so that what spans a cut is seen whole. Every character is in one window, or in two: the cost of
inspecting a text is linear in its length.
"""

import re

from msgspec import Struct

LENGTH = 200
"""Characters that are new in a window, at least, unless it is the last of its text."""
LONGEST = 2 * LENGTH
"""With more new characters than this, a text is cut even where no sentence ends."""
OVERLAP = 50

_END = re.compile(r"\n|[.!?…][\"')\]*_’”»]*\s|[。！？]")
"""The end of a line or of a sentence."""
_SPACE = re.compile(r"\s")


class Window(Struct, frozen=True):
    """A part of a text, to inspect."""

    text: str
    """What is carried over from the window before, then what is new."""
    settled: int
    """How many characters of the text, from its start, are in no later window."""


class Windows:
    """One text that grows, and the windows cut from it."""

    __slots__ = ("_carried", "_ends", "_overlap", "_pieces", "is_due", "pending")

    def __init__(self, overlap: int = OVERLAP) -> None:
        self._overlap = overlap
        self._carried = ""
        self._pieces: list[str] = []
        self._ends = 0  # position of the last cut
        self.pending = 0
        """Characters that no window has included yet."""
        self.is_due = False
        """Whether there is a window to cut although the text is not finished."""

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self.pending += len(text)
        if self.pending >= LENGTH and not self.is_due:
            self.is_due = self.pending >= LONGEST or self._may_end()

    def cut(self, *, is_last: bool = False) -> Window | None:
        """The next window: all new text up to the last place where it may be cut; None if that is too short.

        ``is_last``: the text is finished, and all that is left of it is one window; None if nothing is.
        """
        if not (self.pending if is_last else self.is_due):
            return None
        new = "".join(self._pieces)
        end = len(new) if is_last else _place_to_cut(new)
        rest = new[end:]
        self._pieces, self.pending = [rest], len(rest)
        self.is_due = self.pending >= LONGEST
        self._ends += end
        text = self._carried + new[:end]
        self._carried = text[-self._overlap :] if self._overlap else ""
        settled = self._ends if is_last else self._ends - len(self._carried)
        return Window(text, settled)

    def _may_end(self) -> bool:
        """Whether the last piece contains the end of a sentence behind the shortest length of a window."""
        # The mark and the space behind it may be in two pieces.
        tail = "".join(self._pieces[-2:])
        first = max(0, len(tail) - (self.pending - LENGTH) - 1)
        return any(match.end() > first for match in _END.finditer(tail))


def _place_to_cut(text: str) -> int:
    """Where to cut: behind the last sentence; else behind the last word; else at the end."""
    for pattern in (_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text, LENGTH - 1)]
        if ends:
            return ends[-1]
    return len(text)
