"""Reads calls whose arguments are in tags.

Either each argument is tagged, ``<function=f><parameter=k>v</parameter></function>``, or a call is a tree of
tags that are named by its keys, as MiniMax M3 writes it.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from slipring.prompts.parsing.calls.call_arguments import (
    JSON_TYPES,
    ArgumentSchema,
    MemberStream,
    arguments_of_json,
    arguments_of_members,
    end_call,
    json_of,
    stream_json,
)
from slipring.prompts.parsing.calls.call_reader import MAX_NAME, CallReader, OfferedTools, parts_of
from slipring.prompts.parsing.calls.json_calls import JsonCallReader
from slipring.prompts.parsing.calls.json_scanner import SPACE, array_text, object_text, quoted
from slipring.prompts.parsing.held_text import BrokenCall, HeldText, Reading, marker_finder
from slipring.prompts.parsing.output_format import JsonCalls, NestedTagCalls, TaggedCalls
from slipring.protocol.tools.toolset import CallableTool

_TYPE: Final = "{type}"
_CDATA: Final = "<![CDATA["
_CDATA_END: Final = marker_finder("]]>")
_MAX_DEPTH: Final = 64
_TAG: Final = re.compile(r"<(/?)([^<>/\s][^<>\s]*)>")


class TaggedCallReader(CallReader):
    """Reads a name and arguments between tags.

    A tag may be missing where the intent is certain: ``open`` if ``name_open`` is there, ``close`` always,
    ``arguments_close`` if ``close`` or the next call follows, ``value_close`` if the call's closing tags or
    another argument of the tool follow. An answer may end without closing tags once the last value is closed
    and all required arguments are there.

    Values that are strings are emitted as they arrive, all others when they end. Models also write all
    arguments as one JSON object, without tags.

    ``trusted``: a grammar enforces that values are closed, so other tags are part of them.
    """

    def __init__(self, layout: TaggedCalls, tools: OfferedTools, *, trusted: bool) -> None:
        super().__init__(layout, tools)
        self._layout = layout
        self._name_open = parts_of(layout.name_open)
        self._name_close = parts_of(layout.name_close)
        self._arguments_close = parts_of(layout.arguments_close)[0]
        self._key_open = layout.key_open.strip(SPACE)
        self._key_close = parts_of(layout.key_close)
        self._value_close = parts_of(layout.value_close)
        self._object_open, self._object_close = (
            layout.object_open.strip(SPACE),
            layout.object_close.strip(SPACE),
        )
        self._is_quoted = self._key_open.endswith('"')
        self._begins_line, self._ends_line = (
            layout.key_close.endswith("\n"),
            layout.value_close.startswith("\n"),
        )
        self._by_lines = layout.value_close.endswith("\n")
        self._name_end = marker_finder(
            self._name_close[0] or self._key_open,
            *(() if self._name_close[0] else (self._arguments_close, self.close)),
        )
        self._key_end = marker_finder(self._key_close[0])
        other_ends = () if trusted else (self._arguments_close, self.close, self._key_open)
        self._value_end = marker_finder(self._value_close[0], *other_ends)
        self._json = JsonCallReader(JsonCalls(), tools, trusted=False)

    def read(self, held: HeldText, mark: str) -> Reading[None]:
        mark = yield from self._begin(held, mark)
        if mark != self._name_open[0]:
            if (yield from held.next()) in ("{", "["):
                # Some models fall back to the JSON that other formats have.
                yield from self._json.read_objects(held, self.close, announced=True)
                return
            if self._name_open[0]:
                yield from held.require(self._name_open[0])
        yield from self._rest(held, self._name_open)
        tool = yield from self._tool(held)
        yield from self._call(held, tool)

    def _tool(self, held: HeldText) -> Reading[CallableTool]:
        """Read the name of a tool and what ends it."""
        header, end = yield from held.sees(self._name_end, MAX_NAME)
        if not end:
            raise BrokenCall
        name = header.partition('"')[0] if self._name_open[-1].endswith('"') else header.strip()
        tool = self.tools.find(self._unescaped(name))
        held.take(len(header))
        if self._name_close[0]:
            held.take(len(end))
            yield from self._rest(held, self._name_close)
        return tool

    def _call(self, held: HeldText, tool: CallableTool) -> Reading[None]:
        """Read the arguments of a call and its end."""
        schema = self.tools.schema(tool)
        members = MemberStream(held, tool)
        given: set[str] = set()
        yield from held.spaces()
        if (yield from held.next()) == "{":
            yield from self._object(held, tool)
            return
        while True:
            yield from held.spaces()
            if held.is_streaming:
                held.write("")  # white space between tags is never text
            mark = yield from held.accept(
                self._key_open, self._object_open, self._arguments_close, self.close
            )
            if mark == self._key_open:
                key, attributes = yield from self._key(held)
                given.add(key)
                members.open(key)
                is_string = tool.kind == "custom" or self._is_string(schema, key, attributes)
                if is_string and members.is_streaming:
                    members.value('"')
                    yield from self._value(held, schema, given, members.piece)
                    members.value('"')
                else:
                    parts: list[str] = []
                    yield from self._value(held, schema, given, parts.append)
                    text = "".join(parts)
                    members.value(quoted(text) if is_string else self._json_of(schema, key, attributes, text))
            elif mark and mark == self._object_open:
                yield from self._object(held, tool)
                return
            elif mark or (yield from self._is_complete(held, schema, given)):
                members.end()
                held.closed_by = mark
                return
            else:
                raise BrokenCall

    def _is_complete(self, held: HeldText, schema: ArgumentSchema, given: set[str]) -> Reading[bool]:
        """Whether a call without closing tags ends here. White space was read."""
        if not (yield from self._ends_here(held)):
            return False
        return bool(held.pending) or (schema.required <= given and not held.is_cut_off)

    def _key(self, held: HeldText) -> Reading[tuple[str, str]]:
        """Read the key of an argument and the attributes after it."""
        header, end = yield from held.sees(self._key_end, MAX_NAME)
        if not end:
            raise BrokenCall
        held.take(len(header) + len(end))
        for part in self._key_close[1:]:
            yield from held.spaces()
            yield from held.require(part)
        return self._parted(header)

    def _parted(self, header: str) -> tuple[str, str]:
        """A key and the attributes after it, which begin with the quote that ends the key."""
        if not self._is_quoted:
            return header.strip(), ""
        key, quote, rest = header.partition('"')
        return self._unescaped(key), quote + rest

    def _unescaped(self, text: str) -> str:
        return text.replace("&quot;", '"').replace("&amp;", "&") if self._layout.has_escapes else text

    def _value(
        self, held: HeldText, schema: ArgumentSchema, given: set[str], sink: Callable[[str], object]
    ) -> Reading[None]:
        """Read the text of a value, and pass it to ``sink`` as it arrives."""
        if self._layout.has_cdata and (yield from held.accept(_CDATA)):
            if not (yield from held.pour(_CDATA_END, sink)):
                raise BrokenCall
            for part in self._value_close:
                yield from held.spaces()
                yield from held.require(part)
            return
        value = _ValueText(sink, begins_line=self._begins_line, ends_line=self._ends_line)
        while True:
            mark = yield from held.pour(self._value_end, value.add)
            if not mark:
                value.end(is_closed=False)
                raise BrokenCall
            if mark == self._value_close[0]:
                for part in self._value_close[1:]:
                    yield from held.spaces()
                    yield from held.accept(part)
                break
            if (yield from self._ends_value(held, mark, schema, given, begins=value.is_new_line)):
                held.put_back(mark)
                break
            value.add(mark)
        value.end(is_closed=True)

    def _ends_value(
        self, held: HeldText, mark: str, schema: ArgumentSchema, given: set[str], *, begins: bool
    ) -> Reading[bool]:
        """Whether a value that is not closed ends before ``mark``, or the mark is part of the value.
        ``begins``: the mark begins a line."""
        if mark == self._key_open:
            header, end = yield from held.sees(self._key_end, MAX_NAME)
            key = self._parted(header)[0]
            is_argument = schema.knows(key) and key not in given
            return bool(end) and (begins or not self._by_lines) and is_argument
        if mark == self._arguments_close and self.close:
            return (yield from held.precedes(self.close, end=False)) or (yield from self._ends_here(held))
        return (
            mark == self._arguments_close or not self._arguments_close or (yield from self._ends_here(held))
        )

    def _is_string(self, schema: ArgumentSchema, key: str, attributes: str) -> bool:
        """Whether a value is certainly a string, by its tag or by the tool's schema."""
        tagged = self._tagged_string(attributes)
        return schema.is_string(key) if tagged is None else tagged

    def _tagged_string(self, attributes: str) -> bool | None:
        """Whether a tag says that its value is a string; None if it does not say."""
        string, json = self._layout.string_attribute, self._layout.json_attribute
        before, is_typed, after = string.partition(_TYPE)
        if is_typed and attributes.startswith(before):
            return attributes.removeprefix(before).partition(after)[0] == "string"
        return attributes == string if attributes and attributes in (string, json) else None

    def _json_of(self, schema: ArgumentSchema, key: str, attributes: str, text: str) -> str:
        """The JSON text of a value that is not certainly a string."""
        if self._tagged_string(attributes) is None:
            return schema.argument(key, text)
        return json_of(text, JSON_TYPES) or quoted(text)

    def _object(self, held: HeldText, tool: CallableTool) -> Reading[None]:
        """Read all arguments as one JSON object, and the end of the call."""
        yield from held.spaces()
        if (yield from stream_json(held, tool, trusted=False)):
            end_call(held, tool)
        else:
            held.emit(tool, arguments_of_json(tool, (yield from held.json())))
        for mark in (self._object_close, self._arguments_close):
            yield from held.spaces()
            yield from held.accept(mark)


class _ValueText:
    """The text of a value without the line breaks that belong to its tags. Holds the last one back."""

    __slots__ = ("_begins_line", "_ends_line", "_held_break", "_sink", "is_new_line")

    def __init__(self, sink: Callable[[str], object], *, begins_line: bool, ends_line: bool) -> None:
        self._sink = sink
        self._begins_line = begins_line
        self._ends_line = ends_line
        self._held_break = ""
        self.is_new_line = False
        """Whether there is nothing but blanks after the last line break."""

    def add(self, text: str) -> None:
        if rest := text.rstrip(" \t"):
            self.is_new_line = rest.endswith("\n")
        if self._begins_line:
            self._begins_line = False
            text = text.removeprefix("\n")
        text, self._held_break = self._held_break + text, ""
        if self._ends_line and text.endswith("\n"):
            text, self._held_break = text[:-1], "\n"
        if text:
            self._sink(text)

    def end(self, *, is_closed: bool) -> None:
        """End the value; ``is_closed``: by a tag, to which the last line break belongs."""
        if self._held_break and not is_closed:
            self._sink(self._held_break)


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
