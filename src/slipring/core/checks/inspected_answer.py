"""What the checks of one mode have inspected of an answer, and what they inspect next.

An answer consists of stretches: a text, a stretch of reasoning, a call. A text is inspected in windows while
it grows, a call when it is complete. What is JSON is inspected as its reader gets it. One inspection runs at
a time; what the model writes meanwhile makes up the next one.
"""

from collections import deque

from msgspec import Struct

from slipring.core.checks.json_text import GrowingJson, as_read
from slipring.core.checks.policies import KINDS_OF, Mode, Policy
from slipring.core.checks.verdicts import Kind, Subject
from slipring.core.checks.windows import OVERLAP, Window, Windows


class Beginning(Struct, frozen=True):
    """How a stretch of an answer begins."""

    kind: Kind
    start: int
    """Its position in the answer."""
    is_json: bool = False
    """Whether its reader takes it as JSON."""
    name: str | None = None
    """Of the tool that is called."""
    title: str = ""
    """What is inspected of a call besides its text."""


class _Stretch:
    """A part of an answer. Positions count from the start of the answer, as it was written."""

    __slots__ = ("_json", "_start", "begun", "end", "is_closed", "is_covered", "kind", "settled", "windows")

    def __init__(self, begun: Beginning, overlap: int) -> None:
        self.begun = begun
        self.kind = begun.kind
        self._start = self.end = begun.start
        self._json = GrowingJson() if begun.is_json and begun.kind != "call" else None
        """Reads what is inspected before it is complete."""
        self.windows = Windows(overlap)
        self.settled = begun.start
        """What lies before has passed, and is in no window that is still to be inspected."""
        self.is_closed = False
        self.is_covered = False
        """Whether all of it was given to an inspection, and there will not be more."""

    def grow(self, text: str, end: int) -> None:
        self.end = end
        self.windows.add(text if self._json is None else self._json.add(text))

    @property
    def is_settled(self) -> bool:
        return self.is_covered and self.settled == self.end

    @property
    def is_due(self) -> bool:
        """Whether ``cut`` would find something."""
        if self.is_closed:
            return not self.is_covered
        return self.kind != "call" and self.windows.is_due

    def close(self) -> None:
        if self._json is not None:
            self.windows.add(self._json.close())
        self.is_closed = True
        self.is_covered = self.kind != "call" and not self.windows.pending

    def cut(self) -> Window | None:
        """What to inspect next, if there is enough of it."""
        if not self.is_due:
            return None
        window = self.windows.cut(is_last=self.is_closed)
        self.is_covered = self.is_closed
        # The name of a call is inspected even if it has no arguments.
        return Window("", 0) if window is None and self.is_closed else window

    def inspected(self, window: Window) -> str:
        if self.kind != "call":
            return window.text
        text = as_read(window.text) if self.begun.is_json else window.text
        return "\n".join(filter(None, (self.begun.title, text)))

    def settled_by(self, window: Window) -> int:
        """The position up to which the stretch is settled once this window has passed."""
        if self.is_covered:
            return self.end
        settled = window.settled if self._json is None else self._json.written_before(window.settled)
        return self._start + settled


class _OpenWindow(Struct, frozen=True):
    """A window in flight."""

    stretch: _Stretch
    window: Window


class InspectedAnswer:
    """The inspections of one answer by the checks of one mode."""

    __slots__ = ("_asked", "_kinds", "_open", "_overlap", "_stretches", "has_due", "mode")

    def __init__(self, policy: Policy, mode: Mode) -> None:
        self.mode = mode
        checks = {
            kind: [each for each in policy.on(kind) if each.mode == mode] for kind in KINDS_OF["output"]
        }
        self._kinds = frozenset(kind for kind, of_kind in checks.items() if of_kind)
        longest = (check.longest_match for of_kind in checks.values() for check in of_kind)
        self._overlap = max([OVERLAP, *longest])
        self._stretches: deque[_Stretch] = deque()
        """Those that are not settled, in order."""
        self._open: _Stretch | None = None
        self._asked: list[_OpenWindow] = []
        self.has_due = False
        """Whether ``ask`` would find something."""

    @property
    def is_used(self) -> bool:
        """Whether a check has this mode."""
        return bool(self._kinds)

    @property
    def frontier(self) -> int | None:
        """Everything before this position has passed; None: everything has."""
        return self._stretches[0].settled if self._stretches else None

    @property
    def pending(self) -> int:
        """Characters that were given to no inspection."""
        return sum([stretch.windows.pending for stretch in self._stretches])

    def begin(self, begun: Beginning) -> None:
        if begun.kind in self._kinds:
            self._open = _Stretch(begun, self._overlap)
            self._stretches.append(self._open)

    def grow(self, text: str, end: int) -> None:
        """The open stretch has grown up to this position."""
        # Hot path: runs once per token of an answer that is inspected.
        stretch = self._open
        if stretch is not None:
            stretch.grow(text, end)
            if stretch.windows.is_due and not self.has_due:
                self._look()

    def close(self) -> None:
        """The open stretch has ended."""
        stretch, self._open = self._open, None
        if stretch is None:
            return
        stretch.close()
        if stretch.is_covered and not any(each.stretch is stretch for each in self._asked):
            stretch.settled = stretch.end
        self._drop_settled()
        self._look()

    def ask(self, context: tuple[str, ...]) -> list[Subject]:
        """What to inspect now, if ``has_due`` says that there is something. ``context``: earlier texts."""
        self.has_due = False
        subjects = []
        for stretch in self._stretches:
            if (window := stretch.cut()) is not None:
                self._asked.append(_OpenWindow(stretch, window))
                role, name = "assistant" if stretch.kind == "answer" else None, stretch.begun.name
                text = stretch.inspected(window)
                subjects.append(Subject("output", stretch.kind, text, role, name, context))
        return subjects

    def answered(self, passed: int) -> None:
        """The inspection in flight has ended, and the first ``passed`` of its subjects have passed."""
        asked, self._asked = self._asked, []
        for each in asked[:passed]:
            each.stretch.settled = each.stretch.settled_by(each.window)
        self._drop_settled()
        self._look()

    def _look(self) -> None:
        """Find out whether there is something to inspect."""
        self.has_due = not self._asked and any(stretch.is_due for stretch in self._stretches)

    def _drop_settled(self) -> None:
        while self._stretches and self._stretches[0].is_settled:
            self._stretches.popleft()
