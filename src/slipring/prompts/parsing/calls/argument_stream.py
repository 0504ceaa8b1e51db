"""Emits the arguments of calls as they arrive.

Once the name of an offered function is certain, its arguments are streamed. Their last brace is held back
until the call is complete. So a call that the model breaks off has no complete JSON as its arguments, and no
client can run it by mistake.

The calls of custom tools have no status that could say the same. Their input (the string in
``{"input": "…"}``, decoded) is therefore streamed only if a grammar enforces the rest of the call.
"""

import re
from typing import Final

from slipring.prompts.parsing.calls.held_text import BrokenCall, HeldText, Reading
from slipring.prompts.parsing.calls.json_scanner import Members, quoted
from slipring.prompts.parsing.calls.offered_tools import arguments_of_json, arguments_of_members
from slipring.protocol.tools import CallableTool

_IN_STRING: Final = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
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


def stream_json(held: HeldText, tool: CallableTool, *, trusted: bool) -> Reading[bool]:
    """Read the arguments of a call that are JSON and emit them as they arrive. ``end_call`` has to follow.

    Returns False, and takes nothing, if they cannot be streamed. ``trusted``: a grammar enforces the form of
    the call.
    """
    if tool.kind == "function" and (yield from _begins_with(held, "{", peek='"}')):
        yield from held.spaces()
        held.begin(tool)
        arguments_of_json(tool, (yield from held.write_json()))
        return True
    if tool.kind == "custom" and trusted and (yield from _begins_with(held, "{", '"input"', ":", '"')):
        held.begin(tool)
        yield from _write_input(held)
        yield from held.spaces()
        yield from held.require("}")
        return True
    return False


def end_call(held: HeldText, tool: CallableTool) -> None:
    """End a call whose arguments were streamed."""
    held.write("}" if tool.kind == "function" else "")
    held.end()


def _begins_with(held: HeldText, *parts: str, peek: str = "") -> Reading[bool]:
    """Whether the next text is these parts, with any white space between them. They are then taken, except if
    ``peek`` is given: then one of its characters has to follow, and nothing is taken."""
    count = len(held.taken)
    for part in parts:
        yield from held.spaces()
        if not (yield from held.accept(part)):
            held.rewind(count)
            return False
    if not peek:
        return True
    yield from held.spaces()
    following = yield from held.next()
    held.rewind(count)
    return bool(following) and following in peek


def _write_input(held: HeldText) -> Reading[None]:
    """Read a string after its opening quote, and emit it decoded."""
    decoder = _InputDecoder()
    while True:
        match = _IN_STRING.match(held.pending)
        assert match is not None
        end = match.end()
        if held.pending[end : end + 1] == '"':
            held.write(decoder.decode(held.take(end + 1))[:-1])
            return
        # A backslash at the end of the text waits for what it escapes.
        size = len(held.pending) if held.is_last else end
        held.write(decoder.decode(held.take(size)))
        if held.is_last:
            raise BrokenCall
        yield


class _InputDecoder:
    """Decodes the escapes of a JSON string that arrives in pieces. Invalid ones are kept or replaced, and an
    incomplete one at the end is dropped."""

    def __init__(self) -> None:
        self._half = ""  # an incomplete escape sequence

    def decode(self, text: str) -> str:
        text, self._half = self._half + text, ""
        return _ESCAPE.sub(self._decode, text)

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


class MemberStream:
    """Emits arguments that are written one by one: the call begins with the first."""

    def __init__(self, held: HeldText, tool: CallableTool) -> None:
        self._held = held
        self._tool = tool
        self._members: Members = []  # of a call that is emitted at its end
        self._key = ""
        self.is_streaming = tool.kind == "function"
        """Whether arguments are emitted before the call ends."""

    def open(self, key: str) -> None:
        """Begin an argument."""
        self._key = key
        if not self.is_streaming:
            return
        opening = ", " if self._held.is_streaming else "{"
        if not self._held.is_streaming:
            self._held.begin(self._tool)
        self._held.write(f"{opening}{quoted(key)}: ")

    def value(self, text: str) -> None:
        """Add the value of the argument, as JSON."""
        if self.is_streaming:
            self._held.write(text)
        else:
            self._members.append((self._key, text))

    def piece(self, text: str) -> None:
        """Add a piece of a value that is a string."""
        self._held.write(quoted(text)[1:-1])

    def end(self) -> None:
        """End the call. Raises ``BrokenCall`` if the arguments do not suit the tool."""
        if self._held.is_streaming:
            end_call(self._held, self._tool)
        else:
            self._held.emit(self._tool, arguments_of_members(self._tool, self._members))
