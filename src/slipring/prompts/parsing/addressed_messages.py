"""Parses answers that are messages with recipients, as Muse writes them.

``<|start|>assistant to=self<|message|>…<|eom|><|start|>assistant to=f<|message|>CALLS<|eom|>``

- A message to ``self`` is thought, one to ``user`` is text, whatever they quote. A message to anything else
  is read for calls. One without a recipient is read for calls if it begins with their mark, and is text
  otherwise.
- Headers and marks are never emitted. A message ends where it is closed, or where the next header begins.
- Two messages of text, or of thought, in a row are separated by an empty line.
- The prompt ends with ``<|start|>assistant``, so an answer begins inside a header. An answer that begins
  without one is a message without a recipient.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from slipring.core.generation import Text, Thought
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.held_text import AnswerParser, MessageParser, marker_finder

MESSAGE: Final = "<|message|>"
"""Ends the header of a message."""
_START, _NEXT, _LAST = "<|start|>", "<|eom|>", "<|eot|>"
_BODY_ENDS: Final = marker_finder(_START, MESSAGE, _NEXT, _LAST)
_HEADER: Final = re.compile(r"\s*(?:<\|start\|>\s*)?(?:assistant)?\s*(?:to=([^\s<]*))?\s*")
_ADDRESS: Final = re.compile(r"[ \t]{1,8}to=([^\s<]*)\Z")
_BEGUN_ADDRESS: Final = re.compile(r"[ \t]{1,8}(?:t|to|to=[^\s<]{0,256})?\Z")
_MAX_HEADER: Final = 1024


class _State(Enum):
    HEADER = 0
    TEXT = 1
    THOUGHT = 2
    CALLS = 3
    UNADDRESSED = 4
    """A message without a recipient has begun, and not shown yet whether it is calls."""


_HEADER_STATE, _TEXT, _THOUGHT, _CALLS, _UNADDRESSED = _State


class AddressedMessageParser(MessageParser):
    """Parses one answer. ``make_parser`` makes what reads a message for calls; ``call_mark`` begins these."""

    def __init__(
        self,
        make_parser: Callable[[], AnswerParser],
        call_mark: str,
        *,
        thinking: bool,
        starts_thinking: bool,
    ) -> None:
        super().__init__()
        self._make_parser = make_parser
        self._call_mark = call_mark
        self._thinking = thinking
        self._state = _THOUGHT if thinking and starts_thinking else _HEADER_STATE
        self._calls = make_parser()

    @property
    def is_thinking(self) -> bool:
        return self._state is _THOUGHT

    @property
    def is_holding(self) -> bool:
        return self._state is _CALLS and self._calls.is_holding

    @property
    def is_idle(self) -> bool:
        if self._pending:
            return False
        return self._state in (_TEXT, _HEADER_STATE) or (self._state is _CALLS and self._calls.is_idle)

    def _step(self) -> bool:
        return self._read_header() if self._state is _HEADER_STATE else self._read_body()

    def _end(self) -> None:
        if self._state is _CALLS:
            self._end_calls()

    def _read_header(self) -> bool:
        """Read the header of a message. What cannot be one is the text of a message without a recipient."""
        header = _HEADER.match(self._pending)
        assert header is not None
        rest = self._pending[header.end() :]
        if rest.startswith(MESSAGE):
            self._pending = rest[len(MESSAGE) :]
            self._begin(header.group(1))
            return True
        may_go_on = len(self._pending) <= _MAX_HEADER and (
            any(mark.startswith(rest) for mark in (_START, "assistant", "to=", MESSAGE)) or header[1] == ""
        )
        if may_go_on and not self._final:
            return False
        is_cut = self._cut_off or self._pending.lstrip(SPACE).startswith(_START)
        if not self._pending.strip(SPACE) or (may_go_on and is_cut):
            self._pending = ""
            return False
        self._pending = self._pending.removeprefix(_START)
        self._begin(None)
        return True

    def _begin(self, recipient: str | None) -> None:
        """Begin the message to a recipient."""
        self._is_empty = True
        self._calls = self._make_parser()
        if recipient == "self":
            self._state = _THOUGHT if self._thinking else _TEXT
        elif recipient == "user":
            self._state = _TEXT
        else:
            self._state = _CALLS if recipient else _UNADDRESSED

    def _read_body(self) -> bool:
        if self._state is _UNADDRESSED and not self._find_kind():
            return False
        text, mark, rest = _BODY_ENDS.cut(self._pending, last=self._final)
        address = _ADDRESS.search(text) if mark == MESSAGE else None
        if not mark and not self._final and (begun := _BEGUN_ADDRESS.search(text)):
            text, rest = text[: begun.start()], begun.group() + rest
        self._pending = rest
        self._emit(text[: address.start()] if address else text)
        if mark == MESSAGE and (address or self._state is not _THOUGHT):
            self._end_calls()
            self._begin(address.group(1) if address else None)
        elif mark and mark != MESSAGE:
            self._end_calls()
            self._state = _HEADER_STATE
            self._pending = _START + rest if mark == _START else rest
        return bool(mark)

    def _find_kind(self) -> bool:
        """Find out whether a message without a recipient is calls. Returns False if more text is needed."""
        rest = self._pending.lstrip(SPACE)
        if not self._final and self._call_mark.startswith(rest):
            return False
        self._state = _CALLS if rest.startswith(self._call_mark) else _TEXT
        return True

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._state is _CALLS:
            self._add(self._calls.feed(text))
        else:
            self._add([Thought(text) if self._state is _THOUGHT else Text(text)])

    def _end_calls(self) -> None:
        self._add(self._calls.finish(cut_off=self._cut_off and not self._pending))
