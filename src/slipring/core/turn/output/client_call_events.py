"""Calls that the client answers, while the model writes them: their events and their items."""

from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from slipring.core.generation import CallStarted
from slipring.protocol import events, wire
from slipring.protocol.client_tools import (
    ComputerAction,
    FileOperation,
    LocalShellAction,
    ShellAction,
    UpdateFile,
)
from slipring.protocol.responses import (
    ApplyPatchCallItem,
    ComputerCallItem,
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    LocalShellCallItem,
    OutputItem,
    ShellCallItem,
    ToolSearchCallItem,
)
from slipring.protocol.tools import Kind

T = TypeVar("T")
ClientCallItem = (
    ToolSearchCallItem | ShellCallItem | LocalShellCallItem | ApplyPatchCallItem | ComputerCallItem
)


class CallOutput(Protocol):
    """The part of ``Output`` that a call writes to."""

    def name_item(self, kind: str, tag: str | None = None) -> str: ...

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

    def __init__(self, output: CallOutput, form: "CallForm") -> None:
        self.pieces: list[str] = []
        self._form = form
        self._call_id = output.mint_call()
        self._id = output.name_item(form.item_type)
        output.start_item(form.opened(self._id, self._call_id))

    def close(self, status: ItemStatus) -> ClientCallItem:
        """The finished item. Arguments that are not in its form make it incomplete: it needs no answer."""
        return self._form.closed(self._id, self._call_id, "".join(self.pieces), status)


class CallForm(Protocol):
    """The form of the items of one tool."""

    item_type: str

    def opened(self, item_id: str, call_id: str) -> ClientCallItem:
        """The item of a call whose arguments the model is writing."""

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> ClientCallItem:
        """The finished item."""


class _SearchForm:
    item_type = "tool_search_call"

    def opened(self, item_id: str, call_id: str) -> ToolSearchCallItem:
        return ToolSearchCallItem(id=item_id, call_id=call_id, arguments=Raw(b"{}"), status="in_progress")

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> ToolSearchCallItem:
        return ToolSearchCallItem(id=item_id, call_id=call_id, arguments=_as_json(arguments), status=status)


class _ShellForm:
    item_type = "shell_call"

    def opened(self, item_id: str, call_id: str) -> ShellCallItem:
        return ShellCallItem(
            id=item_id, call_id=call_id, action=ShellAction(commands=[]), status="in_progress"
        )

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> ShellCallItem:
        action = _decoded(_shell_action, arguments)
        if action is None:
            action, status = ShellAction(commands=[]), "incomplete"
        return ShellCallItem(id=item_id, call_id=call_id, action=action, status=status)


class _LocalShellForm:
    item_type = "local_shell_call"

    def opened(self, item_id: str, call_id: str) -> LocalShellCallItem:
        action = LocalShellAction(command=[])
        return LocalShellCallItem(id=item_id, call_id=call_id, action=action, status="in_progress")

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> LocalShellCallItem:
        written = _decoded(_program, arguments)
        if written is None:
            written, status = _Program(command=[]), "incomplete"
        action = LocalShellAction(
            command=written.command,
            timeout_ms=written.timeout_ms,
            working_directory=written.working_directory,
        )
        return LocalShellCallItem(id=item_id, call_id=call_id, action=action, status=status)


class _PatchForm:
    item_type = "apply_patch_call"

    def opened(self, item_id: str, call_id: str) -> ApplyPatchCallItem:
        nothing = UpdateFile(path="", diff="")
        return ApplyPatchCallItem(id=item_id, call_id=call_id, operation=nothing, status="in_progress")

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> ApplyPatchCallItem:
        operation = _decoded(_operation, arguments)
        if operation is None or status != "completed":
            return self.opened(item_id, call_id)  # the API has no other status for a call that was cut off
        return ApplyPatchCallItem(id=item_id, call_id=call_id, operation=operation, status="completed")


class _ComputerForm:
    """Calls of ``computer``: lists of actions."""

    item_type = "computer_call"

    def opened(self, item_id: str, call_id: str) -> ComputerCallItem:
        return ComputerCallItem(id=item_id, call_id=call_id, actions=[], status="in_progress")

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> ComputerCallItem:
        written = _decoded(_actions, arguments)
        if written is None:
            written, status = _Actions([]), "incomplete"
        return ComputerCallItem(id=item_id, call_id=call_id, actions=written.actions, status=status)


class _ComputerPreviewForm:
    """Calls of ``computer_use_preview``: single actions."""

    item_type = "computer_call"

    def opened(self, item_id: str, call_id: str) -> ComputerCallItem:
        return ComputerCallItem(id=item_id, call_id=call_id, status="in_progress")

    def closed(self, item_id: str, call_id: str, arguments: str, status: ItemStatus) -> ComputerCallItem:
        written = _decoded(_one_action, arguments)
        if written is None:
            return ComputerCallItem(id=item_id, call_id=call_id, status="incomplete")
        return ComputerCallItem(id=item_id, call_id=call_id, action=written.action, status=status)


class _Actions(Struct):
    """The arguments of ``computer`` as a model writes them."""

    actions: list[ComputerAction]


class _OneAction(Struct):
    """The arguments of ``computer_use_preview`` as a model writes them."""

    action: ComputerAction


class _Program(Struct):
    """The arguments of ``local_shell`` as a model writes them."""

    command: list[str]
    working_directory: str | None = None
    timeout_ms: int | None = None


_shell_action = msgspec.json.Decoder(ShellAction)
_program = msgspec.json.Decoder(_Program)
_operation: msgspec.json.Decoder[FileOperation] = msgspec.json.Decoder(FileOperation)
_actions = msgspec.json.Decoder(_Actions)
_one_action = msgspec.json.Decoder(_OneAction)
_FORMS: dict[Kind, CallForm] = {
    "tool_search": _SearchForm(),
    "shell": _ShellForm(),
    "local_shell": _LocalShellForm(),
    "apply_patch": _PatchForm(),
    "computer": _ComputerForm(),
    "computer_use_preview": _ComputerPreviewForm(),
}


def open_call(output: CallOutput, started: CallStarted) -> Call | WholeCall:
    form = _FORMS.get(started.kind)
    return WholeCall(output, form) if form is not None else Call(output, started)


def _decoded(decoder: msgspec.json.Decoder[T], text: str) -> T | None:
    """Arguments that a model wrote; None if they are not in the form of the tool."""
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def _as_json(text: str) -> Raw:
    """The arguments as JSON; invalid JSON, such as a truncated object, becomes a JSON string."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return wire.raw(text)
    return Raw(text.encode())
