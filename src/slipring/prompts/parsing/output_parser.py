"""Parses the text that a model writes into deltas, while it arrives.

``output_parser`` makes a parser for every ``OutputFormat``. It guarantees:

- A call ends at once: ``CallEnded`` follows the brace, parenthesis or tag with which the call is complete,
  before anything that comes after it. Its arguments are emitted as they arrive once its name is certain, in
  layouts where they are JSON, or tagged; in all others, at its end.
- No text is lost. What is malformed or unclosed before its name is certain, or names a tool that is not
  offered, is emitted as text, as the model wrote it. If the model breaks a call off after that, the call is
  incomplete, its arguments are what was streamed, and the rest is text.
- Marks are not text. Dropped are those that took effect, with the white space next to them; those that close
  nothing; those around a section without calls; and where a limit cuts the answer off, those of the call that
  it cuts, the beginning of a mark, and the brace that would have closed a call.
- A call in an open thought is thought: the model may quote one that it does not make. In formats with
  ``calls_end_thoughts``, calls are calls if nothing but calls follows up to the end of the answer, which is
  known only there. The mark that closes thoughts always does.
- An incomplete call of a function never has complete JSON as its arguments (``call_arguments``).
- The pieces do not matter: every split of a text gives the same deltas, except for where text and streamed
  arguments are cut.
- Time is linear in the length of the text, memory in what is held back.

This module knows where text, thoughts and calls begin and end. How a call is written is known to the readers
in ``calls``, one for each layout. Harmony and Muse, whose answers are messages, have parsers of their own.
"""

import re
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from msgspec import structs

from slipring.core.generation import Delta, Text, Thought
from slipring.prompts.parsing.addressed_messages import MESSAGE, AddressedMessageParser
from slipring.prompts.parsing.calls.braced_calls import BracedCallReader
from slipring.prompts.parsing.calls.call_reader import CallReader, OfferedTools
from slipring.prompts.parsing.calls.json_calls import JsonCallReader, NamedJsonCallReader
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.calls.python_calls import PythonCallReader
from slipring.prompts.parsing.calls.tagged_calls import NestedTagCallReader, TaggedCallReader
from slipring.prompts.parsing.harmony import HarmonyParser
from slipring.prompts.parsing.held_text import PIECE, AnswerParser, BrokenCall, HeldText, marker_finder
from slipring.prompts.parsing.output_format import (
    Calls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.protocol.tools.tool_choice import Offer

_SEPARATORS: Final = SPACE + ";,"
_LABELLED: Final = re.compile(r"(<[^<>\s]+>)(\w+)")
"""A mark that opens thoughts and the name of its channel, which the model may leave out: Gemma 4."""


def call_reader(calls: Calls, tools: OfferedTools, *, trusted: bool) -> CallReader:
    """The reader of a layout. ``trusted``: a grammar enforces the form of calls."""
    match calls:
        case JsonCalls():
            return JsonCallReader(calls, tools, trusted=trusted)
        case NamedJsonCalls():
            return NamedJsonCallReader(calls, tools, trusted=trusted)
        case TaggedCalls():
            return TaggedCallReader(calls, tools, trusted=trusted)
        case NestedTagCalls():
            return NestedTagCallReader(calls, tools)
        case PythonCalls():
            return PythonCallReader(calls, tools)
        case _:
            return BracedCallReader(calls, tools)


class _State(Enum):
    TEXT = 0
    THOUGHT = 1
    CALL = 2
    UNDECIDED = 3
    """After a call in an open thought: what follows decides whether it is one."""


# Module globals, because an attribute lookup on an enum class is slower.
_TEXT, _THOUGHT, _CALL, _UNDECIDED = _State


class MarkedAnswerParser(AnswerParser):
    """Parses one answer in which marks divide thoughts, text and calls."""

    def __init__(
        self,
        format: OutputFormat,
        tools: OfferedTools,
        *,
        thinking: bool,
        starts_thinking: bool,
        trusted: bool,
    ) -> None:
        super().__init__()
        thinking = thinking and bool(format.think_close)
        think_open = _LABELLED.fullmatch(format.think_open.strip(SPACE))
        self._think_open = think_open[1] if think_open else format.think_open.strip(SPACE)
        self._label = think_open[2] if think_open else ""
        self._think_close = format.think_close.strip(SPACE)
        self._ignored = tuple(mark.strip(SPACE) for mark in format.ignored)
        reader = call_reader(format.calls, tools, trusted=trusted) if format.calls and tools else None
        self._reader = reader
        self._starts = reader.starts if reader is not None else ()
        self._ends = reader.ends if reader is not None else ()
        self._open_ends: tuple[str, ...] = ()  # closing marks that are dropped here: those of the last call
        self._kept_ends: tuple[str, ...] = ()  # marks that close the last call that is text: text, too
        self._bare_starts = reader.bare_starts if reader is not None else ()
        self._strays = (*(reader.strays if reader is not None else ()), *(self._thought_marks(thinking)[1:]))
        self._markers = marker_finder(
            *self._thought_marks(thinking), *self._starts, *self._strays, *self._ignored
        )
        calls_end_thoughts = format.calls_end_thoughts and not trusted
        self._thought_markers = marker_finder(
            self._think_close, *(self._starts if calls_end_thoughts else ())
        )
        self._thought_end = marker_finder(self._think_close)
        self._state = _THOUGHT if thinking and starts_thinking else _TEXT
        self._is_beginning = True  # nothing was emitted
        self._is_opening = self._state is _THOUGHT  # a thought was opened, and nothing of it has arrived
        self._queue: deque[str] = deque()  # pieces not read yet: ``_pending`` is the rest of the current one
        self._gap: list[str] = []  # white space: dropped before a marker, emitted before text
        self._after_marker = self._state is _THOUGHT  # nothing but white space since the last marker
        self._expects_bare = bool(self._bare_starts)  # what begins here may be a call without a mark
        self._in_list = False  # after a bare call: separators may precede another
        self._held: HeldText  # the current call; set while there is one
        self._reading: Iterator[None] = iter(())
        self._in_thought = False  # the current call is inside a thought
        self._mark = ""  # with which the current call begins
        self._raw: list[str] = []  # what was read of the current call
        self._quoted: list[str] = []  # what was read in the thought from its first call on
        self._undecided: list[Delta] = []  # the calls of that

    def _thought_marks(self, thinking: bool) -> tuple[str, ...]:
        return (self._think_open, self._think_close) if thinking else ()

    @property
    def is_thinking(self) -> bool:
        return self._state is _THOUGHT

    @property
    def is_holding(self) -> bool:
        return self._state is _UNDECIDED or (
            self._state is _CALL and (self._in_thought or not self._held.is_streaming)
        )

    @property
    def is_idle(self) -> bool:
        return self._state is _TEXT and not self._pending

    def feed(self, text: str) -> list[Delta]:
        if not text:
            return []
        if (
            self._state is _TEXT
            and not (self._pending or self._queue or self._gap or self._open_ends)
            and not (self._expects_bare or self._after_marker or self._is_beginning or self._in_list)
            and self._markers.starts.isdisjoint(text)
            and text[-1] not in SPACE
        ):
            return [Text(text)]  # hot path: text in which no marker begins and behind which none can follow
        if self._state is _CALL and not self._in_thought and self._held.skip(text):
            return self._held.take_deltas()
        if len(text) <= PIECE:
            self._pending += text
        else:
            self._queue.extend(text[at : at + PIECE] for at in range(0, len(text), PIECE))
        self._run()
        return self._take_deltas()

    def _run(self) -> None:
        while True:
            if self._queue:
                self._pending += self._queue.popleft()
            while self._step():
                pass
            if not self._queue:
                return

    def _end(self) -> None:
        if not self._after_marker:
            self._emit("")

    def _step(self) -> bool:
        state = self._state
        if state is _TEXT:
            return self._read_text()
        if state is _THOUGHT:
            return self._read_thought()
        return self._read_call() if state is _CALL else self._read_undecided()

    @property
    def _last(self) -> bool:
        return self._final and not self._queue

    def _read_thought(self) -> bool:
        if self._is_opening and not self._skip_opening():
            return False
        thought, marker, self._pending = self._thought_markers.cut(self._pending, last=self._last)
        self._add_text(thought)
        if not marker:
            return False
        if marker == self._think_close:
            self._enter(_TEXT)
        else:
            self._begin_call(marker)
        return True

    def _skip_opening(self) -> bool:
        """Drop opening marks at the beginning of a thought: the prompt may have written them, too, and models
        repeat them. Returns False if more text is needed to find them."""
        marks = tuple(filter(None, (self._think_open, self._label)))
        while True:
            rest = self._pending = self._pending.lstrip(SPACE)
            if not self._last and any(mark.startswith(rest) for mark in marks):
                return False
            mark = next(filter(rest.startswith, marks), "")
            if not mark or (mark == self._label and rest[len(mark) : len(mark) + 1].isalnum()):
                self._is_opening = False
                return True
            self._pending = rest[len(mark) :]

    def _read_text(self) -> bool:
        if self._open_ends and not self._skip_ends():
            return False
        text, marker, rest = self._markers.cut(self._pending, last=self._last)
        if self._expects_bare:
            text = self._skip_gap(text)
            if text.startswith(self._bare_starts):
                self._pending = text + marker + rest
                self._begin_call("")
                return True
        self._pending = rest
        self._add_text(text)
        if not marker:
            return False
        if marker in self._starts:
            self._begin_call(marker)
        elif marker in self._ignored:
            self._enter(_TEXT)
        elif marker == self._think_open:
            self._enter(_THOUGHT)
        elif marker in self._kept_ends:
            self._kept_ends = self._kept_ends[self._kept_ends.index(marker) + 1 :]
            self._add_text(marker)
        else:
            self._drop_mark()
        return True

    def _drop_mark(self) -> None:
        """Drop a mark without effect. The white space around it stays, except at the beginning, where
        MiniMax M3 closes a thought that was never opened."""
        if self._is_beginning:
            self._enter(_TEXT)
        self._state = _TEXT

    def _skip_ends(self) -> bool:
        """Drop white space and closing marks that follow a call, each mark once. Returns False if more text
        is needed to tell them from text."""
        while True:
            rest = self._pending = self._pending.lstrip(SPACE)
            ends = self._open_ends
            if not rest:
                return False
            if any(mark.startswith(rest) and mark != rest for mark in ends):
                if not self._last:
                    return False
                if self._cut_off:
                    self._pending = ""
                    return False
            end = max((mark for mark in ends if rest.startswith(mark)), key=len, default="")
            if not end:
                self._open_ends = ()
                return True
            self._pending = rest[len(end) :]
            self._open_ends = tuple(mark for mark in ends if mark != end)

    def _enter(self, state: _State) -> None:
        """Drop a marker that took effect, and the white space around it."""
        self._state = state
        self._is_opening = state is _THOUGHT
        self._gap.clear()
        self._after_marker = True

    def _skip_gap(self, text: str) -> str:
        rest = text.lstrip(_SEPARATORS if self._in_list else SPACE)
        self._add_gap(text[: len(text) - len(rest)])
        return rest

    def _add_gap(self, gap: str) -> None:
        if self._after_marker and not self._gap:
            gap = gap.lstrip(SPACE)
        if gap:
            self._gap.append(gap)

    def _add_text(self, text: str) -> None:
        """Emit text or thought, except for white space at its end, which a marker may follow."""
        if self._after_marker and not self._gap:
            text = text.lstrip(SPACE)
        marker_may_follow = self._state is _THOUGHT or bool(self._markers)
        certain = text.rstrip(SPACE) if marker_may_follow else text
        if certain:
            self._emit(certain)
            self._after_marker = False
        self._add_gap(text[len(certain) :])

    def _emit(self, text: str) -> None:
        text = "".join((*self._gap, text))
        self._gap.clear()
        if not text:
            return
        self._is_beginning = False
        if self._state is _THOUGHT:
            self._deltas.append(Thought(text))
        else:
            self._deltas.append(Text(text))
            self._expects_bare = self._in_list = False

    def _begin_call(self, marker: str) -> None:
        """Hold back what follows, until the reader has found out whether it is a call."""
        assert self._reader is not None
        self._in_thought = self._state is not _TEXT
        self._state = _CALL
        self._mark, self._raw = marker, [marker]
        self._held = HeldText(marker, "")
        self._reading = self._reader.read(self._held, marker)

    def _read_call(self) -> bool:
        held = self._held
        text, self._pending = self._pending, ""
        if self._in_thought:
            text, close, rest = self._thought_end.cut(text, last=self._last)
            self._raw.append(text)
            self._pending = close + rest
            if close:
                self._quote("".join(self._raw))
                return True
        held.pending += text
        held.is_last, held.is_cut_off = self._last, self._cut_off
        try:
            next(self._reading)
        except StopIteration:
            self._end_call(held)
            return True
        except BrokenCall:
            if self._in_thought:
                self._give_up_quote(held)
            else:
                self._give_up(held)
            return True
        if not self._in_thought:
            self._deltas += held.take_deltas()
        return False

    def _end_call(self, held: HeldText) -> None:
        self._pending = held.pending + self._pending
        if self._in_thought:
            self._quoted.append(self._raw_text(held))
            self._undecided += held.take_deltas()
            self._state = _UNDECIDED
            return
        self._deltas += held.take_deltas()
        self._is_beginning = False
        self._open_ends = tuple(mark for mark in self._ends if mark != held.closed_by)
        self._kept_ends = ()
        if held.may_continue:
            self._expects_bare = self._in_list = True
        self._enter(_TEXT)

    def _give_up(self, held: HeldText) -> None:
        """Emit what is held back of a call as text. What follows its first closing mark is read again."""
        assert self._reader is not None
        if held.is_streaming:
            held.end(is_complete=False)
            if held.is_last and held.is_cut_off and not held.pending:
                held.taken = []  # the brace that was held back: alone it is no text
        self._deltas += held.take_deltas()
        text, again = "".join(held.taken), held.pending
        if self._mark and self._mark == self._reader.section_mark and not held.has_called:
            self._drop_mark()  # no call follows in the section
            self._read_again(text[len(self._mark) :] + again)
            return
        self._kept_ends = () if held.has_called else self._reader.closing_marks
        if held.has_called:
            self._gap.clear()
        if held.retry_mark and held.retry_mark in text:
            text, mark, rest = text.partition(held.retry_mark)
            again = rest + again
            if not held.has_called:
                text, self._kept_ends = text + mark, ()
        elif self._mark and held.is_last and held.is_cut_off:
            if not any(mark in again for mark in self._starts):
                text, again = text + again, ""
            text = self._reader.without_marks(text)
        self._read_again(again)
        self._state = _TEXT
        self._after_marker = self._expects_bare = False
        self._add_text(text)

    def _give_up_quote(self, held: HeldText) -> None:
        """Emit what is held back of a call in a thought as thought."""
        text, again = self._raw_text(held), held.pending + self._pending
        self._pending = ""
        if held.retry_mark and held.retry_mark in text:
            before, mark, rest = text.partition(held.retry_mark)
            text, again = before + mark, rest + again
        self._quote(text)
        self._read_again(again)

    def _raw_text(self, held: HeldText) -> str:
        """What was read of the current call, with its mark, as the model wrote it."""
        text = "".join(self._raw)
        return text[: len(text) - len(held.pending)]

    def _quote(self, text: str) -> None:
        """Go on with the thought: what was read since the first call in it is a part of it, with ``text``."""
        text = "".join((*self._quoted, text))
        self._quoted.clear()
        self._undecided.clear()
        self._state = _THOUGHT
        self._add_text(text)

    def _read_undecided(self) -> bool:
        """Read what follows a call in a thought. Only calls up to the end of the answer end the thought."""
        rest = self._pending.lstrip(SPACE)
        self._quoted.append(self._pending[: len(self._pending) - len(rest)])
        self._pending = rest
        marks = (*self._starts, *self._ends, *self._ignored)
        if not self._last and any(mark.startswith(rest) and mark != rest for mark in marks):
            return False
        mark = max((mark for mark in marks if rest.startswith(mark)), key=len, default="")
        if not rest and not self._cut_off:
            self._deltas += self._undecided
            self._quoted.clear()
            self._undecided.clear()
            self._enter(_TEXT)
        elif not mark:
            self._quote("")
        else:
            self._pending = rest[len(mark) :]
            if mark in self._starts:
                self._begin_call(mark)
            else:
                self._quoted.append(mark)
        return True

    def _read_again(self, text: str) -> None:
        self._queue.extendleft(text[at : at + PIECE] for at in reversed(range(0, len(text), PIECE)))


def output_parser(
    format: OutputFormat,
    offer: Offer,
    *,
    thinking: bool = True,
    starts_thinking: bool = False,
    trusted: bool = False,
) -> AnswerParser:
    """The parser of an answer.

    ``offer``: the tools that may be called; without any, no calls are recognized.
    ``thinking``: whether thoughts are recognized.
    ``starts_thinking``: the prompt ended with ``think_open``, so the answer begins inside a thought.
    ``trusted``: a grammar enforces the form of calls, so the input of custom tools is streamed if it is JSON.
    The grammar also enforces that thoughts are closed: text in a thought that looks like a call is not one.
    """
    tools = OfferedTools(offer)
    if format.is_harmony:
        return HarmonyParser(tools, thinking=thinking, starts_thinking=starts_thinking)
    if not format.is_addressed:
        return MarkedAnswerParser(
            format, tools, thinking=thinking, starts_thinking=starts_thinking, trusted=trusted
        )
    assert format.calls is not None
    mark = format.calls.open.rpartition(MESSAGE)[2]  # without the end of the header before it
    inner = OutputFormat(calls=structs.replace(format.calls, open=mark))
    return AddressedMessageParser(
        lambda: MarkedAnswerParser(inner, tools, thinking=True, starts_thinking=False, trusted=trusted),
        mark.strip(SPACE),
        thinking=thinking,
        starts_thinking=starts_thinking,
    )
