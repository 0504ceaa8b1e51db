"""JSON texts as their readers get them: with characters in place of escapes.

A tool reads ``zebra`` in the arguments ``{"x":"\\u007aebra"}``, and so does a client in an answer that is
JSON. Checks inspect that, keys of objects included, and not the spelling. What is outside of strings stays as
it is, so that a text without escapes is inspected as it was written.
"""

import re
from collections import deque

import msgspec
from msgspec import Raw, Struct

_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf'\\(?:{_HIGH}\\{_LOW}|u[0-9a-fA-F]{{4}}|["\\/bfnrt])')
_UNFINISHED = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_HIGH_ALONE = re.compile(rf"\\{_HIGH}")
_PART_OF_LOW = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")
_SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NO_CHARACTER = "\ufffd"
"""Stands for half of a surrogate pair without the other half."""
_json = msgspec.json.Decoder(Raw)


def unescaped(text: str) -> str:
    """A JSON text, or a part of one, with characters in place of escapes."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def as_read(text: str) -> str:
    """A text that a reader takes as JSON. If it is not, the reader may take it as it is: then both forms are
    returned."""
    if "\\" not in text:
        return text
    return unescaped(text) if _is_json(text) else f"{text}\n{unescaped(text)}"


def as_read_if_json(text: str) -> str:
    """A text that may be JSON, such as the output of a tool."""
    return unescaped(text) if "\\" in text and _is_json(text) else text


def _is_json(text: str) -> bool:
    try:
        _json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _character(escape: re.Match[str]) -> str:
    spelled = escape[0]
    if spelled[1] != "u":
        return _SHORT[spelled[1]]
    code = int(spelled[2:6], 16)
    if len(spelled) > _LENGTH:
        return chr(0x10000 + ((code - 0xD800) << 10) + int(spelled[8:12], 16) - 0xDC00)
    return _NO_CHARACTER if 0xD800 <= code <= 0xDFFF else chr(code)


_LENGTH = len(r"\u0000")


class _Escapes(Struct, frozen=True):
    """A piece with escapes: where it begins and ends, as it is read and as it was written."""

    read_from: int
    read_to: int
    written_from: int
    written_to: int


class GrowingJson:
    """A JSON text that is still being written. Pieces may end within an escape."""

    __slots__ = ("_ahead", "_pieces", "_read", "_unfinished", "_written")

    def __init__(self) -> None:
        self._unfinished = ""
        """The beginning of an escape at the end of what was written."""
        self._read = self._written = 0
        """Lengths, both without what is unfinished."""
        self._pieces: deque[_Escapes] = deque()
        self._ahead = 0
        """How much longer than what is read is what was written, before the first of the pieces."""

    def add(self, written: str) -> str:
        """The text has grown: returns what can be read now."""
        if not self._unfinished and "\\" not in written:
            self._read += len(written)
            self._written += len(written)
            return written
        text = self._unfinished + written
        end = _finished_end(text)
        self._unfinished = text[end:]
        return self._take(text[:end])

    def close(self) -> str:
        """The text has ended: returns the rest of it."""
        rest, self._unfinished = self._unfinished, ""
        return self._take(rest)

    def _take(self, written: str) -> str:
        read = unescaped(written)
        read_to, written_to = self._read + len(read), self._written + len(written)
        if written:
            self._pieces.append(_Escapes(self._read, read_to, self._written, written_to))
        self._read, self._written = read_to, written_to
        return read

    def written_before(self, position: int) -> int:
        """How long the text as written is that only this position of what is read depends on: pieces with
        escapes count as a whole, or not at all. Positions may not become smaller from call to call."""
        pieces = self._pieces
        while pieces and pieces[0].read_to <= position:
            passed = pieces.popleft()
            self._ahead = passed.written_to - passed.read_to
        if pieces and pieces[0].read_from <= position:
            return pieces[0].written_from
        return position + self._ahead


def _finished_end(text: str) -> int:
    """Where an escape begins at the end of a text that is not finished, or may be half of a pair; the length
    of the text if none does."""
    end, last = 0, ""
    for escape in _ESCAPE.finditer(text):
        end, last = escape.end(), escape[0]
    if _HIGH_ALONE.fullmatch(last) and _PART_OF_LOW.fullmatch(text, end):
        return end - len(last)
    begun = text.rfind("\\", end)
    return begun if begun >= 0 and _UNFINISHED.fullmatch(text, begun) else len(text)
