"""What all readers of calls share: the marks before, between and after calls, and which tool a name means."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from slipring.prompts.parsing.calls.call_arguments import ArgumentSchema
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.calls.python_literals import MAX_DEPTH
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, MarkerFinder, Reading
from slipring.prompts.parsing.output_format import CallLayout, is_unmistakable
from slipring.prompts.tool_definitions import flat_name, parameters_of
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import CallableTool

MAX_NAME: Final = 256
"""Characters of a tool's name or an argument's key, with what belongs to it."""
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}
_BOUNDARY: Final = re.compile(rf"[{SPACE}]*\n[{SPACE}]*|(?<=[>`])(?=<)|(?<=[}}\]])(?=<\|)|(?<=\|>)(?=\[)")


@lru_cache(maxsize=256)
def parts_of(mark: str) -> tuple[str, ...]:
    """The parts of a mark between which any white space may be: its lines and its tags."""
    return tuple(filter(None, _BOUNDARY.split(mark.strip(SPACE)))) or ("",)


def skip_nested(
    held: HeldText,
    structure: MarkerFinder,
    close: str,
    skip_string: Callable[[HeldText, str], Reading[None]],
) -> Reading[None]:
    """Take text up to the bracket that closes it. ``structure``: brackets, and the quotes after which
    ``skip_string`` takes a string. Raises ``BrokenCall`` for unbalanced or too many brackets."""
    closers = [close]
    while closers:
        _, mark = yield from held.until(structure)
        if mark in _CLOSERS and len(closers) <= MAX_DEPTH:
            closers.append(_CLOSERS[mark])
        elif mark == closers[-1]:
            closers.pop()
        elif mark and mark not in "([{)]}":
            yield from skip_string(held, mark)
        else:
            raise BrokenCall


class OfferedTools:
    """The tools of an offer. Models address a tool by its name or its ``flat_name``."""

    __slots__ = ("_schemas", "by_name")

    def __init__(self, offer: Offer) -> None:
        # ``allowed_tools`` may list a tool and also its namespace: one tool offered twice is not ambiguous.
        tools = {(tool.namespace, tool.name): tool for tool in offer.tools}.values()
        self.by_name = _unambiguous([(tool.name, tool) for tool in tools])
        self.by_name |= _unambiguous([(flat_name(tool), tool) for tool in tools])
        self._schemas: dict[tuple[str | None, str], ArgumentSchema] = {}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def find(self, name: str) -> CallableTool:
        """The tool of that name. Raises ``BrokenCall`` if there is none."""
        tool = self.by_name.get(name)
        if tool is None:
            raise BrokenCall
        return tool

    def schema(self, tool: CallableTool) -> ArgumentSchema:
        """The schema of a tool's arguments."""
        key = (tool.namespace, tool.name)
        if key not in self._schemas:
            self._schemas[key] = ArgumentSchema(bytes(parameters_of(tool)))
        return self._schemas[key]


class CallReader(ABC):
    """Reads the calls of one layout. One reader serves all calls of an answer.

    The parser searches text for ``starts`` and, where a call may begin without a mark, for ``bare_starts``.
    It then runs ``read`` over what follows.
    """

    def __init__(self, layout: CallLayout, tools: OfferedTools) -> None:
        self.tools = tools
        self.bare_starts: tuple[str, ...] = ()
        """Characters with which calls begin that no mark precedes."""
        self._section_open = parts_of(layout.section_open)
        self._open = parts_of(layout.open)
        self._name_open: tuple[str, ...] = ("",)
        self._close_parts = parts_of(layout.close)
        self.close = self._close_parts[-1]
        self._section_closing = parts_of(layout.section_close)
        self.section_close = self._section_closing[-1]
        self._between = layout.between.strip(SPACE)

    @property
    def starts(self) -> tuple[str, ...]:
        """The marks that begin calls, without empty ones."""
        return tuple({each[0]: None for each in (self._section_open, self._open, self._name_open) if each[0]})

    @property
    def ends(self) -> tuple[str, ...]:
        """Marks that are dropped directly after a call."""
        marks = (self.close, *self._section_closing, self._between)
        return tuple({mark: None for mark in marks if mark})

    @property
    def section_mark(self) -> str:
        """The mark of a section, if calls in it have marks of their own: alone it begins no call."""
        return self._section_open[0] if self._has_inner_marks else ""

    @property
    def closing_marks(self) -> tuple[str, ...]:
        """The marks that close a call, or all of them if they have no marks of their own."""
        return self._close_parts if self._has_inner_marks else (self.section_close,)

    @property
    def strays(self) -> tuple[str, ...]:
        """Closing marks that are no text, wherever they stand."""
        return tuple(filter(is_unmistakable, (*self._close_parts, self.section_close)))

    @property
    def _has_inner_marks(self) -> bool:
        return bool(self._open[0] or self._name_open[0])

    @property
    def _marks(self) -> tuple[str, ...]:
        """The marks of a call that are no text."""
        return (*self.starts, *self.ends)

    def without_marks(self, text: str) -> str:
        """The text of a call without its marks."""
        for mark in filter(is_unmistakable, self._marks):
            text = text.replace(mark, "")
        return text.lstrip(SPACE)

    @abstractmethod
    def read(self, held: HeldText, mark: str) -> Reading[None]:
        """Read what follows ``mark``: at least one call. Emits each when it ends, or begins to earlier.
        ``mark`` is empty for a call without one."""

    def _begin(self, held: HeldText, mark: str) -> Reading[str]:
        """Read on to where a call begins: past ``section_open`` and ``open``. Returns the last mark that was
        read, which is the beginning of ``name_open`` if that is where the call begins."""
        if mark and mark == self._section_open[0]:
            yield from self._rest(held, self._section_open)
            mark = yield from self._inner(held, mark)
        if mark and mark == self._open[0]:
            yield from self._rest(held, self._open)
        return mark

    def _inner(self, held: HeldText, mark: str) -> Reading[str]:
        """Read the mark of a call within a section, if it has one."""
        inner = [each[0] for each in (self._open, self._name_open) if each[0] not in ("", mark)]
        yield from held.spaces()
        return (yield from held.accept(*inner)) or mark

    def _rest(self, held: HeldText, parts: tuple[str, ...]) -> Reading[None]:
        """Read the parts of a mark after its first one, each of which is required."""
        for part in parts[1:]:
            yield from held.spaces()
            yield from held.require(part)
        yield from held.spaces()

    def _ends_here(self, held: HeldText) -> Reading[bool]:
        """Whether a call that is complete ends here although its closing mark is missing: the answer ends,
        or the next call or the end of the section follows."""
        return (yield from held.precedes(*self.starts, *filter(None, (self.section_close,)), end=True))


def _unambiguous(named: list[tuple[str, CallableTool]]) -> dict[str, CallableTool]:
    count = Counter(name for name, _ in named)
    return {name: tool for name, tool in named if count[name] == 1}
