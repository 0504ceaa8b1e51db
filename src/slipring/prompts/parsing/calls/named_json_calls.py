"""Reads calls that are a name and JSON arguments: ``[TOOL_CALLS]f[ARGS]{…}``."""

from slipring.prompts.parsing.calls.argument_stream import end_call, stream_json
from slipring.prompts.parsing.calls.call_reader import MAX_NAME, CallReader, parts_of
from slipring.prompts.parsing.calls.held_text import BrokenCall, HeldText, Reading
from slipring.prompts.parsing.calls.json_calls import JsonCallReader
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.calls.offered_tools import OfferedTools, arguments_of_json
from slipring.prompts.parsing.markers import marker_finder
from slipring.prompts.parsing.output_format import JsonCalls, NamedJsonCalls


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
