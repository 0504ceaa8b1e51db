"""Parses the text that a model writes into deltas, while it arrives.

``OutputParser`` reads every ``OutputFormat``. It guarantees:

- A call ends at once: ``CallEnded`` follows the brace, parenthesis or tag with which the call is complete,
  before anything that comes after it. Its arguments are emitted as they arrive once its name is certain, in
  layouts where they are JSON, or tagged; in all others, at its end.
- No text is lost. What is malformed or unclosed before its name is certain, or names a tool that is not
  offered, is emitted as text, as the model wrote it. If the model breaks a call off after that, the call is
  incomplete, its arguments are what was streamed, and the rest is text. Only marks that took effect and the
  white space next to them are dropped and, where a limit cuts the answer off, the beginning of a mark or the
  brace that would have closed a call.
- An incomplete call of a function never has complete JSON as its arguments (``argument_stream``).
- The pieces do not matter: every split of a text gives the same deltas, except for where text and streamed
  arguments are cut.
- Time is linear in the length of the text, memory in what is held back.

This module knows where text, thoughts and calls begin and end. How a call is written is known to the readers
in ``calls``, one for each layout. Harmony, whose answers are messages, has a parser of its own.
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from slipring.core.generation import Delta, Text, Thought
from slipring.prompts.parsing.calls.braced_calls import BracedCallReader
from slipring.prompts.parsing.calls.call_reader import CallReader
from slipring.prompts.parsing.calls.held_text import BrokenCall, HeldText
from slipring.prompts.parsing.calls.json_calls import JsonCallReader
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.calls.named_json_calls import NamedJsonCallReader
from slipring.prompts.parsing.calls.nested_tag_calls import NestedTagCallReader
from slipring.prompts.parsing.calls.offered_tools import OfferedTools
from slipring.prompts.parsing.calls.python_calls import PythonCallReader
from slipring.prompts.parsing.calls.tagged_calls import TaggedCallReader
from slipring.prompts.parsing.harmony import HarmonyParser
from slipring.prompts.parsing.markers import marker_finder
from slipring.prompts.parsing.output_format import (
    Calls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.protocol.tools import Offer

_SEPARATORS: Final = SPACE + ";,"
_PIECE: Final = 4096
"""Longer pieces are cut, so that the text searched after each marker stays short."""


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


# Module globals, because an attribute lookup on an enum class is slower.
_TEXT, _THOUGHT, _CALL = _State


class OutputParser:
    """Parses one answer. Call ``feed`` with each piece of text, then ``finish``; both return deltas.

    ``offer``: the tools that may be called; without any, no calls are recognized.
    ``thinking``: whether thoughts are recognized.
    ``starts_thinking``: the prompt ended with ``think_open``, so the answer begins inside a thought. If the
    model opens it again, that mark is dropped.
    ``trusted``: a grammar enforces the form of calls, so the input of custom tools is streamed if it is JSON.
    The grammar also enforces that thoughts are closed: text in a thought that looks like a call is not one.
    """

    def __init__(
        self,
        format: OutputFormat,
        offer: Offer,
        *,
        thinking: bool = True,
        starts_thinking: bool = False,
        trusted: bool = False,
    ) -> None:
        tools = OfferedTools(offer)
        self._harmony = (
            HarmonyParser(tools, thinking=thinking, starts_thinking=starts_thinking)
            if format.is_harmony
            else None
        )
        thinking = thinking and bool(format.think_close)
        self._think_open, self._think_close = format.think_open.strip(SPACE), format.think_close.strip(SPACE)
        self._ignored = tuple(mark.strip(SPACE) for mark in format.ignored)
        reader = call_reader(format.calls, tools, trusted=trusted) if format.calls and tools else None
        self._reader = reader
        self._starts = reader.starts if reader is not None else ()
        self._ends = reader.ends if reader is not None else ()
        self._open_ends: tuple[str, ...] = ()  # closing marks that are dropped here: those of the last call
        self._bare_starts = reader.bare_starts if reader is not None else ()
        in_text = (self._think_open if thinking else "", *self._starts, *self._ignored)
        self._usual_markers = marker_finder(*in_text)
        self._markers_with_close = marker_finder(*in_text, self._think_close)
        self._thought_markers = marker_finder(self._think_close, *(() if trusted else self._starts))
        self._state = _THOUGHT if thinking and starts_thinking else _TEXT
        # A thought that was never opened may be closed at the beginning: MiniMax M3 does so.
        self._is_beginning = thinking and not starts_thinking
        self._may_repeat_open = thinking and starts_thinking  # nothing but white space has arrived
        self._markers = self._markers_with_close if self._is_beginning else self._usual_markers
        self._deltas: list[Delta] = []
        self._queue: deque[str] = deque()  # pieces not read yet
        self._pending = ""  # the unread rest of the current piece
        self._final = self._cut_off = False
        self._gap: list[str] = []  # white space: dropped before a marker, emitted before text
        self._after_marker = self._state is _THOUGHT  # nothing but white space since the last marker
        self._expects_bare = bool(self._bare_starts)  # what begins here may be a call without a mark
        self._in_list = False  # after a bare call: separators may precede another
        self._in_thought = False  # the current call is inside a thought
        self._held = HeldText("", "")  # the current call
        self._reading: Iterator[None] = iter(())

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""
        return self._state is _THOUGHT if self._harmony is None else self._harmony.is_thinking

    @property
    def is_holding(self) -> bool:
        """Whether a call is held back until it is complete."""
        if self._harmony is not None:
            return self._harmony.is_holding
        return self._state is _CALL and not self._held.is_streaming

    @property
    def is_idle(self) -> bool:
        """Whether the text so far ends outside of thoughts and calls, and not with a possible marker."""
        if self._harmony is not None:
            return self._harmony.is_idle
        return self._state is _TEXT and not self._pending

    def feed(self, text: str) -> list[Delta]:
        """Parse the next piece of text."""
        if self._harmony is not None:
            return self._harmony.feed(text)
        if not text:
            return []
        if self._state is _CALL and self._held.skip(text):
            return self._held.take_deltas()
        if len(text) <= _PIECE:
            self._pending += text
        else:
            self._queue.extend(text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        self._run()
        return self._take_deltas()

    def finish(self, *, cut_off: bool = False) -> list[Delta]:
        """End the answer: emit what is held back, as text if it is not a complete call. ``cut_off``: a limit
        has ended it, not the model, so that a call whose closing marks are missing is not complete."""
        if self._harmony is not None:
            return self._harmony.finish(cut_off=cut_off)
        self._final, self._cut_off = True, cut_off
        self._run()
        if not self._after_marker:
            self._emit("")
        return self._take_deltas()

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _run(self) -> None:
        while True:
            if self._queue:
                self._pending += self._queue.popleft()
            while self._step():
                pass
            if not self._queue:
                return

    def _step(self) -> bool:
        """Read the pending text; return whether the state changed, so that there may be more to read."""
        state = self._state
        if state is _TEXT:
            return self._read_text()
        return self._read_thought() if state is _THOUGHT else self._read_call()

    @property
    def _last(self) -> bool:
        return self._final and not self._queue

    def _read_thought(self) -> bool:
        if self._may_repeat_open and not self._skip_repeated_open():
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

    def _skip_repeated_open(self) -> bool:
        """Drop the mark that the prompt has written too. Returns False if more text is needed to find it."""
        mark = self._think_open
        rest = self._pending = self._pending.lstrip(SPACE)
        if not self._last and len(rest) < len(mark) and mark.startswith(rest):
            return False
        self._may_repeat_open = False
        self._pending = rest.removeprefix(mark)
        return True

    def _read_text(self) -> bool:
        if self._open_ends and not self._skip_ends():
            return False
        text, marker, rest = self._markers.cut(self._pending, last=self._last)
        if self._is_beginning and text.strip(SPACE):
            self._leave_beginning()
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
        else:
            self._is_beginning = False
            self._markers = self._usual_markers
            self._enter(_THOUGHT if marker == self._think_open else _TEXT)
        return True

    def _leave_beginning(self) -> None:
        if self._is_beginning:
            self._is_beginning = False
            self._markers = self._usual_markers

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
        if self._state is _THOUGHT:
            self._deltas.append(Thought(text))
        else:
            self._deltas.append(Text(text))
            self._expects_bare = self._in_list = False

    def _begin_call(self, marker: str) -> None:
        """Hold back what follows, until the reader has found out whether it is a call."""
        assert self._reader is not None
        self._in_thought = self._state is _THOUGHT
        self._state = _CALL
        self._held, self._pending = HeldText(marker, self._pending), ""
        self._reading = self._reader.read(self._held, marker)

    def _read_call(self) -> bool:
        held = self._held
        held.pending, self._pending = held.pending + self._pending, ""
        held.is_last, held.is_cut_off = self._last, self._cut_off
        try:
            next(self._reading)
        except StopIteration:
            self._deltas += held.take_deltas()
            self._end_call(held)
            return True
        except BrokenCall:
            if held.is_streaming:
                held.end(is_complete=False)
                if held.is_last and held.is_cut_off and not held.pending:
                    held.taken = []  # the brace that was held back: alone it is no text
            self._deltas += held.take_deltas()
            self._give_up(held)
            return True
        self._deltas += held.take_deltas()
        return False

    def _end_call(self, held: HeldText) -> None:
        self._pending = held.pending
        self._open_ends = tuple(mark for mark in self._ends if mark != held.closed_by)
        if self._in_thought:
            self._markers = self._markers_with_close  # the thought that this call ended may be closed yet
        else:
            self._leave_beginning()
        if held.may_continue:
            self._expects_bare = self._in_list = True
        self._enter(_TEXT)

    def _give_up(self, held: HeldText) -> None:
        """Emit what is held back of a call as text. What follows its first closing mark is read again."""
        self._state = _THOUGHT if self._in_thought and not held.has_completed else _TEXT
        if self._in_thought and held.has_completed:
            self._markers = self._markers_with_close
        text, again = "".join(held.taken), ""
        if held.has_called:
            self._gap.clear()
        if held.retry_mark and held.retry_mark in text:
            before, mark, again = text.partition(held.retry_mark)
            text = before + mark
        again += held.pending
        self._queue.extendleft(again[at : at + _PIECE] for at in reversed(range(0, len(again), _PIECE)))
        self._after_marker = self._expects_bare = False
        self._leave_beginning()
        self._add_text(text)
