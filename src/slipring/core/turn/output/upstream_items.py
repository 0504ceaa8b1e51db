"""Items that the engine's server makes itself, such as calls of tools that it runs.

They reach the client as the server made them, with its ids: only that server can look them up later, in an
approval or in a history that is sent again. Sequence numbers and output indexes are the response's own.
"""

import msgspec
from msgspec import Raw, Struct, structs

from slipring.core.generation import UpstreamItemEnded, UpstreamItemEvent, UpstreamItemStarted
from slipring.core.turn.output.numbered_items import NumberedItems
from slipring.protocol import wire
from slipring.protocol.items import items
from slipring.protocol.items.items import Item

_WITHOUT_INCOMPLETE = ("image_generation_call", "web_search_call")
"""Items that fail where others are ``incomplete``: the API has no such status for them."""


_STREAMED = {"mcp_call": "arguments", "code_interpreter_call": "code"}
"""The fields whose text comes in deltas."""


class _Open(Struct):
    """An item that has begun."""

    item: Item
    id: str
    index: int
    place: int
    """In what the model has generated."""
    pieces: list[str] = []
    """What has been streamed of its text."""

    def cut_off(self) -> Item:
        """The item as far as it has come."""
        item = self.item
        fields = msgspec.json.decode(item.raw, type=dict[str, Raw])
        if "status" in fields:
            fields["status"] = wire.raw("failed" if item.type in _WITHOUT_INCOMPLETE else "incomplete")
        if self.pieces:
            fields[_STREAMED[item.type]] = wire.raw("".join(self.pieces))
        return structs.replace(item, raw=wire.encode(fields))


class UpstreamItems:
    """The items of one response that have begun and not ended."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int | str, _Open] = {}

    def start(self, output: NumberedItems, delta: UpstreamItemStarted) -> None:
        item_id = delta.item.id or output.name_item(delta.item.type)
        item = items.with_id(delta.item, item_id)
        output.start_item(Raw(item.raw))
        self._open[delta.key] = _Open(item, item_id, output.reserve(), len(output.generated))
        output.generated.append(item)

    def tell(self, output: NumberedItems, delta: UpstreamItemEvent) -> None:
        about = self._open[delta.key]
        if about.item.type in _STREAMED and isinstance(piece := delta.fields.get("delta"), str):
            about.pieces.append(piece)
        output.emit_at(about.index, delta.kind, item_id=about.id, **delta.fields)

    def end(self, output: NumberedItems, delta: UpstreamItemEnded) -> None:
        self._fill(output, self._open.pop(delta.key), delta.item)

    def break_off(self, output: NumberedItems) -> None:
        """The answer ends before these items do."""
        while self._open:
            about = self._open.pop(next(iter(self._open)))
            self._fill(output, about, about.cut_off())

    def _fill(self, output: NumberedItems, about: _Open, item: Item) -> None:
        kept = items.with_id(item, about.id)
        output.generated[about.place] = kept
        output.fill_with(about.index, kept)
