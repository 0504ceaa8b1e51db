"""Server-sent events: an incremental parser with bounded memory."""

import re
from typing import NamedTuple

from slipring.mcp.failures import TooLarge

_LINE_END = re.compile(rb"\r\n|\n|\r")
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
        if self._ended_in_return and piece:
            piece = piece.removeprefix(b"\n")
            self._ended_in_return = False
        if piece:
            self._ended_in_return = piece.endswith(b"\r")
        events: list[Event] = []
        start = 0
        for end in _LINE_END.finditer(piece):
            self._extend(self._line, piece[start : end.start()])
            start = end.end()
            if (event := self._end_line()) is not None:
                events.append(event)
        self._extend(self._line, piece[start:])
        return events

    def continued(self) -> "SseParser":
        """Return a parser for the stream that resumes this one after its last event."""
        other = SseParser(self._max)
        other.last_event_id, other.retry_s = self.last_event_id, self.retry_s
        return other

    def _end_line(self) -> Event | None:
        line = bytes(self._line)
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
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
        return None

    def _dispatch(self) -> Event | None:
        kind, data = self._type or "message", bytes(self._data[:-1])
        self._type = ""
        self._data.clear()
        return Event(kind, data) if data else None

    def _extend(self, buffer: bytearray, more: bytes) -> None:
        buffer += more
        if len(self._line) + len(self._data) > self._max:
            raise TooLarge(f"the MCP server sent an event of more than {self._max} bytes")
