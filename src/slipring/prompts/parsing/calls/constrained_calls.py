"""Streaming of tool calls whose form a grammar enforces.

Arguments are JSON, any white space between tokens. After the name the grammar guarantees the rest, so
arguments are emitted piece by piece instead of at the end of the call: a function's as the model writes them,
a custom tool's (the string in ``{"input": "…"}``) decoded. If the answer is cut off, the arguments end there;
an incomplete escape sequence is dropped.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from slipring.core.generation import CallArguments, CallStarted, Delta
from slipring.prompts.parsing.calls.held_text import BrokenCall, HeldText, Reading
from slipring.prompts.parsing.calls.json_scanner import SPACE, skip
from slipring.protocol.tools import CallableTool

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
"""Names that JSON writes without escapes."""
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


def stream(held: HeldText, openings: "CallOpenings", braces: str, close: str) -> Reading[bool]:
    """Read a call and emit it as it arrives. ``braces`` and ``close`` follow its arguments.

    Returns False, and takes nothing, if the text does not begin as the grammar enforces it. Raises
    ``BrokenCall`` if it does not end so.
    """
    call = ConstrainedCall(openings, braces, close)
    while True:
        read, deltas = call.feed(held.pending)
        held.pending = held.pending[read:]
        held.deltas += deltas
        if call.started:
            held.is_streaming = True
            held.taken = call.held
        if call.complete or (call.started and call.conforms and held.is_last):
            held.taken = [close]
            return True
        if not call.conforms or held.is_last:
            break
        yield
    if call.started:
        raise BrokenCall
    held.pending = "".join(call.held) + held.pending
    return False


def json_openings(tools: Mapping[str, CallableTool], name_key: str, arguments_key: str) -> "CallOpenings":
    """The beginnings of calls of the form ``{"name": "…", "arguments": {…}}``, keys in this order."""
    return CallOpenings(
        {
            f'{{"{name_key}":"{name}","{arguments_key}":{_arguments_opening(tool)}': tool
            for name, tool in tools.items()
            if _PLAIN.fullmatch(name)
        }
    )


def arguments_openings(tool: CallableTool) -> "CallOpenings":
    """The beginning of the arguments of a tool."""
    return CallOpenings({_arguments_opening(tool): tool})


def _arguments_opening(tool: CallableTool) -> str:
    return '{"input":"' if tool.kind == "custom" else "{"


class CallOpenings:
    """The beginnings of calls, without white space, up to where the arguments begin, and their tools."""

    __slots__ = ("_sorted", "_tools")

    def __init__(self, tools: dict[str, CallableTool]) -> None:
        self._tools = tools
        self._sorted = sorted(tools)

    def __bool__(self) -> bool:
        return bool(self._tools)

    def may_become(self, text: str) -> bool:
        """Whether ``text`` is a prefix of any beginning."""
        at = bisect_left(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)

    def tool(self, text: str) -> CallableTool | None:
        """Return the tool whose call begins with exactly ``text``."""
        return self._tools.get(text)


class ConstrainedCall:
    """Reads one call, the braces after its arguments and the closing mark, if the format has one."""

    __slots__ = (
        *("_braces", "_call_close", "_closed", "_deltas", "_opening", "_openings", "_value", "conforms"),
        "held",
    )

    def __init__(self, openings: CallOpenings, braces: str, call_close: str) -> None:
        self.conforms = True
        """Whether the text so far has the enforced form."""
        self.held: list[str] = []
        """Characters read but not emitted: the beginning until it is complete, later the end."""
        self._openings = openings
        self._opening = ""
        self._value: _FunctionArguments | None = None
        self._closed = 0  # characters read of the closing braces and marker
        self._braces = braces
        self._call_close = call_close
        self._deltas: list[Delta] = []

    @property
    def started(self) -> bool:
        return self._value is not None

    @property
    def complete(self) -> bool:
        value = self._value
        if value is None or not value.complete:
            return False
        return self._closed == len(value.closing) + len(self._braces) + len(self._call_close)

    def feed(self, text: str) -> tuple[int, list[Delta]]:
        """Read ``text``; return how many characters were accepted, and the deltas they produce.

        Fewer than ``len(text)`` means that the call is complete or that the text does not conform.
        """
        at = 0
        while at < len(text) and self.conforms and not self.complete:
            value = self._value
            if value is None:
                at += self._read_opening(text[at])
            elif value.complete:
                at += self._read_closing(text[at], value.closing + self._braces)
            else:
                start, at = at, value.end(text, at)
                self._emit(value.read(text[start:at]))
        deltas, self._deltas = self._deltas, []
        return at, deltas

    def _read_opening(self, character: str) -> bool:
        in_string = self._opening.count('"') % 2 == 1
        opening = self._opening if character in SPACE and not in_string else self._opening + character
        self.conforms = self._openings.may_become(opening)
        if self.conforms:
            self._opening = opening
            self.held.append(character)
            if (tool := self._openings.tool(opening)) is not None:
                self._start(tool)
        return self.conforms

    def _start(self, tool: CallableTool) -> None:
        self.held.clear()
        self._deltas.append(CallStarted(tool.kind, tool.name, tool.namespace))
        self._value = _CustomInput() if tool.kind == "custom" else _FunctionArguments()
        self._emit(self._value.opening)

    def _emit(self, text: str) -> None:
        if text:
            self._deltas.append(CallArguments(text))

    def _read_closing(self, character: str, braces: str) -> bool:
        if character == (braces + self._call_close)[self._closed]:
            self._closed += 1
        else:
            self.conforms = character in SPACE and self._closed <= len(braces)
        if self.conforms:
            self.held.append(character)
        return self.conforms


class _FunctionArguments:
    """A function's arguments, after their opening brace."""

    opening = "{"
    closing = ""

    def __init__(self) -> None:
        self._depth = 1
        self._in_string = False
        self._escaped = False

    @property
    def complete(self) -> bool:
        return self._depth == 0 and not self._in_string

    def end(self, text: str, at: int) -> int:
        """Return where the value ends in ``text``, or ``len(text)`` if it does not end there."""
        while at < len(text) and not self.complete:
            if self._escaped:
                self._escaped = False
            else:
                at = skip(_IN_STRING if self._in_string else _BETWEEN, text, at)
                if at == len(text):
                    break
                self._read_character(text[at])
            at += 1
        return at

    def _read_character(self, character: str) -> None:
        if character == '"':
            self._in_string = not self._in_string
        elif character == "\\":
            self._escaped = True
        else:
            self._depth += 1 if character in "{[" else -1

    def read(self, text: str) -> str:
        """Return what to emit for a piece of the value."""
        return text


class _CustomInput(_FunctionArguments):
    """A custom tool's input, after its opening quote."""

    opening = ""
    closing = "}"

    def __init__(self) -> None:
        super().__init__()
        self._depth, self._in_string = 0, True
        self._half = ""  # an incomplete escape sequence

    def read(self, text: str) -> str:
        text, self._half = self._half + text, ""
        decoded = _ESCAPE.sub(self._decode, text)
        return decoded[:-1] if self.complete else decoded  # without the closing quote

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
