"""Reads calls that are JSON: ``{"name": …, "arguments": …}``, with or without marks around them."""

from typing import Final

import msgspec
from msgspec import Raw

from slipring.core.generation import Delta
from slipring.prompts.parsing.calls.call_reader import CallReader
from slipring.prompts.parsing.calls.constrained_calls import json_openings, stream
from slipring.prompts.parsing.calls.held_text import BrokenCall, HeldText, Reading
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.calls.offered_tools import OfferedTools, call_with_json, call_without_arguments
from slipring.prompts.parsing.output_format import JsonCalls

_Object = dict[str, Raw]
_objects = msgspec.json.Decoder(_Object | list[_Object])
_name = msgspec.json.Decoder(str)
_SEPARATORS: Final = (",", ";")


class JsonCallReader(CallReader):
    """Reads JSON objects and arrays of them.

    Between an opening and a closing mark, everything must be calls. Without a closing mark, the calls end
    with the JSON value.
    """

    def __init__(self, layout: JsonCalls, tools: OfferedTools, *, trusted: bool) -> None:
        super().__init__(layout, tools)
        self._name_key, self._arguments_key = layout.name_key, layout.arguments_key
        self._announcement = layout.announcement.strip(SPACE)
        if layout.is_bare:
            self.bare_starts = ("{", "[")
        self._openings = json_openings(
            tools.by_name if trusted and not layout.is_array else {}, layout.name_key, layout.arguments_key
        )

    @property
    def starts(self) -> tuple[str, ...]:
        return (*super().starts, *filter(None, (self._announcement,)))

    def read(self, held: HeldText, mark: str) -> Reading[list[Delta]]:
        mark = yield from self._begin(held, mark)
        close = self._closing(mark)
        held.may_continue = not close
        if self._openings and mark == self._open[0] and (yield from stream(held, self._openings, "}", close)):
            return []
        held.retry_mark = close
        return (yield from self.read_objects(held, close, announced=bool(mark)))

    def _closing(self, mark: str) -> str:
        """The mark that closes what ``mark`` has opened."""
        if mark and mark == self._open[0]:
            return self.close
        return self.section_close if mark and mark == self._section_open[0] else ""

    def read_objects(self, held: HeldText, close: str, *, announced: bool) -> Reading[list[Delta]]:
        """Read calls up to ``close`` or, if it is empty, one JSON value.

        ``announced``: a mark precedes the calls, so a call without arguments is valid.
        """
        calls: list[Delta] = []
        while True:
            calls += self._calls((yield from held.json()), announced=announced)
            if not close:
                return calls
            yield from held.spaces()
            if (yield from held.accept(close)) or (yield from self._ends_here(held)):
                return calls
            yield from held.accept(*_SEPARATORS)

    def _calls(self, text: str, *, announced: bool) -> list[Delta]:
        """The calls in a JSON document. Raises ``BrokenCall`` if any part of it is not a valid call."""
        try:
            decoded = _objects.decode(text.encode())
        except (ValueError, RecursionError):
            raise BrokenCall from None
        calls = decoded if isinstance(decoded, list) else [decoded]
        return [delta for call in calls for delta in self._call(call, announced=announced)]

    def _call(self, call: _Object, *, announced: bool) -> list[Delta]:
        try:
            tool = self.tools.find(_name.decode(call[self._name_key]))
        except (ValueError, LookupError):
            raise BrokenCall from None
        for key in (self._arguments_key, "arguments", "parameters"):
            arguments = call.get(key)
            if arguments is not None and bytes(arguments) != b"null":
                return call_with_json(tool, arguments)
        if not announced:
            raise BrokenCall
        return call_without_arguments(tool)
