"""Where a JSON value that comes in pieces ends."""

import re
from typing import Final

SPACE: Final = " \t\r\n"
_DEEPEST: Final = 200
"""How far the JSON of a call may nest. Deeper ones are text: no client's parser would thank us."""
_IN_STRING: Final = re.compile(r'[^"\\\x00-\x1f]*')
_BETWEEN: Final = re.compile(r"[ \t\r\n,:0-9+\-.eEtrufalsn]*")
SPACES: Final = re.compile(f"[{SPACE}]*")
_CLOSERS: Final = {"{": "}", "[": "]"}


class Scanner:
    """Finds the end of a JSON object, or array of objects, that comes in pieces.

    It knows strings and brackets, enough to say early that most of what is not JSON is not; whether the rest
    is, its parser says.
    """

    __slots__ = ("_closers", "_escaped", "_expected", "complete", "in_string")

    def __init__(self) -> None:
        self.complete = False
        self.in_string = False
        self._closers: list[str] = []
        self._escaped = False
        self._expected = "{["

    def feed(self, text: str) -> int:
        """Read on; returns how far. Short of the end: the value is complete, or this is no JSON."""
        if self.goes_on(text):
            return len(text)
        at, stuck = 0, False
        while at < len(text) and not stuck and not self.complete:
            before = at
            at = self._read_string(text, at) if self.in_string else self._read_structure(text, at)
            stuck = at < len(text) and at == before
        return at

    def goes_on(self, text: str) -> bool:
        """Whether all of it is within the string at hand, and leaves it open."""
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
        elif text[at] == "\\":
            self._escaped = True
        else:
            return at
        return at + 1

    def _read_structure(self, text: str, at: int) -> int:
        at = skip(SPACES if self._expected else _BETWEEN, text, at)
        if at == len(text) or (self._expected and text[at] not in self._expected):
            return at
        return at + 1 if self._take(text[at]) else at

    def _take(self, character: str) -> bool:
        closers = self._closers
        self._expected = ""
        if character == '"':
            self.in_string = True
        elif character in _CLOSERS and len(closers) < _DEEPEST:
            self._expected = '"}' if character == "{" else "" if closers else "{"
            closers.append(_CLOSERS[character])
        elif closers and character == closers[-1]:
            closers.pop()
            self.complete = not closers
        else:
            return False
        return True


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what matches there ends."""
    match = pattern.match(text, at)
    return match.end() if match else at
