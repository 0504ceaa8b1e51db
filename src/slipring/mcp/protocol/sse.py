"""Server-sent events: an incremental parser with bounded memory."""

import re
from typing import NamedTuple

from slipring.mcp.failures import TooLarge

_NOISE = re.compile(rb"^(?!data|event|id|retry|$)[^\n]*\n", re.MULTILINE)
_BLANKS = re.compile(rb"\n{3,}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_RETRY_DIGITS = 9


class Event(NamedTuple):
    """One event: its type, and its data without the line breaks' encoding."""

    type: str
    data: bytes


class SseParser:
    """Turns the bytes of one event stream into events.

    Keeps at most ``max_event_bytes`` of an unfinished event. ``last_event_id`` and ``retry_s`` are what the
    server sent last, None before that.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self._line = bytearray()
        self._ended_in_return = False
        self._is_first_line = True
        self._type = ""
        self._data = bytearray()
        self.last_event_id: str | None = None
        self.retry_s: float | None = None

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that ``piece`` completes. Raises ``TooLarge``."""
        if not piece:
            return []
        if self._ended_in_return:
            piece = piece.removeprefix(b"\n")
        self._ended_in_return = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines, end, rest = piece.rpartition(b"\n")
        events = self._take_lines(lines + end) if end else []
        self._extend(self._line, rest)
        return events

    def _take_lines(self, text: bytes) -> list[Event]:
        """Take whole lines. What means nothing is removed first: Python is not run for each line of it."""
        text = bytes(self._line) + text
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            text = text.removeprefix(_BYTE_ORDER_MARK)
        text = _BLANKS.sub(b"\n\n", _NOISE.sub(b"", text))
        events: list[Event] = []
        for line in text.split(b"\n")[:-1]:
            if not line:
                if self._data:
                    events.append(Event(self._type or "message", bytes(self._data[:-1])))
                    self._data.clear()
                self._type = ""
            else:
                self._take_field(line)
        return [event for event in events if event.data]

    def continued(self) -> "SseParser":
        """Return a parser for the stream that resumes this one after its last event."""
        other = SseParser(self._max)
        other.last_event_id, other.retry_s = self.last_event_id, self.retry_s
        return other

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._extend(self._data, value + b"\n")
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self.last_event_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY_DIGITS:
            self.retry_s = int(value) / 1000

    def _extend(self, buffer: bytearray, more: bytes) -> None:
        buffer += more
        if len(self._line) + len(self._data) > self._max:
            raise TooLarge(f"the MCP server sent an event of more than {self._max} bytes")
