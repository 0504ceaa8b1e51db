"""Calls that the client answers, while the model writes them: their events and their items."""

from typing import Protocol

import msgspec
from msgspec import UNSET, Raw

from slipring.core.generation import CallStarted
from slipring.protocol import events, wire
from slipring.protocol.responses import (
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    ToolSearchCallItem,
)


class CallOutput(Protocol):
    """The part of ``Output`` that a call writes to."""

    def name_item(self, kind: str) -> str: ...

    def mint_call(self) -> str: ...

    def start_item(self, item: OutputItem) -> None: ...

    def emit(self, kind: type[events.ItemEvent], **fields: object) -> None: ...


class Call:
    """An open ``function_call`` or ``custom_tool_call`` item. Opening it emits its ``added`` event."""

    __slots__ = ("_call_id", "_output", "_started", "delta_kind", "id", "pieces")

    def __init__(self, output: CallOutput, started: CallStarted) -> None:
        self._output = output
        self._started = started
        self.pieces: list[str] = []
        self.delta_kind = (
            events.FunctionCallArgumentsDelta if self._is_function else events.CustomToolCallInputDelta
        )
        self._call_id = output.mint_call()
        self.id = output.name_item("function_call" if self._is_function else "custom_tool_call")
        output.start_item(self._item("", "in_progress"))

    def close(self, status: ItemStatus) -> FunctionCallItem | CustomToolCallItem:
        """Emit the ``done`` event of its arguments and return the finished item."""
        text = "".join(self.pieces)
        if self._is_function:
            self._output.emit(events.FunctionCallArgumentsDone, item_id=self.id, arguments=text)
        else:
            self._output.emit(events.CustomToolCallInputDone, item_id=self.id, input=text)
        return self._item(text, status)

    @property
    def _is_function(self) -> bool:
        return self._started.kind == "function"

    def _item(self, text: str, status: ItemStatus) -> FunctionCallItem | CustomToolCallItem:
        started = self._started
        namespace = started.namespace if started.namespace is not None else UNSET
        if self._is_function:
            return FunctionCallItem(
                id=self.id,
                call_id=self._call_id,
                name=started.name,
                arguments=text,
                status=status,
                namespace=namespace,
            )
        return CustomToolCallItem(
            id=self.id, call_id=self._call_id, name=started.name, input=text, namespace=namespace
        )


class Search:
    """An open ``tool_search_call`` item. The API has no delta events for its arguments."""

    __slots__ = ("_call_id", "_id", "pieces")

    def __init__(self, output: CallOutput) -> None:
        self.pieces: list[str] = []
        self._call_id = output.mint_call()
        self._id = output.name_item("tool_search_call")
        output.start_item(self._item(Raw(b"{}"), "in_progress"))

    def close(self, status: ItemStatus) -> ToolSearchCallItem:
        return self._item(_as_json("".join(self.pieces)), status)

    def _item(self, arguments: Raw, status: ItemStatus) -> ToolSearchCallItem:
        return ToolSearchCallItem(id=self._id, call_id=self._call_id, arguments=arguments, status=status)


def open_call(output: CallOutput, started: CallStarted) -> Call | Search:
    return Search(output) if started.kind == "tool_search" else Call(output, started)


def _as_json(text: str) -> Raw:
    """The arguments as JSON; invalid JSON, such as a truncated object, becomes a JSON string."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return wire.raw(text)
    return Raw(text.encode())
