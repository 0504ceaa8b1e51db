"""The text of a call that is being read, held back until the call is complete.

A reader of calls is a generator: it reads from a ``HeldText`` as if all text were there, and the methods of
``HeldText`` yield wherever more text is needed. The parser resumes the generator when text has arrived. So
the result never depends on how the text was cut.

Every method takes text only once it knows what the text is. If a reader raises ``BrokenCall``, what it has
taken becomes text, and the rest is read again.
"""

from collections.abc import Callable, Generator
from typing import Final, TypeVar

from slipring.core.generation import Delta
from slipring.prompts.parsing.calls.json_scanner import SPACE, JsonScanner
from slipring.prompts.parsing.markers import MarkerFinder

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""A generator that yields whenever it needs more text, and returns what it has read."""

_MAX_SPACES: Final = 64
"""White space that ``precedes`` looks past."""


class BrokenCall(Exception):
    """The text is not a call to an offered tool."""


class HeldText:
    """Text that a reader takes piece by piece."""

    __slots__ = (
        *("_current", "_stays", "deltas", "is_last", "is_streaming", "may_continue", "pending", "retry_mark"),
        "taken",
    )

    def __init__(self, mark: str, pending: str) -> None:
        self.taken = [mark]
        """All text that was taken, with the mark before it."""
        self.pending = pending
        """Text that was not taken yet."""
        self.is_last = False
        """Whether no text will follow ``pending``."""
        self.is_streaming = False
        """Whether a call has begun, so that its end is all that is held back."""
        self.deltas: list[Delta] = []
        """What a streamed call has emitted."""
        self.may_continue = False
        """Whether another call may follow the one that was read, without a mark before it."""
        self.retry_mark = ""
        """If the call is broken, text that was taken is read again from behind this mark on."""
        self._current: list[str] = []  # the pieces of the part that is being read
        self._stays: Callable[[str], bool] | None = None  # whether a text certainly belongs to that part

    def skip(self, text: str) -> bool:
        """Take ``text`` at once if it certainly continues the current part, as most long arguments do."""
        if self.pending or self._stays is None or not self._stays(text):
            return False
        self.taken.append(text)
        self._current.append(text)
        return True

    def take(self, size: int) -> str:
        """Take so many characters of the pending text."""
        text, self.pending = self.pending[:size], self.pending[size:]
        if text:
            self.taken.append(text)
        return text

    def put_back(self, text: str) -> None:
        """Give back the text that was taken last."""
        self.taken.pop()
        self.pending = text + self.pending

    def until(self, marks: MarkerFinder) -> Reading[tuple[str, str]]:
        """Take all text up to the first of the marks; return it and the mark, which is empty at the end."""
        parts: list[str] = []
        while True:
            before, mark, _ = marks.cut(self.pending, last=self.is_last)
            parts.append(self.take(len(before)))
            if mark or self.is_last:
                self.take(len(mark))
                return "".join(parts), mark
            yield from self._wait(parts, marks.cannot_begin_in)

    def json(self) -> Reading[str]:
        """Take a JSON object, or an array of objects."""
        scanner, parts = JsonScanner(), [""]
        while True:
            parts.append(self.take(scanner.feed(self.pending)))
            if scanner.complete:
                return "".join(parts)
            if self.pending or self.is_last:
                raise BrokenCall
            yield from self._wait(parts, scanner.stays_in_string)

    def _wait(self, parts: list[str], stays: Callable[[str], bool]) -> Reading[None]:
        self._current, self._stays = parts, stays
        yield
        self._stays = None

    def sees(self, marks: MarkerFinder, limit: int) -> Reading[tuple[str, str]]:
        """Return the text up to the first of the marks, and the mark, without taking them. The mark is empty
        if the next ``limit`` characters have none."""
        while True:
            before, mark, _ = marks.cut(self.pending, last=True)
            if mark and len(before) <= limit:
                return before, mark
            if self.is_last or len(self.pending) >= limit + marks.longest:
                return "", ""
            yield

    def spaces(self) -> Reading[None]:
        """Take white space."""
        while True:
            rest = self.pending.lstrip(SPACE)
            self.take(len(self.pending) - len(rest))
            if rest or self.is_last:
                return
            yield

    def next(self) -> Reading[str]:
        """Return the next character without taking it; an empty string at the end."""
        while not self.pending and not self.is_last:
            yield
        return self.pending[:1]

    def accept(self, *marks: str) -> Reading[str]:
        """Take the longest of the marks with which the next text begins, and return it; or take nothing."""
        while not self.is_last and any(
            len(mark) > len(self.pending) and mark.startswith(self.pending) for mark in marks
        ):
            yield
        mark = max((mark for mark in marks if mark and self.pending.startswith(mark)), key=len, default="")
        if mark:
            self.take(len(mark))
        return mark

    def require(self, *marks: str) -> Reading[str]:
        """Take one of the marks, or raise ``BrokenCall``."""
        mark = yield from self.accept(*marks)
        if not mark:
            raise BrokenCall
        return mark

    def precedes(self, *marks: str, end: bool) -> Reading[bool]:
        """Whether white space and one of the marks follow, or, if ``end``, white space and the end of the
        answer. Takes nothing."""
        while True:
            rest = self.pending.lstrip(SPACE)
            if len(self.pending) - len(rest) > _MAX_SPACES:
                return False
            if rest.startswith(marks):
                return True
            if self.is_last:
                return end and not rest
            if rest and not any(mark.startswith(rest) for mark in marks):
                return False
            yield
