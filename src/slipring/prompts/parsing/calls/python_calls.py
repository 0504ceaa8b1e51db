"""Reads calls that are written as in Python: ``[f(a=1), g(b="x")]``, or one on each line."""

from typing import Final

from slipring.prompts.parsing.calls.call_arguments import arguments_of_members
from slipring.prompts.parsing.calls.call_reader import MAX_NAME, CallReader, OfferedTools, skip_nested
from slipring.prompts.parsing.calls.json_calls import JsonCallReader
from slipring.prompts.parsing.calls.python_literals import LiteralReader
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, Reading, marker_finder
from slipring.prompts.parsing.output_format import JsonCalls, PythonCalls

_NAME_END: Final = marker_finder(*"()[]{}\"',:; \n")
_STRUCTURE: Final = marker_finder(*"()[]{}\"'")


class PythonCallReader(CallReader):
    """Reads one list of calls, or the calls of a section. Each is emitted when its parenthesis closes."""

    def __init__(self, layout: PythonCalls, tools: OfferedTools) -> None:
        super().__init__(layout, tools)
        self._is_list = layout.is_list
        if layout.is_bare:
            self.bare_starts = ("[",)
        self._json = JsonCallReader(JsonCalls(), tools, trusted=False)

    def read(self, held: HeldText, mark: str) -> Reading[None]:
        mark = yield from self._begin(held, mark)
        held.may_continue = not mark
        if mark and (yield from self._is_json(held)):
            # Models of the family also write calls as JSON, in a list or alone.
            yield from self._json.read_objects(held, self.section_close, announced=True)
            return
        if not self._is_list:
            yield from self._call(held)
            while not (yield from self._ends_here(held)):
                yield from self._call(held)
            return
        yield from held.require("[")
        yield from self._call(held)
        while (yield from held.require(",", "]")) != "]":
            yield from held.spaces()
            if (yield from held.accept("]")):
                return
            yield from self._call(held)

    def _is_json(self, held: HeldText) -> Reading[bool]:
        """Whether JSON follows. Takes nothing but white space."""
        yield from held.spaces()
        start = len(held.taken)
        yield from held.accept("[")
        yield from held.spaces()
        is_json = (yield from held.next()) == "{"
        held.rewind(start)
        return is_json

    def _call(self, held: HeldText) -> Reading[None]:
        """Read one call and the white space around it."""
        yield from held.spaces()
        name, _ = yield from held.sees(_NAME_END, MAX_NAME)
        tool = self.tools.find(name)
        first = len(held.taken)
        held.take(len(name))
        yield from held.spaces()
        yield from held.require("(")
        yield from skip_nested(held, _STRUCTURE, ")", _skip_string)
        try:
            members = LiteralReader("".join(held.taken[first:])).call()
        except ValueError:
            raise BrokenCall from None
        held.emit(tool, arguments_of_members(tool, members))
        yield from held.spaces()


def _skip_string(held: HeldText, quote: str) -> Reading[None]:
    """Take the text of a string after its opening quote."""
    end = quote + (yield from held.accept(2 * quote))
    marks = marker_finder(end, "\\")
    mark = ""
    while mark != end:
        _, mark = yield from held.until(marks)
        if not mark:
            raise BrokenCall
        if mark == "\\":
            yield from held.next()
            held.take(1)
