"""Calls that a grammar keeps to their form, read as they come.

The form is ``{"name": "…", "arguments": {…}}`` in that order, white space aside. Once the beginning has been
read the rest is known to follow, so arguments are given piece by piece: a function's as they are written, a
custom tool's (the string in ``{"input": "…"}``) decoded. Where an answer is cut off they end; half an escape
is dropped.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from slipring.core.generation import CallArguments, CallStarted, Delta
from slipring.prompts.parsing.json_scanner import SPACE, skip
from slipring.protocol.tools import CallableTool

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
"""Names that JSON writes as they are."""
_IN_STRING: Final = re.compile(r'[^"\\]*')
_BETWEEN: Final = re.compile(r'[^"{}\[\]]*')
_ESCAPE: Final = re.compile(
    r"""
      \\u(?P<high>[dD][89abAB]HH)\\u(?P<low>[dD][c-fC-F]HH)
    | (?P<half>\\ (u (H{0,3} | [dD][89abAB]HH (\\ (uH{0,3})?)?) )?)\Z
    | \\u(?P<code>HHHH)
    | \\(?P<letter>.)
    """.replace("H", "[0-9a-fA-F]"),
    re.VERBOSE | re.DOTALL,
)
_LETTERS: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Openings:
    """How calls begin, white space aside, up to the first character of what they carry."""

    __slots__ = ("_sorted", "_tools")

    def __init__(self, tools: Mapping[str, CallableTool], arguments_key: str) -> None:
        self._tools = {
            f'{{"name":"{name}","{arguments_key}":{{' + ('"input":"' if tool.kind == "custom" else ""): tool
            for name, tool in tools.items()
            if _PLAIN.fullmatch(name)
        }
        self._sorted = sorted(self._tools)

    def __bool__(self) -> bool:
        return bool(self._tools)

    def may_become(self, text: str) -> bool:
        """Whether a call may begin like this."""
        at = bisect_left(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)

    def tool(self, text: str) -> CallableTool | None:
        """The tool that is called by what begins exactly like this."""
        return self._tools.get(text)


class TrustedCall:
    """One call, and the marker after it, if there is one."""

    __slots__ = ("_call_close", "_closed", "_deltas", "_opening", "_openings", "_value", "follows", "held")

    def __init__(self, openings: Openings, call_close: str) -> None:
        self.follows = True
        """Whether all that came is of the form."""
        self.held: list[str] = []
        """What was read and not given: the beginning until it is complete, then the end."""
        self._openings = openings
        self._opening = ""
        self._value: _Object | None = None
        self._closed = 0  # how much of what ends the call has come
        self._call_close = call_close
        self._deltas: list[Delta] = []

    @property
    def started(self) -> bool:
        return self._value is not None

    @property
    def complete(self) -> bool:
        value = self._value
        return value is not None and self._closed == len(value.closing) + len(self._call_close)

    def feed(self, text: str) -> tuple[int, list[Delta]]:
        """Read on; returns how far, and what that gives. Short of the end: the call is, or left its form."""
        at = 0
        while at < len(text) and self.follows and not self.complete:
            value = self._value
            if value is None:
                at += self._take_opening(text[at])
            elif value.complete:
                at += self._take_closing(text[at], value.closing)
            else:
                start, at = at, value.end(text, at)
                self._give(value.read(text[start:at]))
        given, self._deltas = self._deltas, []
        return at, given

    def _take_opening(self, character: str) -> bool:
        in_string = self._opening.count('"') % 2 == 1
        opening = self._opening if character in SPACE and not in_string else self._opening + character
        self.follows = self._openings.may_become(opening)
        if self.follows:
            self._opening = opening
            self.held.append(character)
            if (tool := self._openings.tool(opening)) is not None:
                self._start(tool)
        return self.follows

    def _start(self, tool: CallableTool) -> None:
        self.held.clear()
        self._deltas.append(CallStarted(tool.kind, tool.name, tool.namespace))
        self._value = _Input() if tool.kind == "custom" else _Object()
        self._give(self._value.opening)

    def _give(self, text: str) -> None:
        if text:
            self._deltas.append(CallArguments(text))

    def _take_closing(self, character: str, braces: str) -> bool:
        if character == (braces + self._call_close)[self._closed]:
            self._closed += 1
        else:
            self.follows = character in SPACE and self._closed <= len(braces)
        if self.follows:
            self.held.append(character)
        return self.follows


class _Object:
    """A function's arguments, from behind their first brace on."""

    opening = "{"
    closing = "}"

    def __init__(self) -> None:
        self._depth = 1
        self._in_string = False
        self._escaped = False

    @property
    def complete(self) -> bool:
        return self._depth == 0 and not self._in_string

    def end(self, text: str, at: int) -> int:
        """Where the value ends in what comes next, or the text does."""
        while at < len(text) and not self.complete:
            if self._escaped:
                self._escaped = False
            else:
                at = skip(_IN_STRING if self._in_string else _BETWEEN, text, at)
                if at == len(text):
                    break
                self._pass(text[at])
            at += 1
        return at

    def _pass(self, character: str) -> None:
        if character == '"':
            self._in_string = not self._in_string
        elif character == "\\":
            self._escaped = True
        else:
            self._depth += 1 if character in "{[" else -1

    def read(self, text: str) -> str:
        """What a piece of the value gives."""
        return text


class _Input(_Object):
    """A custom tool's input, from behind its first quote on."""

    opening = ""
    closing = "}}"

    def __init__(self) -> None:
        super().__init__()
        self._depth, self._in_string = 0, True
        self._half = ""  # of an escape that is not complete

    def read(self, text: str) -> str:
        text, self._half = self._half + text, ""
        said = _ESCAPE.sub(self._decode, text)
        return said[:-1] if self.complete else said

    def _decode(self, escape: re.Match[str]) -> str:
        high, low, half, code, letter = escape.group("high", "low", "half", "code", "letter")
        if half:
            self._half = half
            return ""
        if high:
            return bytes.fromhex(high + low).decode("utf-16-be")
        if code:
            return bytes.fromhex(code).decode("utf-16-be", "replace")
        return _LETTERS.get(letter, escape.group())
