"""Text of an answer that arrives in pieces: the marks in it, and what is held back until more is known.

A parser (``AnswerParser``) is fed pieces and returns deltas. What could be the beginning of a mark such as
``<tool_call>`` is held back until the next piece (``MarkerFinder``).

A reader of calls is a generator: it reads from a ``HeldText`` as if all text were there, and the methods of
``HeldText`` yield wherever more text is needed. The parser resumes the generator when text has arrived. So
the result never depends on how the text was cut.

Every method takes text only once it knows what the text is. A reader emits calls with ``begin``, ``write``
and ``end``; what it takes in between is held back. If it raises ``BrokenCall``, what is held back becomes
text, and the rest is read again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Final, TypeVar

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.calls.json_scanner import SPACE, JsonScanner
from slipring.protocol.tools.toolset import CallableTool


class MarkerFinder:
    """Finds the first of several markers. Empty markers are ignored."""

    __slots__ = ("_longest", "_markers", "_prefixes", "longest", "starts")

    def __init__(self, *markers: str) -> None:
        self._markers = tuple(marker for marker in markers if marker)
        self._prefixes = frozenset(marker[:end] for marker in self._markers for end in range(1, len(marker)))
        self._longest = max(map(len, self._prefixes), default=0)
        self.starts = frozenset(marker[0] for marker in self._markers)
        """The first characters of the markers."""
        self.longest = self._longest + 1
        """The length of the longest marker."""

    def __bool__(self) -> bool:
        return bool(self._markers)

    def cannot_begin_in(self, text: str) -> bool:
        """Whether ``text`` contains no first character of any marker."""
        return self.starts.isdisjoint(text)

    def cut(self, text: str, *, last: bool) -> tuple[str, str, str]:
        """Return the text before the first marker, the marker, and the rest.

        Without a marker, the rest is the tail that could become one, or empty if this is the ``last`` piece.
        The first marker is the one that ends first, so that the choice never depends on later text.
        """
        found = [(text.find(each) + len(each), -len(each)) for each in self._markers if each in text]
        if found:
            end, size = min(found)
            return text[: end + size], text[end + size : end], text[end:]
        end = len(text) - (0 if last else self._tail(text))
        return text[:end], "", text[end:]

    def _tail(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a marker."""
        if self.starts.isdisjoint(text[-self._longest :]):
            return 0  # the usual case
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._prefixes:
                return size
        return 0


marker_finder = lru_cache(maxsize=64)(MarkerFinder)
"""A cached ``MarkerFinder``: all answers of a model search for the same few markers."""

PIECE: Final = 4096
"""Longer pieces are cut, so that the text searched after each marker stays short."""


class AnswerParser(ABC):
    """Parses one answer. Call ``feed`` with each piece of text, then ``finish``; both return deltas."""

    def __init__(self) -> None:
        self._pending = ""  # unread text
        self._final = self._cut_off = False
        self._deltas: list[Delta] = []

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""

    @property
    @abstractmethod
    def is_holding(self) -> bool:
        """Whether a call is held back until it is complete."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether the text so far ends outside of thoughts, calls and headers, and not with a possible
        marker."""

    def feed(self, text: str) -> list[Delta]:
        """Parse the next piece of text."""
        for at in range(0, len(text), PIECE):
            self._pending += text[at : at + PIECE]
            while self._step():
                pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, *, cut_off: bool = False) -> list[Delta]:
        """End the answer: emit what is held back, as text if it is not a complete call. ``cut_off``: a limit
        has ended it, not the model, so that a call whose closing marks are missing is not complete."""
        self._final, self._cut_off = True, cut_off
        self._run()
        self._end()
        return self._take_deltas()

    def _run(self) -> None:
        while self._step():
            pass

    @abstractmethod
    def _step(self) -> bool:
        """Read the pending text; return whether the state changed, so that there may be more to read."""

    def _end(self) -> None:  # noqa: B027 - not all parsers hold something back
        """The last text has been read."""

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas


class MessageParser(AnswerParser):
    """Parses one answer that consists of messages: two messages of text, or of thought, in a row are
    separated by an empty line."""

    def __init__(self) -> None:
        super().__init__()
        self._last_kind: type[Delta] | None = None  # of the last message that was not empty
        self._is_empty = True  # nothing of the current message was emitted

    def _add(self, deltas: list[Delta]) -> None:
        """Add deltas; before the first of a message that follows one of its kind, an empty line."""
        for delta in deltas:
            kind = type(delta)
            if self._is_empty and self._last_kind is kind and isinstance(delta, Text | Thought):
                delta = type(delta)(f"\n\n{delta.text}")
            self._is_empty = False
            self._last_kind = kind
            self._deltas.append(delta)


_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""A generator that yields whenever it needs more text, and returns what it has read."""

_MAX_SPACES: Final = 64
"""White space that ``precedes`` looks past."""


class BrokenCall(Exception):
    """The text is not a call to an offered tool."""


class HeldText:
    """Text that a reader takes piece by piece, and the deltas that it emits."""

    __slots__ = (
        *("_deltas", "_sink", "_stays", "closed_by", "has_called", "has_completed", "is_cut_off", "is_last"),
        *("is_streaming", "may_continue", "pending", "retry_mark", "taken"),
    )

    def __init__(self, mark: str, pending: str) -> None:
        self.taken = [mark]
        """Text that was taken and not emitted: with the mark before it, or since the last delta."""
        self.pending = pending
        """Text that was not taken yet."""
        self.is_last = False
        """Whether no text will follow ``pending``."""
        self.is_cut_off = False
        """Whether a limit ends the answer after ``pending``, and not the model."""
        self.is_streaming = False
        """Whether a call has begun and has not ended."""
        self.has_called = False
        """Whether any call has begun."""
        self.has_completed = False
        """Whether any call is complete."""
        self.closed_by = ""
        """The mark that was read after the last call, if it is one of those that may follow a call."""
        self.may_continue = False
        """Whether another call may follow the one that was read, without a mark before it."""
        self.retry_mark = ""
        """If the call is broken, text that was taken is read again from behind this mark on."""
        self._deltas: list[Delta] = []
        self._sink: Callable[[str], object] | None = None  # takes the part that is being read
        self._stays: Callable[[str], bool] | None = None  # whether a text certainly belongs to that part

    # Emitting.

    def begin(self, tool: CallableTool) -> None:
        """Begin a call. What was taken of it is not text any more."""
        self._deltas.append(CallStarted(tool.kind, tool.name, tool.namespace))
        self.is_streaming = self.has_called = True
        self.taken = []

    def write(self, text: str) -> None:
        """Emit arguments that stand for all that was taken since the last delta."""
        if text:
            self._deltas.append(CallArguments(text))
        self.taken = []

    def end(self, *, is_complete: bool = True) -> None:
        """End the call that has begun."""
        self._deltas.append(CallEnded(is_complete))
        self.is_streaming = False
        if is_complete:
            self.has_completed = True
            self.taken = []

    def emit(self, tool: CallableTool, arguments: str) -> None:
        """Emit a whole call."""
        self.begin(tool)
        self.write(arguments)
        self.end()

    def take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    # Reading.

    def skip(self, text: str) -> bool:
        """Take ``text`` at once if it certainly continues the current part, as most long arguments do."""
        sink, stays = self._sink, self._stays
        if sink is None or stays is None or self.pending or not stays(text):
            return False
        self.taken.append(text)
        sink(text)
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

    def rewind(self, count: int) -> None:
        """Give back all that was taken after the first ``count`` pieces of ``taken``."""
        self.pending = "".join(self.taken[count:]) + self.pending
        del self.taken[count:]

    def until(self, marks: MarkerFinder) -> Reading[tuple[str, str]]:
        """Take all text up to the first of the marks; return it and the mark, which is empty at the end."""
        parts: list[str] = []
        mark = yield from self.pour(marks, parts.append)
        return "".join(parts), mark

    def pour(self, marks: MarkerFinder, sink: Callable[[str], object]) -> Reading[str]:
        """Take all text up to the first of the marks, and pass it to ``sink`` as it arrives. Returns the
        mark, which is empty at the end."""
        while True:
            before, mark, _ = marks.cut(self.pending, last=self.is_last)
            if before:
                sink(self.take(len(before)))
            if mark or self.is_last:
                return self.take(len(mark))
            yield from self._wait(sink, marks.cannot_begin_in)

    def json(self, opening: str = "{[", entries: str = "{") -> Reading[str]:
        """Take a JSON value that begins with one of these characters: usually an object, or an array of
        objects."""
        scanner, parts = JsonScanner(opening, entries=entries), [""]
        while True:
            parts.append(self.take(scanner.feed(self.pending)))
            if scanner.complete:
                return "".join(parts)
            if self.pending or self.is_last:
                raise BrokenCall
            yield from self._wait(parts.append, scanner.stays_in_string)

    def write_json(self) -> Reading[str]:
        """Take a JSON object and emit it as it arrives, except for its last brace, which stays taken. Returns
        the object."""
        scanner, parts = JsonScanner("{"), [""]

        def keep(text: str) -> None:
            parts.append(text)
            self.write(text)

        while True:
            text = self.take(scanner.feed(self.pending))
            if scanner.complete:
                parts.append(text)
                self.write(text[:-1])
                self.taken = [text[-1]]
                return "".join(parts)
            keep(text)
            if self.pending or self.is_last:
                raise BrokenCall
            yield from self._wait(keep, scanner.stays_in_string)

    def _wait(self, sink: Callable[[str], object], stays: Callable[[str], bool]) -> Reading[None]:
        self._sink, self._stays = sink, stays
        yield
        self._sink = None

    def ends_within(self, mark: str) -> bool:
        """Whether a limit cut the answer off within this mark. Takes what there is of it."""
        if not (self.is_last and self.is_cut_off and mark.startswith(self.pending)):
            return False
        self.take(len(self.pending))
        return True

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
