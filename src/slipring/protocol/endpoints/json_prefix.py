"""How much of a text is the beginning of a JSON object. The text comes in pieces, as a model writes it.

Clients parse the input of a call while it comes, and fail if it cannot become JSON. What a model writes
beyond that point is therefore not sent to them.
"""

import re

_MOST_DEPTH = 190
"""Parsers of clients refuse values that are deeper than 200."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
"""Characters that change nothing within a string."""
_SPACE = " \t\r\n"
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_ESCAPES = '"\\/bfnrt'
_NUMBERS: dict[str, dict[str, str]] = {
    "minus": {"0": "zero", "1": "whole"},
    "zero": {".": "dot", "e": "mark"},
    "whole": {"0": "whole", "1": "whole", ".": "dot", "e": "mark"},
    "dot": {"0": "fraction", "1": "fraction"},
    "fraction": {"0": "fraction", "1": "fraction", "e": "mark"},
    "mark": {"0": "exponent", "1": "exponent", "+": "sign"},
    "sign": {"0": "exponent", "1": "exponent"},
    "exponent": {"0": "exponent", "1": "exponent"},
}
"""What may follow within a number: ``1`` stands for all digits but zero, ``e`` and ``+`` also for ``E`` and
``-``."""
_WHOLE_NUMBERS = ("zero", "whole", "fraction", "exponent")


def _digit(char: str) -> str:
    if char in "123456789":
        return "1"
    return "e" if char == "E" else "+" if char == "-" else char


class JsonPrefix:
    """Follows one text."""

    __slots__ = ("_codepoint", "_high", "_is_key", "_left", "_stack", "_state", "is_broken")

    def __init__(self) -> None:
        self._state = "start"
        self._stack: list[str] = []
        """What closes the open objects and lists."""
        self._is_key = False
        """Whether the string is the key of an object."""
        self._left = ""
        """What follows of a literal; in an escape, the digits so far."""
        self._high = False
        """Whether the first half of a pair of surrogates was escaped."""
        self._codepoint = ""
        self.is_broken = False
        """Whether the text cannot become a JSON object any more."""

    @property
    def is_whole(self) -> bool:
        """Whether the text so far is a whole object."""
        return self._state == "end"

    def accept(self, piece: str) -> str:
        """The beginning of a piece that may follow what was accepted before: all of it, unless the text
        breaks."""
        at, size = 0, len(piece)
        while at < size and not self.is_broken:
            if self._state == "string" and not self._high:
                found = _PLAIN.match(piece, at)
                assert found is not None
                if (at := found.end()) == size:
                    break
            self.is_broken = not self._step(piece[at])
            at += not self.is_broken
        return piece[:at]

    def _step(self, char: str) -> bool:
        """Take the next character; returns whether it may stand here."""
        state = self._state
        if state in _NUMBERS:
            following = _NUMBERS[state].get(_digit(char))
            if following is not None:
                self._state = following
                return True
            if state not in _WHOLE_NUMBERS:
                return False
            self._state = "after"
            return self._step(char)
        if state in ("string", "escape", "hex"):
            return self._in_string(char)
        if state == "literal":
            is_next, self._left = char == self._left[0], self._left[1:]
            self._state = "literal" if self._left else "after"
            return is_next
        if char in _SPACE:
            return True
        return self._between(char)

    def _in_string(self, char: str) -> bool:
        if self._state == "hex":
            return self._hex(char)
        if self._state == "escape":
            if char == "u":
                self._state, self._codepoint = "hex", ""
                return True
            self._state = "string"
            return char in _ESCAPES and not self._high
        if char == "\\":
            self._state = "escape"
            return True
        if self._high or char < " ":
            return False
        self._state = "colon" if self._is_key else "after"  # only a quotation mark is left
        return True

    def _hex(self, char: str) -> bool:
        if char not in "0123456789abcdefABCDEF":
            return False
        self._codepoint += char
        if len(self._codepoint) < 4:
            return True
        kind = int(self._codepoint, 16) >> 10
        self._state = "string"
        is_paired = (kind == 0x37) == self._high  # the second half of a pair follows its first half only
        self._high = kind == 0x36
        return is_paired

    def _between(self, char: str) -> bool:
        """A character outside of strings, numbers and literals."""
        state = self._state
        if state == "start":
            return char == "{" and self._open(char)
        if state in ("first key", "key"):
            if char == '"':
                self._state, self._is_key = "string", True
                return True
            return state == "first key" and self._close(char)
        if state == "colon":
            self._state = "value"
            return char == ":"
        if state == "after":
            if char == ",":
                self._state = "key" if self._stack[-1] == "}" else "value"
                return True
            return self._close(char)
        if state == "end":
            return False
        return self._value(char) or (state == "first item" and self._close(char))

    def _value(self, char: str) -> bool:
        if char in "{[":
            return self._open(char)
        if char == '"':
            self._state, self._is_key = "string", False
        elif char in _LITERALS:
            self._state, self._left = "literal", _LITERALS[char]
        elif char in "-0123456789":
            self._state = "minus" if char == "-" else "zero" if char == "0" else "whole"
        else:
            return False
        return True

    def _open(self, char: str) -> bool:
        self._stack.append("}" if char == "{" else "]")
        self._state = "first key" if char == "{" else "first item"
        return len(self._stack) <= _MOST_DEPTH

    def _close(self, char: str) -> bool:
        if not self._stack or char != self._stack[-1]:
            return False
        self._stack.pop()
        self._state = "after" if self._stack else "end"
        return True
