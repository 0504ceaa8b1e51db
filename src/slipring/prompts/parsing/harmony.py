"""Parses Harmony, the format of gpt-oss: answers are messages, each with a channel and perhaps a recipient.

``<|channel|>analysis<|message|>…<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>{…}``

- ``analysis`` is thought. A message to ``functions.f`` is a call, in any channel. All else is text; two
  messages of text, or of thought, in a row are separated by an empty line.
- The arguments of a function are emitted as they arrive, and its call ends with their last brace. If they
  break off, the call is incomplete, and the rest of the message is emitted as the model wrote it.
- A message to another recipient, or one that does not begin as a valid call, is emitted as the model wrote
  it, header and marks included.
- The prompt ends with ``<|start|>assistant``, so an answer begins inside a header. Text that begins without
  a header is text.
- Marks that end messages may be missing: engines drop tokens that end an answer.
"""

import re
from enum import Enum
from typing import Final

from slipring.core.generation import Text, Thought
from slipring.prompts.parsing.calls.call_arguments import (
    arguments_of_json,
    arguments_of_members,
    end_call,
    stream_json,
)
from slipring.prompts.parsing.calls.call_reader import OfferedTools
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, MessageParser, Reading, marker_finder
from slipring.prompts.parsing.output_format import HARMONY_MARKS
from slipring.protocol.tools.toolset import CallableTool

_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN = HARMONY_MARKS
_MAX_HEADER: Final = 1024
_HEADER_STARTS: Final = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, "to=")
_HEADER_ENDS: Final = marker_finder(_MESSAGE, _END, _CALL, _RETURN)
_CONTENT_ENDS: Final = marker_finder(_END, _CALL, _RETURN, _START, _CHANNEL)
_NOTHING: Final = marker_finder()
_CHANNEL_NAME: Final = re.compile(re.escape(_CHANNEL) + r"\s*(\w*)")
_RECIPIENT: Final = re.compile(r"(?<![\w=])to=([^\s<]+)")
_NAMESPACE: Final = "functions."
_PEOPLE: Final = ("assistant", "user", "all")
"""Recipients that are not tools."""


class _State(Enum):
    HEADER = 0
    TEXT = 1
    THOUGHT = 2
    TOOL = 3


_HEADER, _TEXT, _THOUGHT, _TOOL = _State


class HarmonyParser(MessageParser):
    """Parses one answer."""

    def __init__(self, tools: OfferedTools, *, thinking: bool, starts_thinking: bool) -> None:
        super().__init__()
        self._tools = tools
        self._thinking = thinking
        self._state = _THOUGHT if thinking and starts_thinking else _HEADER
        self._is_raw = False  # the current message is emitted with its marks
        self._header = ""
        self._in_thought = False  # the current call is in the channel of thoughts
        self._held = HeldText("", "")  # the content of the current call
        self._reading: Reading[None]

    @property
    def is_thinking(self) -> bool:
        return self._state is _THOUGHT

    @property
    def is_holding(self) -> bool:
        return self._state is _TOOL and not self._held.is_streaming

    @property
    def is_idle(self) -> bool:
        return self._state in (_TEXT, _HEADER) and not self._pending

    def _step(self) -> bool:
        return self._read_header() if self._state is _HEADER else self._read_content()

    def _read_content(self) -> bool:
        text, mark, rest = _CONTENT_ENDS.cut(self._pending, last=self._final)
        begins_next = mark in (_START, _CHANNEL)
        self._pending = mark + rest if begins_next else rest
        if self._state is _TOOL:
            text = self._read_call(text, is_last=bool(mark) or self._final)
        self._emit(text)
        if not mark:
            return False
        if self._is_raw and not begins_next:
            self._emit(mark)
        self._is_raw = False
        self._state = _HEADER
        return True

    def _read_header(self) -> bool:
        """Read the header of a message. What cannot be one is text."""
        rest = self._pending.lstrip(SPACE)
        if len(self._pending) - len(rest) > _MAX_HEADER:
            return self._read_without_header("")
        start = next((each for each in _HEADER_STARTS if rest.startswith(each)), "")
        if not start:
            if not self._final and any(each.startswith(rest) for each in _HEADER_STARTS):
                return False
            if not rest and (self._header or not self._pending):
                return False  # white space after a message
            return self._read_without_header("")
        header, mark, _ = _HEADER_ENDS.cut(rest, last=True)
        if mark == _MESSAGE and len(header) <= _MAX_HEADER:
            self._pending = rest[len(header) + len(mark) :]
            self._begin(header)
            return True
        if not mark and len(rest) <= _MAX_HEADER and not self._final:
            return False
        self._pending = rest[len(start) :]
        return self._read_without_header(start)

    def _read_without_header(self, text: str) -> bool:
        """Read text that no header precedes."""
        self._state = _TEXT
        self._is_empty = self._last_kind is not Text
        self._emit(text)
        return True

    def _begin(self, header: str) -> None:
        """Begin the message of a header."""
        channels, recipients = _CHANNEL_NAME.findall(header), _RECIPIENT.findall(header)
        self._in_thought = self._thinking and channels[-1:] == ["analysis"]
        self._state = _THOUGHT if self._in_thought else _TEXT
        self._header = header + _MESSAGE
        self._is_empty = True
        if not recipients or recipients[-1] in _PEOPLE:
            return
        tool = self._tools.by_name.get(recipients[-1].removeprefix(_NAMESPACE))
        if tool is not None:
            self._state = _TOOL
            self._held = HeldText("", "")
            self._reading = _read(self._held, tool)
        else:
            self._is_raw = True
            self._emit(self._header)

    def _emit(self, text: str) -> None:
        if text:
            self._add([Thought(text) if self._state is _THOUGHT else Text(text)])

    def _read_call(self, text: str, *, is_last: bool) -> str:
        """Read a piece of the content of a call. Returns text that does not belong to the call: from then on
        the message is emitted as the model wrote it."""
        held = self._held
        held.pending += text
        held.is_last, held.is_cut_off = is_last, self._cut_off
        try:
            next(self._reading, None)
        except BrokenCall:
            if held.is_streaming:
                held.end(is_complete=False)
            self._state = _THOUGHT if self._in_thought else _TEXT
            self._is_raw = True
            text = "".join(held.taken) + held.pending
            text = text if held.has_called else self._header + text
        else:
            text = ""
        self._add(held.take_deltas())
        return text


def _read(held: HeldText, tool: CallableTool) -> Reading[None]:
    """Read the content of a call."""
    if (yield from stream_json(held, tool, trusted=False)):
        end_call(held, tool)
        yield from held.spaces()
        if (yield from held.next()):
            raise BrokenCall
        return
    content, _ = yield from held.until(_NOTHING)
    if held.is_cut_off:
        raise BrokenCall
    arguments = content.strip(SPACE)
    if tool.kind == "custom" and not arguments.startswith(("{", '"')):
        held.emit(tool, content)
    elif arguments:
        held.emit(tool, arguments_of_json(tool, arguments))
    else:
        held.emit(tool, arguments_of_members(tool, []))
