"""Calls that the client answers, while the model writes them: their events and their items."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from slipring.core.generation import CallStarted
from slipring.core.turn.output.numbered_items import NumberedItems
from slipring.protocol import events, wire
from slipring.protocol.client_tools import LocalShellAction, ShellAction, UpdateFile, read_call
from slipring.protocol.responses import (
    ApplyPatchCallItem,
    ComputerCallItem,
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    LocalShellCallItem,
    ShellCallItem,
    ToolSearchCallItem,
)
from slipring.protocol.tools import Kind

ClientCallItem = (
    ToolSearchCallItem | ShellCallItem | LocalShellCallItem | ApplyPatchCallItem | ComputerCallItem
)


class Call:
    """An open ``function_call`` or ``custom_tool_call`` item. Opening it emits its ``added`` event."""

    __slots__ = ("_call_id", "_output", "_started", "delta_kind", "id", "pieces")

    def __init__(self, output: NumberedItems, started: CallStarted) -> None:
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
        return self._started.kind != "custom"

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
            id=self.id,
            call_id=self._call_id,
            name=started.name,
            input=text,
            status=status,
            namespace=namespace,
        )


class WholeCall:
    """An open call of a tool whose arguments the API has no delta events for: clients see them once they are
    complete."""

    __slots__ = ("_call_id", "_form", "_id", "pieces")

    def __init__(self, output: NumberedItems, form: "_Form") -> None:
        self.pieces: list[str] = []
        self._form = form
        self._call_id = output.mint_call()
        self._id = output.name_item(form.item.__struct_config__.tag)
        output.start_item(self._item("in_progress", form.nothing))

    def close(self, status: ItemStatus) -> ClientCallItem:
        """The finished item. Arguments that are not in its form make it incomplete: it needs no answer."""
        fields = self._form.read("".join(self.pieces))
        if fields is None:
            return self._item(self._form.broken_off, self._form.nothing)
        if status != "completed" and self._form.broken_off == "in_progress":
            return self._item("in_progress", self._form.nothing)
        return self._item(status, fields)

    def _item(self, status: ItemStatus, fields: Mapping[str, Any]) -> ClientCallItem:
        item: ClientCallItem = self._form.item(id=self._id, call_id=self._call_id, status=status, **fields)
        return item


class _Form(Struct, frozen=True):
    """The form of the items of one tool."""

    item: Any
    nothing: Mapping[str, Any]
    """The fields of a call without arguments."""
    read: Callable[[str], Mapping[str, Any] | None]
    """The fields that arguments become; None if these are not in the form of the tool."""
    broken_off: ItemStatus = "incomplete"
    """The status of a call whose arguments are not in the form."""


_FORMS: dict[Kind, _Form] = {
    "tool_search": _Form(
        ToolSearchCallItem,
        {"arguments": Raw(b"{}")},
        lambda arguments: {"arguments": _as_json(arguments)},
    ),
    "shell": _Form(ShellCallItem, {"action": ShellAction(commands=[])}, partial(read_call, "shell")),
    "local_shell": _Form(
        LocalShellCallItem, {"action": LocalShellAction(command=[])}, partial(read_call, "local_shell")
    ),
    "apply_patch": _Form(
        ApplyPatchCallItem,
        {"operation": UpdateFile(path="", diff="")},
        partial(read_call, "apply_patch"),
        broken_off="in_progress",  # the API has no other status for a call that was cut off
    ),
    "computer": _Form(ComputerCallItem, {"actions": []}, partial(read_call, "computer")),
    "computer_use_preview": _Form(ComputerCallItem, {}, partial(read_call, "computer_use_preview")),
}


def open_call(output: NumberedItems, started: CallStarted) -> Call | WholeCall:
    form = _FORMS.get(started.kind)
    return WholeCall(output, form) if form is not None else Call(output, started)


def _as_json(text: str) -> Raw:
    """The arguments as JSON; invalid JSON, such as a truncated object, becomes a JSON string."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return wire.raw(text)
    return Raw(text.encode())
