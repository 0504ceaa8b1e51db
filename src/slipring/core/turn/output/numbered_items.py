"""The items of one response and the events about them: sequence numbers, output indexes, ids and places.

A hosted call runs on after the model has written it: its place in the output is reserved until it ends. Each
finished item is encoded once; ``output_item.done``, the terminal event and the stored state share these
bytes.
"""

from msgspec import Raw, UnsetType

from slipring.core.chain import item_ids
from slipring.core.ports import Mint
from slipring.protocol import events, wire
from slipring.protocol.events import Event
from slipring.protocol.items.items import Item
from slipring.protocol.responses import (
    ApplyPatchCallItem,
    ComputerCallItem,
    CustomToolCallItem,
    FunctionCallItem,
    LocalShellCallItem,
    OutputItem,
    ShellCallItem,
    ToolSearchCallItem,
)

CLIENT_CALLS = (
    FunctionCallItem,
    CustomToolCallItem,
    ToolSearchCallItem,
    ShellCallItem,
    LocalShellCallItem,
    ApplyPatchCallItem,
    ComputerCallItem,
)


def _encoded(item: OutputItem, content: tuple[Item, ...] | None) -> Item:
    raw = wire.encode(item)
    call_id = item.call_id if isinstance(item, CLIENT_CALLS) else None
    kind = type(item).__struct_config__.tag
    assert isinstance(kind, str)
    return Item(type=kind, raw=raw, id=item.id, call_id=call_id, opened=content)


class NumberedItems:
    """The finished items, the places that are reserved, and the events that were emitted."""

    __slots__ = (
        "_events",
        "_follows_call",
        "_index",
        "_mint",
        "_sequence",
        "_waiting",
        "finished",
        "generated",
        "items",
        "response_id",
        "stream_id",
    )

    def __init__(self, mint: Mint, stream_id: str | UnsetType) -> None:
        self.stream_id = stream_id
        self.response_id = ""
        """Item ids are derived from it. Set when the output begins."""
        self.items: list[Item] = []
        """Finished items, up to the first hosted call that still runs."""
        self.finished: list[Item] = []
        """All finished items, in the order in which they were finished."""
        self.generated: list[Item] = []
        """What the model has written in the current step, as the model sees it."""
        self._follows_call = False
        """Whether ids say that a call precedes the next item in its step. Only responses with hosted calls
        have several steps."""
        self._waiting: list[Item | None] = []
        """Items from the first place that is reserved on; None: the place is reserved."""
        self._mint = mint
        self._index = -1
        self._sequence = -1
        self._events: list[Event] = []

    def number(self) -> int:
        """The next sequence number."""
        self._sequence += 1
        return self._sequence

    def emit(self, kind: type[events.ItemEvent], **fields: object) -> None:
        """Add an event about the item that was started last."""
        self.emit_at(self._index, kind, **fields)

    def emit_at(self, index: int, kind: type[events.ItemEvent], **fields: object) -> None:
        """Add an event about the item at this index."""
        self._events.append(
            kind(sequence_number=self.number(), stream_id=self.stream_id, output_index=index, **fields)
        )

    def take_events(self) -> list[Event]:
        """The events that were emitted and not returned yet."""
        emitted, self._events = self._events, []
        return emitted

    def name_item(self, kind: str, tag: str | None = None) -> str:
        """The id of the next item. ``tag``: text that the id ends with."""
        index = self._index + 1
        return item_ids.output_id(kind, self.response_id, index, same_step=self._follows_call, tag=tag)

    def mint_call(self) -> str:
        return self._mint("call")

    def start_item(self, item: OutputItem | Raw) -> None:
        self._index += 1
        self.emit(events.OutputItemAdded, item=item)

    def keep(self, item: OutputItem, content: tuple[Item, ...] | None = None) -> Item:
        """Finish the item that was started last; ``content`` is what it stands for in a context."""
        kept = _encoded(item, content)
        self.add(kept)
        self.emit(events.OutputItemDone, item=Raw(kept.raw))
        return kept

    def reserve(self) -> int:
        """Keep the place of the item that was started last, for a later ``fill``; returns its index."""
        self._waiting.append(None)
        return self._index

    def fill(self, index: int, item: OutputItem, content: tuple[Item, ...] | None = None) -> None:
        """Finish the item at a reserved place; ``content`` is what it stands for in a context."""
        self.fill_with(index, _encoded(item, content))

    def fill_with(self, index: int, kept: Item) -> None:
        """Finish the item at a reserved place, encoded already."""
        self.finished.append(kept)
        self._waiting[index - len(self.items)] = kept
        while self._waiting and (first := self._waiting[0]) is not None:
            self.items.append(first)
            del self._waiting[0]
        self.emit_at(index, events.OutputItemDone, item=Raw(kept.raw))

    def add(self, item: Item) -> None:
        """Add a finished item, without an event."""
        self.finished.append(item)
        if self._waiting:
            self._waiting.append(item)
        else:
            self.items.append(item)

    def raw_items(self) -> list[Raw]:
        return [Raw(item.raw) for item in self.items]
