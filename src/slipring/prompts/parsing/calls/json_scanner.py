"""Finds the end of a JSON value that arrives in pieces, and builds JSON from text, so that numbers and the
order of keys stay as the model wrote them."""

import json
import re
from typing import Final

import msgspec

SPACE: Final = " \t\r\n"
_MAX_DEPTH: Final = 200
"""Call JSON nested deeper than this is passed on as text: clients' JSON parsers would reject it too."""
_IN_STRING: Final = re.compile(r'[^"\\\x00-\x1f]*')
_BETWEEN: Final = re.compile(r"[ \t\r\n,:0-9+\-.eEtrufalsn]*")
SPACES: Final = re.compile(f"[{SPACE}]*")
_CLOSERS: Final = {"{": "}", "[": "]"}
Members = list[tuple[str, str]]
"""The keys of an object and their values as JSON text."""
_any = msgspec.json.Decoder()
_encode = json.JSONEncoder(ensure_ascii=False).encode  # ``json.dumps`` would make an encoder for each text


class JsonScanner:
    """Finds the end of a JSON value that is an object, an array or a string.

    Checks only strings and brackets. That rejects most text that is not JSON early; the JSON decoder
    validates the rest.
    """

    __slots__ = ("_closers", "_entries", "_escaped", "_expected", "complete", "in_string")

    def __init__(self, opening: str, *, entries: str = "") -> None:
        """``opening``: the characters with which the value may begin. ``entries``: the one with which the
        entries of an array begin, if that is known."""
        self.complete = False
        self.in_string = False
        self._closers: list[str] = []
        self._escaped = False
        self._expected = opening
        self._entries = entries

    def feed(self, text: str) -> int:
        """Read ``text`` and return how many characters were accepted.

        Fewer than ``len(text)`` means that the value is complete or that the text is not JSON.
        """
        if self.stays_in_string(text):
            return len(text)
        at, stuck = 0, False
        while at < len(text) and not stuck and not self.complete:
            before = at
            at = self._read_string(text, at) if self.in_string else self._read_structure(text, at)
            stuck = at < len(text) and at == before
        return at

    def stays_in_string(self, text: str) -> bool:
        """Whether all of ``text`` belongs to the current string and does not end it."""
        return self.in_string and not self._escaped and _IN_STRING.fullmatch(text) is not None

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = text[at] not in '"\\/bfnrtu'
            return at if self._escaped else at + 1
        at = skip(_IN_STRING, text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self.in_string = False
            self.complete = not self._closers
        elif text[at] == "\\":
            self._escaped = True
        else:
            return at
        return at + 1

    def _read_structure(self, text: str, at: int) -> int:
        at = skip(SPACES if self._expected else _BETWEEN, text, at)
        if at == len(text) or (self._expected and text[at] not in self._expected):
            return at
        return at + 1 if self._accept(text[at]) else at

    def _accept(self, character: str) -> bool:
        closers = self._closers
        self._expected = ""
        if character == '"':
            self.in_string = True
        elif character in _CLOSERS and len(closers) < _MAX_DEPTH:
            self._expected = '"}' if character == "{" else "" if closers else self._entries
            closers.append(_CLOSERS[character])
        elif closers and character == closers[-1]:
            closers.pop()
            self.complete = not closers
        else:
            return False
        return True


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where the match of ``pattern`` at position ``at`` ends, or ``at`` without a match."""
    match = pattern.match(text, at)
    return match.end() if match else at


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return _encode(text)


def object_text(members: Members) -> str:
    """A JSON object."""
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in members) + "}"


def array_text(values: list[str]) -> str:
    """A JSON array."""
    return "[" + ", ".join(values) + "]"


def type_of(text: str) -> str:
    """The type of a JSON document in the words of JSON Schema; empty if the text is not JSON."""
    try:
        value = _any.decode(text)
    except (ValueError, RecursionError):
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
