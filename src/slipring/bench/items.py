"""The items of an answer, held against the pieces in which they came.

Texts come as deltas and once whole, parts are opened and closed around them, and each item is repeated at the
end: all of that has to say the same, in its order.
"""

from collections.abc import Iterator
from typing import Any

from slipring.bench.exchange import TERMINAL, Event

_Key = tuple[int, str, int]
"""A text that comes in pieces, or the part that it is in: of which item, of which kind, in which place."""

_TEXTS = {
    "response.output_text": ("text", "content"),
    "response.refusal": ("refusal", "content"),
    "response.function_call_arguments": ("arguments", ""),
    "response.custom_tool_call_input": ("input", ""),
    "response.reasoning_text": ("text", "content"),
    "response.reasoning_summary_text": ("text", "summary"),
}
"""Texts that come in pieces: where the whole is, and the list of the item that its part is in, if any."""
_PARTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
"""Parts that are opened and closed: the list of the item that they are in."""


class Items:
    """All items of a response."""

    def __init__(self) -> None:
        self._added: dict[int, str] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._pieces: dict[_Key, list[str]] = {}
        self._whole: dict[_Key, str] = {}
        self._parts: dict[_Key, str | None] = {}
        """By list and place: the text with which they were closed, None while they are open."""

    def check(self, events: list[Event]) -> Iterator[str]:
        for event in events:
            kind: str = event["type"]
            name, _, stage = kind.rpartition(".")
            if kind == "response.output_item.added":
                yield from self._add(event)
            elif kind == "response.output_item.done":
                yield from self._finish(event)
            elif kind in TERMINAL:
                yield from self._compare(event["response"]["output"])
            elif name in _TEXTS and stage in ("delta", "done"):
                yield from self._text(event, name, stage)
            elif name in _PARTS and stage in ("added", "done"):
                yield from self._part(event, name, stage)

    def _add(self, event: Event) -> Iterator[str]:
        index = event["output_index"]
        if index in self._added:
            yield f"item {index} is added twice"
        if index != len(self._added):
            yield f"item {index} is added when {len(self._added)} were"
        self._added[index] = event["item"].get("id", "")

    def _belongs(self, event: Event) -> Iterator[str]:
        """Whatever is of an item comes between its beginning and its end."""
        index = event["output_index"]
        if index not in self._added:
            yield f"{event['type']} of item {index} before it is added"
        elif event.get("item_id", self._added[index]) != self._added[index]:
            yield f"{event['type']} names another item than {index}"
        if index in self._done:
            yield f"{event['type']} of item {index} after its end"

    def _text(self, event: Event, name: str, stage: str) -> Iterator[str]:
        yield from self._belongs(event)
        index, place = event["output_index"], _place(event)
        key: _Key = (index, name, place)
        whole, listed = _TEXTS[name]
        if key in self._whole:
            yield f"{event['type']} of item {index} after its end"
        if self._parts.get((index, listed, place)) is not None:
            yield f"{event['type']} of item {index} after the end of its part"
        if stage == "delta":
            self._pieces.setdefault(key, []).append(event["delta"])
            return
        self._whole[key] = event[whole]
        if "".join(self._pieces.get(key, [])) != event[whole]:
            yield f"the deltas of item {index} do not add up to its text"

    def _part(self, event: Event, name: str, stage: str) -> Iterator[str]:
        yield from self._belongs(event)
        index, place, listed = event["output_index"], _place(event), _PARTS[name]
        key: _Key = (index, listed, place)
        inside = [text for text in self._pieces if text[::2] == key[::2] and _TEXTS[text[1]][1] == listed]
        if stage == "added":
            if key in self._parts:
                yield f"{event['type']} of item {index} comes twice"
            elif inside:
                yield f"{event['type']} of item {index} after the text that is in it"
            self._parts.setdefault(key, None)
            return
        text = _text_of(event["part"])
        if key not in self._parts:
            yield f"{event['type']} of item {index} before its part is added"
        elif self._parts[key] is not None:
            yield f"{event['type']} of item {index} comes twice"
        if any(one not in self._whole for one in inside):
            yield f"{event['type']} of item {index} before the end of its text"
        if "".join("".join(self._pieces[one]) for one in inside) != text:
            yield f"{event['type']} of item {index} has another text than its deltas"
        self._parts[key] = text

    def _finish(self, event: Event) -> Iterator[str]:
        index, item = event["output_index"], event["item"]
        if index not in self._added:
            yield f"item {index} is done before it is added"
        if index in self._done:
            yield f"item {index} is done twice"
        self._done[index] = item
        for key in self._parts:
            if key[0] == index:
                yield from self._closed(key, item)
        pieces = [(key, piece) for key, piece in sorted(self._pieces.items()) if key[0] == index]
        for key, _ in pieces:
            if key not in self._whole:
                yield f"{key[1]} of item {index} never ends"
        whole = said(item)
        if whole is not None and "".join(text for _, piece in pieces for text in piece) != whole:
            yield f"the deltas of item {index} do not add up to the item"

    def _closed(self, key: _Key, item: dict[str, Any]) -> Iterator[str]:
        """A part has ended by the end of its item, and is in it as it was."""
        index, listed, place = key
        if (text := self._parts[key]) is None:
            yield f"part {place} of item {index} never ends"
            return
        parts = item.get(listed)
        if parts is None:
            return  # reasoning may be told and not kept
        if place >= len(parts) or _text_of(parts[place]) != text:
            yield f"part {place} of item {index} has another text than the item"

    def _compare(self, output: list[dict[str, Any]]) -> Iterator[str]:
        for index in self._added.keys() - self._done.keys():
            yield f"item {index} is never done"
        if len(output) != len(self._done):
            yield f"{len(self._done)} items were done, and the terminal event has {len(output)}"
        elif output != [self._done[index] for index in sorted(self._done)]:
            yield "the terminal event has other items than those that were done"


def said(item: dict[str, Any]) -> str | None:
    """What an item consists of, where that came in pieces."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] == "custom_tool_call":
        return str(item["input"])
    if item["type"] == "message":
        return "".join(_text_of(part) for part in item["content"])
    return None


def _place(event: Event) -> int:
    return int(event.get("content_index") or event.get("summary_index") or 0)


def _text_of(part: dict[str, Any]) -> str:
    return str(part.get("text") or part.get("refusal") or "")
