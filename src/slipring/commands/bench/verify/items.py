"""Checks the items of an answer against the events that delivered them.

A text arrives as deltas and once as a whole, content parts are added and done around it, the item is repeated
when it is done, and the terminal event repeats all items. All of these must agree and come in order.
"""

from collections.abc import Iterator
from typing import Any

from slipring.commands.bench.client.exchange import TERMINAL, Event

_Key = tuple[int, str, int]
"""Identifies a streamed text or a content part: output index, event name or list name, index in the item."""

_TEXTS = {
    "response.output_text": ("text", "content"),
    "response.refusal": ("refusal", "content"),
    "response.function_call_arguments": ("arguments", ""),
    "response.custom_tool_call_input": ("input", ""),
    "response.reasoning_text": ("text", "content"),
    "response.reasoning_summary_text": ("text", "summary"),
}
"""Streamed texts: the field of the whole text, and the item's list that holds its part, if any."""
_PARTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
"""Content parts: the item's list that holds them."""


class ItemChecker:
    """Follows all items of one response through its events."""

    def __init__(self) -> None:
        self._added: dict[int, str] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._pieces: dict[_Key, list[str]] = {}
        self._whole: dict[_Key, str] = {}
        self._parts: dict[_Key, str | None] = {}
        """Text of each part when it was done; None while it is open."""

    def check(self, events: list[Event]) -> Iterator[str]:
        """Yield a description of each fault."""
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
            yield f"item {index} is added after {len(self._added)} items"
        self._added[index] = event["item"].get("id", "")

    def _check_item_is_open(self, event: Event) -> Iterator[str]:
        """An event of an item must come after the item was added and before it is done."""
        index = event["output_index"]
        if index not in self._added:
            yield f"{event['type']} of item {index} before it is added"
        elif event.get("item_id", self._added[index]) != self._added[index]:
            yield f"{event['type']} names another item than {index}"
        if index in self._done:
            yield f"{event['type']} of item {index} after its end"

    def _text(self, event: Event, name: str, stage: str) -> Iterator[str]:
        yield from self._check_item_is_open(event)
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
        yield from self._check_item_is_open(event)
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
                yield from self._check_part(key, item)
        pieces = [(key, piece) for key, piece in sorted(self._pieces.items()) if key[0] == index]
        for key, _ in pieces:
            if key not in self._whole:
                yield f"{key[1]} of item {index} never ends"
        whole = streamed_text(item)
        if whole is not None and "".join(text for _, piece in pieces for text in piece) != whole:
            yield f"the deltas of item {index} do not add up to the item"

    def _check_part(self, key: _Key, item: dict[str, Any]) -> Iterator[str]:
        """A part must be done before its item, and have the same text there."""
        index, listed, place = key
        if (text := self._parts[key]) is None:
            yield f"part {place} of item {index} never ends"
            return
        parts = item.get(listed)
        if parts is None:
            return  # reasoning may be streamed and left out of the item
        if place >= len(parts) or _text_of(parts[place]) != text:
            yield f"part {place} of item {index} has another text than the item"

    def _compare(self, output: list[dict[str, Any]]) -> Iterator[str]:
        for index in self._added.keys() - self._done.keys():
            yield f"item {index} is never done"
        if len(output) != len(self._done):
            yield f"{len(self._done)} items were done, and the terminal event has {len(output)}"
        elif output != [self._done[index] for index in sorted(self._done)]:
            yield "the terminal event has other items than those that were done"


def streamed_text(item: dict[str, Any]) -> str | None:
    """The text of an item that its deltas must add up to; None for items without one."""
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
