"""Reads calls that are trees of tags named by their keys, as MiniMax M3 writes them."""

import re
from typing import Any, Final

from slipring.prompts.parsing.calls.argument_schema import ArgumentSchema
from slipring.prompts.parsing.calls.call_reader import MAX_NAME, CallReader
from slipring.prompts.parsing.calls.held_text import BrokenCall, HeldText, Reading
from slipring.prompts.parsing.calls.json_scanner import SPACE
from slipring.prompts.parsing.calls.json_text import array_text, object_text, quoted
from slipring.prompts.parsing.calls.offered_tools import OfferedTools, arguments_of_members
from slipring.prompts.parsing.markers import marker_finder
from slipring.prompts.parsing.output_format import NestedTagCalls

_MAX_DEPTH: Final = 64
_TAG: Final = re.compile(r"<(/?)([^<>/\s][^<>\s]*)>")


class _Element:
    """An element: its tag, and texts and elements within it in their order."""

    __slots__ = ("children", "tag")

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.children: list[str | _Element] = []


class NestedTagCallReader(CallReader):
    """Reads elements. A text with the tag's prefix in it is a tag; other text is content."""

    def __init__(self, layout: NestedTagCalls, tools: OfferedTools) -> None:
        super().__init__(layout, tools)
        self._prefix = layout.tag_prefix
        self._item_tag = layout.item_tag
        self._name_open = (layout.tag_prefix + layout.name_open.strip(SPACE),)
        self._name_close = layout.name_close.strip(SPACE)
        self._arguments_close = layout.arguments_close.strip(SPACE)
        self._name_end = marker_finder(self._name_close)
        self._tags = marker_finder(layout.tag_prefix)
        self._tag_end = marker_finder(">")

    def read(self, held: HeldText, mark: str) -> Reading[None]:
        mark = yield from self._begin(held, mark)
        if mark != self._name_open[0]:
            yield from held.require(self._name_open[0])
        header, end = yield from held.sees(self._name_end, MAX_NAME)
        if not end:
            raise BrokenCall
        tool = self.tools.find(header)
        held.take(len(header) + len(end))
        root = yield from self._elements(held)
        schema = self.tools.schema(tool)
        members = [
            (
                each.tag,
                quoted(self._content(each))
                if tool.kind == "custom"
                else self._json(schema, schema.property(schema.root, each.tag), each),
            )
            for each in _elements(root)
        ]
        held.emit(tool, arguments_of_members(tool, members))

    def _elements(self, held: HeldText) -> Reading[_Element]:
        """Read the elements of a call, and its end."""
        path = [_Element("")]
        while True:
            text, mark = yield from held.until(self._tags)
            path[-1].children.append(text)
            if len(path) == 1 and text.strip(SPACE):
                raise BrokenCall
            if not mark:
                raise BrokenCall
            if len(path) == 1 and (yield from held.accept(self._arguments_close)):
                return path[0]
            before, end = yield from held.sees(self._tag_end, MAX_NAME)
            tag = _TAG.fullmatch(before + end)
            if tag is None:
                raise BrokenCall
            held.take(len(before) + len(end))
            if tag.group(1):
                if len(path) == 1 or path[-1].tag != tag.group(2):
                    raise BrokenCall
                path.pop()
            else:
                if len(path) > _MAX_DEPTH:
                    raise BrokenCall
                element = _Element(tag.group(2))
                path[-1].children.append(element)
                path.append(element)

    def _json(self, schema: ArgumentSchema, schemas: list[Any], element: _Element) -> str:
        """The JSON text of an element's content, by its schemas."""
        inner = _elements(element)
        types = schema.types(schemas)
        if (
            not inner
            and not self._content(element).strip()
            and len(types) == 1
            and types <= {"array", "object"}
        ):
            return "[]" if "array" in types else "{}"
        is_text = any(isinstance(each, str) and each.strip() for each in element.children)
        if not inner or is_text or (types and types.isdisjoint(("array", "object"))):
            return schema.value(schemas, self._content(element))
        if self._is_list(types, inner):
            items = schema.items(schemas)
            return array_text([self._json(schema, items, each) for each in inner])
        return object_text(
            [(each.tag, self._json(schema, schema.property(schemas, each.tag), each)) for each in inner]
        )

    def _is_list(self, types: frozenset[str], inner: list[_Element]) -> bool:
        """Whether elements are entries of a list, and not members of an object."""
        are_items = all(each.tag == self._item_tag for each in inner)
        return are_items and ("array" in types or "object" not in types)

    def _content(self, element: _Element) -> str:
        """What the model wrote between an element's tags."""
        parts: list[str] = []
        self._write(element, parts)
        return "".join(parts)

    def _write(self, element: _Element, parts: list[str]) -> None:
        for each in element.children:
            if isinstance(each, str):
                parts.append(each)
            else:
                parts.append(f"{self._prefix}<{each.tag}>")
                self._write(each, parts)
                parts.append(f"{self._prefix}</{each.tag}>")


def _elements(element: _Element) -> list[_Element]:
    return [each for each in element.children if isinstance(each, _Element)]
