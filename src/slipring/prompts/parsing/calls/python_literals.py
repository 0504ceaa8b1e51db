"""Python literals as JSON text, and calls with keyword arguments. Nothing is evaluated."""

import re
from collections.abc import Iterator
from typing import Final

from slipring.prompts.parsing.calls.json_scanner import Members, array_text, object_text, quoted

MAX_DEPTH: Final = 64
"""Literals nested deeper than this are not read."""
_SPACES: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_NAME: Final = re.compile(r"[^\W\d][\w.\-]*")
_STRING: Final = re.compile(
    r'"""(?P<a>[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*)"""'
    r"|'''(?P<b>[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*)'''"
    r'|"(?P<c>[^"\\]*(?:\\.[^"\\]*)*)"'
    r"|'(?P<d>[^'\\]*(?:\\.[^'\\]*)*)'",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "\n": ""}
_KEPT: Final = "\\'\"/"
_WORDS: Final = {
    "True": "true",
    "true": "true",
    "False": "false",
    "false": "false",
    "None": "null",
    "null": "null",
}


def python_literal(text: str) -> str | None:
    """The JSON text of a Python literal; None if the text is something else."""
    reader = LiteralReader(text)
    try:
        value = reader.value()
        reader.end()
    except ValueError:
        return None
    return value


class TextCursor:
    """A place in a text. Its methods skip white space, and raise ``ValueError`` for other text than asked."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        self._skip_space()
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError
        self._at = match.end()
        return match

    def _has(self, mark: str) -> bool:
        self._skip_space()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _take(self, mark: str) -> None:
        if not self._has(mark):
            raise ValueError

    def _skip_space(self) -> None:
        match = _SPACES.match(self._text, self._at)
        assert match is not None
        self._at = match.end()


class LiteralReader(TextCursor):
    """Reads literals and calls from a text. Raises ``ValueError`` where it finds something else."""

    __slots__ = ("_depth",)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def call(self) -> Members:
        """Read a call up to the end of the text; return its arguments."""
        self._match(_NAME)
        self._take("(")
        members = [(self._key("="), self.value()) for _ in self._entries(")")]
        self.end()
        return members

    def end(self) -> None:
        """Check that nothing but white space is left."""
        self._skip_space()
        if self._at < len(self._text):
            raise ValueError

    def value(self) -> str:
        """Read one literal."""
        self._skip_space()
        following = self._text[self._at : self._at + 1]
        if following and following in "\"'":
            return quoted(self._string())
        if following in _CLOSING:
            return self._container(following)
        if name := _NAME.match(self._text, self._at):
            self._at = name.end()
            if name.group() not in _WORDS:
                raise ValueError
            return _WORDS[name.group()]
        return self._match(_NUMBER).group()

    def _container(self, opening: str) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError
        self._take(opening)
        if opening == "{":
            text = object_text([(self._key(":"), self.value()) for _ in self._entries("}")])
        else:
            text = array_text([self.value() for _ in self._entries(_CLOSING[opening])])
        self._depth -= 1
        return text

    def _entries(self, closing: str) -> Iterator[None]:
        """Yield before each entry up to ``closing``. Commas separate entries, and one may follow the last."""
        if self._has(closing):
            return
        yield
        while not self._has(closing):
            self._take(",")
            if self._has(closing):
                return
            yield

    def _key(self, sign: str) -> str:
        """Read the key of a member and the sign after it: a name before ``=``, a string before ``:``."""
        key = self._match(_NAME).group() if sign == "=" else self._string()
        self._take(sign)
        return key

    def _string(self) -> str:
        match = self._match(_STRING)
        text = next(group for group in match.groups() if group is not None)
        return decoded(text) if "\\" in text else text


def decoded(text: str) -> str:
    """A string without its quotes, with its escapes decoded. Unknown escapes stay as they are."""
    text = _ESCAPE.sub(_character, text)
    # Two escapes of one character, as JSON writes it, become that character; no text has half of one.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    letter = escape.group(4)
    if letter is not None:
        return letter if letter in _KEPT else _LETTERS.get(letter, escape.group())
    code = int(escape.group(1) or escape.group(2) or escape.group(3), 16)
    return chr(code) if code <= 0x10FFFF else escape.group()
