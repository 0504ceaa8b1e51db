"""Reads calls that are JSON: ``{"name": …, "arguments": …}``, with or without marks around them, or a name
and JSON arguments: ``[TOOL_CALLS]f[ARGS]{…}``."""

from typing import Final

import msgspec

from slipring.prompts.parsing.calls.call_arguments import (
    arguments_of_json,
    arguments_of_members,
    end_call,
    stream_json,
)
from slipring.prompts.parsing.calls.call_reader import MAX_NAME, CallReader, OfferedTools, parts_of
from slipring.prompts.parsing.calls.json_scanner import SPACE, type_of
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, Reading, marker_finder
from slipring.prompts.parsing.output_format import JsonCalls, NamedJsonCalls
from slipring.protocol.tools.toolset import CallableTool

_string = msgspec.json.Decoder(str)
_SEPARATORS: Final = (",", ";")
_SCALAR_END: Final = marker_finder(",", "}", *SPACE)
_MAX_SCALAR: Final = 64


class JsonCallReader(CallReader):
    """Reads JSON objects and arrays of them.

    Between an opening and a closing mark, everything must be calls. Without a closing mark, the calls end
    with the JSON value. Each call is emitted when its object ends; its arguments before that, if they are an
    object and follow the name.

    ``trusted``: a grammar enforces the form of calls.
    """

    def __init__(self, layout: JsonCalls, tools: OfferedTools, *, trusted: bool) -> None:
        super().__init__(layout, tools)
        self._name_key = layout.name_key
        self._argument_keys = tuple(dict.fromkeys((layout.arguments_key, "arguments", "parameters")))
        self._announcement = layout.announcement.strip(SPACE)
        if layout.is_bare:
            self.bare_starts = ("{", "[")
        self._trusted = trusted

    @property
    def starts(self) -> tuple[str, ...]:
        return (*super().starts, *filter(None, (self._announcement,)))

    def read(self, held: HeldText, mark: str) -> Reading[None]:
        mark = yield from self._begin(held, mark)
        close = self._closing(mark)
        held.may_continue = not close
        held.retry_mark = close
        yield from self.read_objects(held, close, announced=bool(mark))

    def _closing(self, mark: str) -> str:
        """The mark that closes what ``mark`` has opened."""
        if mark and mark == self._open[0]:
            return self.close
        return self.section_close if mark and mark == self._section_open[0] else ""

    def read_objects(self, held: HeldText, close: str, *, announced: bool) -> Reading[None]:
        """Read calls up to ``close`` or, if it is empty, one JSON value.

        ``announced``: a mark precedes the calls, so a call without arguments is valid.
        """
        while True:
            yield from self._calls(held, announced=announced)
            if not close:
                return
            yield from held.spaces()
            held.closed_by = yield from held.accept(close)
            if held.closed_by or (yield from self._ends_here(held)) or held.ends_within(close):
                return
            yield from held.accept(*_SEPARATORS)

    def _calls(self, held: HeldText, *, announced: bool) -> Reading[None]:
        """Read a call, or an array of calls."""
        yield from held.spaces()
        start = len(held.taken)
        is_array = bool((yield from held.accept("[")))
        while True:
            yield from self._call(held, start, announced=announced)
            if not is_array:
                return
            yield from held.spaces()
            start = len(held.taken)
            if (yield from held.require(",", "]")) == "]":
                return

    def _call(self, held: HeldText, start: int, *, announced: bool) -> Reading[None]:
        """Read one call. Text that is JSON but not a call is taken as a whole, from ``start`` on, so that
        what is in its strings is never read as a call."""
        try:
            yield from self._members(held, announced=announced)
        except BrokenCall:
            if not held.is_streaming:
                held.rewind(start)
                yield from held.accept(",")
                yield from held.json()
            raise

    def _members(self, held: HeldText, *, announced: bool) -> Reading[None]:
        """Read the members of an object, and emit the call that they make."""
        members: dict[str, str] = {}
        tool: CallableTool | None = None
        yield from held.spaces()
        yield from held.require("{")
        while True:
            key = yield from self._key(held)
            is_streamed = False
            if tool is not None and not held.is_streaming and key in self._argument_keys:
                is_streamed = yield from stream_json(held, tool, trusted=self._trusted)
            if not is_streamed:
                members[key] = yield from _value(held)
                if tool is None and key == self._name_key:
                    tool = self.tools.find(_text(members[key]))
            yield from held.spaces()
            if (yield from held.require(",", "}")) == "}":
                break
        if tool is None:
            raise BrokenCall
        if held.is_streaming:
            end_call(held, tool)
        else:
            held.emit(tool, self._arguments(tool, members, announced=announced))

    def _key(self, held: HeldText) -> Reading[str]:
        """Read the key of a member and the colon after it."""
        yield from held.spaces()
        key = yield from held.json('"')
        yield from held.spaces()
        yield from held.require(":")
        yield from held.spaces()
        return _text(key)

    def _arguments(self, tool: CallableTool, members: dict[str, str], *, announced: bool) -> str:
        """The arguments among the members of a call. Raises ``BrokenCall`` if they do not suit the tool."""
        for key in self._argument_keys:
            arguments = members.get(key, "null")
            if arguments != "null":
                return arguments_of_json(tool, arguments)
        if not announced:
            raise BrokenCall
        return arguments_of_members(tool, [])


def _value(held: HeldText) -> Reading[str]:
    """Read any JSON value."""
    first = yield from held.next()
    if first and first in '"{[':
        text = yield from held.json('"{[', entries="")
    else:
        text, _ = yield from held.sees(_SCALAR_END, _MAX_SCALAR)
        held.take(len(text))
    if not type_of(text):
        raise BrokenCall
    return text


def _text(value: str) -> str:
    """The text of a JSON string. Raises ``BrokenCall`` if it is something else."""
    try:
        return _string.decode(value)
    except ValueError:
        raise BrokenCall from None


class NamedJsonCallReader(CallReader):
    """Reads a name up to ``arguments_open``, and a JSON object, with which the call ends.

    ``trusted``: a grammar enforces the form of calls.
    """

    def __init__(self, layout: NamedJsonCalls, tools: OfferedTools, *, trusted: bool) -> None:
        super().__init__(layout, tools)
        self._id_open = layout.id_open.strip(SPACE)
        self._id_end = marker_finder(self._open[0])
        self._prefix, self._id_separator = layout.name_prefix, layout.id_separator
        self._arguments_open = parts_of(layout.arguments_open)
        self._name_end = marker_finder(self._arguments_open[0])
        self._closing = parts_of(layout.close)
        self._trusted = trusted
        self._json = JsonCallReader(JsonCalls(), tools, trusted=False)

    @property
    def starts(self) -> tuple[str, ...]:
        return (*super().starts, self._id_open) if self._id_open else super().starts

    @property
    def _marks(self) -> tuple[str, ...]:
        return (*super()._marks, *self._closing, *self._arguments_open, self._id_separator)

    def read(self, held: HeldText, mark: str) -> Reading[None]:
        yield from self._begin(held, mark)
        held.retry_mark = self.close
        if (yield from held.precedes(*self.starts, end=False)):
            raise BrokenCall
        if (yield from held.next()) in ("{", "["):
            # Older models of the family write the whole call as JSON.
            yield from self._json.read_objects(held, "", announced=True)
            return
        header, end = yield from held.sees(self._name_end, MAX_NAME)
        if not end:
            raise BrokenCall
        tool = self.tools.find(self._name(header))
        held.take(len(header) + len(end))
        yield from self._rest(held, self._arguments_open)
        if (yield from stream_json(held, tool, trusted=self._trusted)):
            end_call(held, tool)
        else:
            held.emit(tool, arguments_of_json(tool, (yield from held.json())))
        if self.close:
            yield from self._end(held)

    def _begin(self, held: HeldText, mark: str) -> Reading[str]:
        if not self._id_open:
            return (yield from super()._begin(held, mark))
        if mark == self._section_open[0]:
            yield from self._rest(held, self._section_open)
            mark = yield from held.accept(self._id_open, self._open[0])
        if mark == self._id_open:
            id, mark = yield from held.sees(self._id_end, MAX_NAME)
            held.take(len(id) + len(mark))
        if mark != self._open[0]:
            raise BrokenCall
        yield from self._rest(held, self._open)
        return mark

    def _name(self, header: str) -> str:
        """The tool's name without what is written around it."""
        name = header.strip()
        if self._id_separator:
            name = name.partition(self._id_separator)[0].rstrip()
        return name.removeprefix(self._prefix) if name not in self.tools.by_name else name

    def _end(self, held: HeldText) -> Reading[None]:
        """Read the closing mark, which may be missing at the end or before the next call."""
        is_closed = False
        for part in self._closing:
            yield from held.spaces()
            held.closed_by = yield from held.accept(part)
            is_closed = is_closed or bool(held.closed_by)
            if not held.closed_by and held.ends_within(part):
                return
        if not is_closed and not (yield from self._ends_here(held)):
            raise BrokenCall
