"""Reads calls in braces, with unquoted keys and quote tokens: Gemma 4's ``call:f{k:<|"|>v<|"|>}``."""

import re
from typing import Any, Final

from slipring.prompts.parsing.calls.call_arguments import ArgumentSchema, arguments_of_members
from slipring.prompts.parsing.calls.call_reader import MAX_NAME, CallReader, OfferedTools, skip_nested
from slipring.prompts.parsing.calls.json_scanner import SPACE, Members, array_text, object_text, quoted
from slipring.prompts.parsing.calls.python_literals import TextCursor
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, Reading, marker_finder
from slipring.prompts.parsing.output_format import BracedCalls

_NAME_END: Final = marker_finder("{")
_KEY: Final = re.compile(r"\s*([^:,{}\[\]]*?)\s*:")
_BARE: Final = re.compile(r"[^,{}\[\]]*")


class BracedCallReader(CallReader):
    """Reads a name and arguments in braces."""

    def __init__(self, layout: BracedCalls, tools: OfferedTools) -> None:
        super().__init__(layout, tools)
        self._name_prefix = layout.name_open.strip(SPACE)
        self._quote = layout.quote
        self._structure = marker_finder(layout.quote, *"{}[]")
        self._string_end = marker_finder(layout.quote)

    def read(self, held: HeldText, mark: str) -> Reading[None]:
        yield from self._begin(held, mark)
        yield from held.accept(self._name_prefix)
        name, _ = yield from held.sees(_NAME_END, MAX_NAME)
        tool = self.tools.find(name.strip())
        held.take(len(name) + 1)
        first = len(held.taken)
        yield from skip_nested(held, self._structure, "}", self._skip_string)
        values = _Values("".join(held.taken[first:]), self._quote, self.tools.schema(tool))
        try:
            members = values.members(values.schema.root, is_text=tool.kind == "custom")
        except ValueError:
            raise BrokenCall from None
        held.emit(tool, arguments_of_members(tool, members))

    def _skip_string(self, held: HeldText, quote: str) -> Reading[None]:
        _, mark = yield from held.until(self._string_end)
        if not mark:
            raise BrokenCall


class _Values(TextCursor):
    """Reads values from a text. Raises ``ValueError`` where it finds something else."""

    __slots__ = ("_quote", "schema")

    def __init__(self, text: str, quote: str, schema: ArgumentSchema) -> None:
        super().__init__(text)
        self.schema = schema
        self._quote = quote

    def members(self, schemas: Any, *, is_text: bool = False) -> Members:
        """Read the members of an object and the brace after them. ``is_text``: all values are strings."""
        members: Members = []
        while not self._has("}"):
            if members:
                self._take(",")
            key = self._string() if self._has(self._quote) else None
            unquoted = self._match(_KEY).group(1)
            if key is not None and unquoted:
                raise ValueError
            key = unquoted if key is None else key
            members.append((key, self._value(self.schema.property(schemas, key), is_text=is_text)))
        return members

    def _value(self, schemas: Any, *, is_text: bool) -> str:
        if self._has(self._quote):
            return quoted(self._string())
        if self._has("{"):
            return object_text(self.members(schemas))
        if self._has("["):
            return array_text(self._entries(self.schema.items(schemas)))
        bare = self._match(_BARE).group().rstrip()
        return quoted(bare) if is_text else self.schema.value(schemas, bare)

    def _entries(self, schemas: Any) -> list[str]:
        entries: list[str] = []
        while not self._has("]"):
            if entries:
                self._take(",")
            entries.append(self._value(schemas, is_text=False))
        return entries

    def _string(self) -> str:
        """Read a string after its opening quote."""
        end = self._text.index(self._quote, self._at)
        text = self._text[self._at : end]
        self._at = end + len(self._quote)
        return text
