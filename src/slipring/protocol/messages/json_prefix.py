"""How much of a text is the beginning of a JSON object. The text comes in pieces, as a model writes it.

Clients parse the input of a call while it comes, and fail if it cannot become JSON. What a model writes
beyond that point is therefore not sent to them.
"""

import re

_MOST_DEPTH = 190
"""Parsers of clients refuse values that are deeper than 200."""
_MOST_DIGITS = 4000
"""Characters of a number. Parsers of clients refuse longer ones, too."""
_HEX = "[0-9a-fA-F]"
_PLAIN = r'[^"\\\x00-\x1f]*+'
_CODE = r"u(?:[0-9a-cefA-CEF]XXX|[dD][0-7]XX|[dD][89abAB]XX\\u[dD][c-fC-F]XX)".replace("X", _HEX)
_CHARACTERS = re.compile(rf'{_PLAIN}(?:\\(?:["\\/bfnrt]|{_CODE}){_PLAIN})*+')
"""The text of a string, as far as it has whole characters."""
_BEGUN_ESCAPE = re.compile(
    r"\\(?:u(?:[dD][89abAB]XX(?:\\(?:u(?:[dD](?:[c-fC-F]X?)?)?)?)?|X{0,3}))?".replace("X", _HEX)
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_BEGUN_NUMBER = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*+)(?:\.(?:[0-9]++(?:[eE][+-]?[0-9]*+)?)?|[eE][+-]?[0-9]*+)?)?"
)
_BEGUN_LITERAL = re.compile("t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?")
_LITERALS = ("true", "false", "null")
_VALUE = '{["-0123456789tfn'
_ALLOWED = {
    **{"start": "{", "first key": '"}', "key": '"', "colon": ":", "value": _VALUE},
    **{"first item": _VALUE + "]", "after": ",]}", "end": ""},
}
"""By state: what may follow, outside of strings, after white space."""


class JsonPrefix:
    """Follows one text."""

    __slots__ = ("_after_string", "_begun", "_stack", "_state", "is_broken")

    def __init__(self) -> None:
        self._state = "start"
        self._after_string = ""
        """The state that follows the string."""
        self._stack: list[str] = []
        """What closes the open objects and lists."""
        self._begun = ""
        """The beginning of an escape, a number or a literal, at the end of what was accepted."""
        self.is_broken = False
        """Whether the text cannot become a JSON object any more."""

    @property
    def is_whole(self) -> bool:
        """Whether the text so far is a whole object."""
        return self._state == "end"

    def accept(self, piece: str) -> str:
        """The beginning of a piece that may follow what was accepted before: all of it, unless the text
        breaks."""
        if self.is_broken:
            return ""
        text, known = self._begun + piece, len(self._begun)
        self._begun, at = "", 0
        while at < len(text) and not self.is_broken:
            at = self._in_string(text, at) if self._state == "string" else self._between(text, at)
        return text[known:at]

    def _in_string(self, text: str, at: int) -> int:
        found = _CHARACTERS.match(text, at)
        assert found is not None
        at = found.end()
        if text[at : at + 1] == '"':
            self._state = self._after_string
            return at + 1
        if at < len(text):
            escape = _BEGUN_ESCAPE.match(text, at)
            return self._begin(text, at, escape.end() if escape else at)
        return at

    def _begin(self, text: str, at: int, end: int) -> int:
        """What is not whole yet is from ``at`` to ``end``; the text breaks there unless it ends there."""
        self.is_broken = end < len(text)
        self._begun = text[at:end]
        return end

    def _between(self, text: str, at: int) -> int:
        """Take a character outside of strings, or a number or a literal."""
        char, state, closing = text[at], self._state, self._stack[-1] if self._stack else ""
        if char in " \t\r\n":
            return at + 1
        is_deep = char in "{[" and len(self._stack) == _MOST_DEPTH
        if char not in _ALLOWED[state] or (char in "]}" and char != closing) or is_deep:
            self.is_broken = True
            return at
        if char in "{[":
            self._stack.append("}" if char == "{" else "]")
            self._state = "first key" if char == "{" else "first item"
        elif char in "]}":
            self._stack.pop()
            self._state = "after" if self._stack else "end"
        elif char == '"':
            self._state, self._after_string = "string", "colon" if state.endswith("key") else "after"
        elif char in ",:":
            self._state = "key" if char == "," and closing == "}" else "value"
        else:
            return self._scalar(text, at, _BEGUN_LITERAL if char in "tfn" else _BEGUN_NUMBER)
        return at + 1

    def _scalar(self, text: str, at: int, begun: re.Pattern[str]) -> int:
        """Take a literal or a number. A number that ends the text may go on in the next piece."""
        found = begun.match(text, at, at + _MOST_DIGITS)
        assert found is not None
        end = found.end()
        is_number = end < len(text) and _NUMBER.fullmatch(text, at, end) is not None
        if not is_number and found.group() not in _LITERALS:
            return self._begin(text, at, end)
        self._state = "after"
        return end
