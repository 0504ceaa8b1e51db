"""Parses the text that a model writes into deltas, while it arrives.

``Parser`` reads every format whose calls are JSON; ``call_formats`` lists them. It guarantees:

- No text is lost. A call is held back until it is complete. A call that is malformed, unclosed or names a
  tool that is not offered is emitted as text, as the model wrote it. Only markers that took effect and the
  white space next to them are dropped. Calls whose form a grammar enforces are streamed
  (``constrained_calls``).
- The pieces do not matter: every split of a text gives the same deltas, except for where text and streamed
  arguments are cut.
- Time is linear in the length of the text, memory in what is held back.
"""

from collections import deque
from enum import Enum
from typing import Final

from slipring.core.generation import Delta, Text, Thought
from slipring.prompts.parsing.call_formats import CallFormat
from slipring.prompts.parsing.constrained_calls import CallOpenings, ConstrainedCall
from slipring.prompts.parsing.json_scanner import SPACE, SPACES, JsonScanner, skip
from slipring.prompts.parsing.markers import marker_finder
from slipring.prompts.parsing.tool_calls import ToolCallReader
from slipring.protocol.tools import Offer

_SEPARATORS: Final = SPACE + ";,"
_PIECE: Final = 4096
"""Longer pieces are cut, so that the text searched after each marker stays short."""


class _State(Enum):
    TEXT = 0
    THOUGHT = 1
    MARKED_CALL = 2
    """Between ``call_open`` and ``call_close``."""
    BARE_CALL = 3
    """In a call that ends with its JSON."""
    STREAMED_CALL = 4
    """In a call whose arguments are emitted as they arrive."""


# Module globals, because an attribute lookup on an enum class is slower.
_TEXT, _THOUGHT, _MARKED_CALL, _BARE_CALL, _STREAMED_CALL = _State


class Parser:
    """Parses one answer. Call ``feed`` with each piece of text, then ``finish``; both return deltas.

    ``offer``: the tools that may be called; without any, no calls are recognized.
    ``thinking``: whether thoughts are recognized.
    ``starts_thinking``: the prompt ended with ``think_open``, so the answer begins inside a thought.
    ``trusted``: a grammar enforces the form of calls, so their arguments are streamed. The grammar writes
    them after ``call_open`` or, in a format without it, as bare JSON.
    """

    def __init__(
        self,
        format: CallFormat,
        offer: Offer,
        *,
        thinking: bool = True,
        starts_thinking: bool = False,
        trusted: bool = False,
    ) -> None:
        self._format = format
        self._call_reader = ToolCallReader(offer)
        calls = bool(self._call_reader)
        thinking = thinking and bool(format.think_close)
        self._markers = marker_finder(
            format.think_open if thinking else "",
            format.call_open if calls else "",
            format.prefix if calls else "",
        )
        self._think_close = marker_finder(format.think_close)
        self._call_close = marker_finder(format.call_close)
        self._state = _THOUGHT if thinking and starts_thinking else _TEXT
        self._deltas: list[Delta] = []
        self._queue: deque[str] = deque()  # pieces not read yet
        self._pending = ""  # the unread rest of the current piece
        self._final = False
        self._gap: list[str] = []  # white space: dropped before a marker, emitted before text
        self._after_marker = self.is_thinking  # nothing but white space since the last marker
        self._expects_bare = calls and format.bare_json  # JSON that begins here may be a call
        self._in_list = False  # after a bare call: separators may precede another
        self._announced = False  # a marker precedes the current call
        self._held: list[str] = []  # the current call: its marker, then its pieces
        self._resume = 0  # pieces held up to the first ``call_close`` inside a string; see ``_close``
        self._scanner = JsonScanner()
        self._openings = CallOpenings(self._call_reader.tools if trusted else {}, format.arguments_key)
        self._streamed = ConstrainedCall(self._openings, "")
        self._fallback_state = _BARE_CALL  # used if the current call does not conform to the grammar

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""
        return self._state is _THOUGHT

    @property
    def is_holding(self) -> bool:
        """Whether a call is held back until it is complete."""
        return self._state is _MARKED_CALL or self._state is _BARE_CALL

    @property
    def is_idle(self) -> bool:
        """Whether the text so far ends outside of thoughts and calls, and not with a possible marker."""
        return self._state is _TEXT and not self._pending

    def feed(self, text: str) -> list[Delta]:
        """Parse the next piece of text."""
        if not text:
            return []
        if self._state is _MARKED_CALL and self._is_inside(text):
            self._held.append(text)
            return []
        if len(text) <= _PIECE:
            self._pending += text
        else:
            self._queue.extend(text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        self._run()
        return self._take_deltas()

    def _is_inside(self, text: str) -> bool:
        """Whether ``text`` certainly continues a string of the current call, as most long arguments do."""
        return (
            not self._pending
            and self._scanner.stays_in_string(text)
            and not self._call_close.may_begin_in(text)
        )

    def finish(self) -> list[Delta]:
        """End the answer: emit what is held back, as text if it is not a complete call."""
        self._final = True
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
        if state is _MARKED_CALL:
            return self._read_marked()
        if state is _THOUGHT:
            return self._read_thought()
        return self._read_bare() if state is _BARE_CALL else self._read_streamed()

    @property
    def _last(self) -> bool:
        return self._final and not self._queue

    def _read_thought(self) -> bool:
        thought, marker, self._pending = self._think_close.cut(self._pending, last=self._last)
        self._add_text(thought)
        if marker:
            self._enter(_TEXT)
        return bool(marker)

    def _read_text(self) -> bool:
        text, marker, rest = self._markers.cut(self._pending, last=self._last)
        if self._expects_bare:
            text = self._skip_gap(text)
            if text.startswith(("{", "[")):
                self._pending = text + marker + rest
                return self._begin_call("", _BARE_CALL)
        self._pending = rest
        self._add_text(text)
        if not marker:
            return False
        if marker == self._format.think_open:
            self._enter(_THOUGHT)
            return True
        closed = marker == self._format.call_open and self._call_close
        return self._begin_call(marker, _MARKED_CALL if closed else _BARE_CALL)

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
        marker_may_follow = self.is_thinking or bool(self._markers)
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
        if self.is_thinking:
            self._deltas.append(Thought(text))
        else:
            self._deltas.append(Text(text))
            self._expects_bare = self._in_list = False

    def _begin_call(self, marker: str, state: _State) -> bool:
        """Hold back what follows, or stream it if a grammar enforces its form."""
        self._state = state
        self._announced = bool(marker)
        self._held = [marker]
        self._resume = 0
        self._scanner = JsonScanner()
        if self._openings and marker == self._format.call_open:
            self._streamed = ConstrainedCall(
                self._openings, self._format.call_close if state is _MARKED_CALL else ""
            )
            self._fallback_state = state
            self._state = _STREAMED_CALL
        return True

    def _read_streamed(self) -> bool:
        call = self._streamed
        started = call.started
        read, deltas = call.feed(self._pending)
        self._pending = self._pending[read:]
        self._deltas += deltas
        if call.started and not started:
            self._enter(_STREAMED_CALL)
        if call.complete:
            if self._fallback_state is _BARE_CALL:
                self._expects_bare = self._in_list = True
            self._enter(_TEXT)
            return True
        if call.conforms and (call.started or not self._last):
            return False
        if call.started:
            self._held = call.held
            return self._give_up()
        self._pending = "".join(call.held) + self._pending
        self._state = self._fallback_state
        return True

    def _read_bare(self) -> bool:
        read = self._scanner.feed(self._pending)
        self._held.append(self._pending[:read])
        self._pending = self._pending[read:]
        if not self._scanner.complete:
            return self._give_up() if self._pending or self._last else False
        if not self._emit_calls():
            return self._give_up()
        self._expects_bare = self._in_list = True
        return True

    def _read_marked(self) -> bool:
        body, marker, rest = self._call_close.cut(self._pending, last=self._last)
        read = self._scanner.feed(body)
        if self._scanner.complete:
            read = skip(SPACES, body, read)
        self._held.append(body[:read])
        if read < len(body):
            self._pending = body[read:] + marker + rest
            return self._give_up()
        self._pending = rest
        if marker:
            return self._close(marker)
        return self._give_up() if self._last else False

    def _close(self, marker: str) -> bool:
        if self._scanner.in_string and self._scanner.feed(marker) == len(marker):
            # Probably part of a string. If the JSON turns out to be invalid, the call ended here.
            self._held.append(marker)
            self._resume = self._resume or len(self._held)
            return True
        if self._scanner.complete and self._emit_calls():
            return True
        self._held.append(marker)
        return self._give_up()

    def _emit_calls(self) -> bool:
        """Emit the held text as calls; return False if it is not valid calls to offered tools."""
        calls = self._call_reader.read("".join(self._held[1:]), announced=self._announced)
        if not calls:
            return False
        self._deltas += calls
        self._held = []
        self._enter(_TEXT)
        return True

    def _give_up(self) -> bool:
        """Emit the held text as text. What follows its first ``call_close``, if any, is read again."""
        self._state = _TEXT
        held, again = self._held, [self._pending]
        if self._resume:
            held, again = held[: self._resume], [*held[self._resume :], self._pending]
        self._queue.extendleft(reversed(again))
        self._pending = ""
        self._held = []
        self._after_marker = self._expects_bare = False
        self._add_text("".join(held))
        return True
