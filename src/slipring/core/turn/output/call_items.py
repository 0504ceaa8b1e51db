"""The item and the events of each kind of call that a model makes, while it writes the call and when it ends.

Calls that the client answers: ``open_call``. Calls that a server runs have a ``HostedForm``: calls of MCP
servers, web searches (with the sources that a result names), file searches (with its passages) and code.
Which of them run, and when, is decided in ``hosted_calls``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from slipring.core.chain import hosted_items_in_context
from slipring.core.generation import CallStarted
from slipring.core.hosted_tools import Builtin, CallOutcome, CallProgress, HostedTool
from slipring.core.turn.output.numbered_items import NumberedItems
from slipring.core.turn.output.search_results import passages_in, urls_in
from slipring.protocol import events, wire
from slipring.protocol.items.hosted_items import CallStatus, McpCall, error_text
from slipring.protocol.items.items import Item
from slipring.protocol.responses import (
    ApplyPatchCallItem,
    CodeInterpreterCallItem,
    CodeLogs,
    ComputerCallItem,
    CustomToolCallItem,
    FileSearchCallItem,
    FunctionCallItem,
    ItemStatus,
    LocalShellCallItem,
    McpCallItem,
    OutputItem,
    SearchAction,
    SearchSource,
    ShellCallItem,
    ToolSearchCallItem,
    WebSearchCallItem,
)
from slipring.protocol.tools.builtin_tools import FUNCTIONS
from slipring.protocol.tools.client_tools import LocalShellAction, ShellAction, UpdateFile, read_call
from slipring.protocol.tools.toolset import Kind

ClientCallItem = (
    ToolSearchCallItem | ShellCallItem | LocalShellCallItem | ApplyPatchCallItem | ComputerCallItem
)

SOURCES, RESULTS, OUTPUTS = (
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
)
"""What a request must ``include`` to see the results of built-in tools."""
_object = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)

# Calls that the client answers.


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


# Calls that a server runs.


class HostedForm(Protocol):
    """What clients and models see of one hosted call. ``text`` is what the model has written."""

    item_type: str

    def begin(self, output: NumberedItems, item_id: str) -> None:
        """Emit that the model writes a call. Its item has just been started."""

    def write(self, output: NumberedItems, item_id: str, text: str) -> None:
        """Emit the complete text of the call that was started last."""

    def run(self, output: NumberedItems, item_id: str) -> None:
        """Emit that the call that was started last runs."""

    def report(
        self, output: NumberedItems, index: int, item_id: str, progress: CallProgress, *, detailed: bool
    ) -> None:
        """Emit that the call still runs. ``detailed``: with what its server says."""

    def end(self, output: NumberedItems, index: int, item_id: str, outcome: CallOutcome) -> None:
        """Emit that the call has ended."""

    def item(
        self, item_id: str, text: str, status: ItemStatus, outcome: CallOutcome | None = None
    ) -> OutputItem:
        """The item. With an ``outcome``, that of a call that has ended."""

    def arguments(self, text: str) -> str:
        """The arguments for the server, as JSON."""

    def as_generated(self, item_id: str, text: str) -> Item:
        """The call as the model wrote it."""

    def broken_off(self, item_id: str, text: str) -> Item | None:
        """A call that will not run, as the model wrote it; None if contexts do not have it."""

    def result_text(self, outcome: CallOutcome) -> str:
        """What the model reads of the result."""

    def content(self, item_id: str, text: str, outcome: CallOutcome) -> tuple[Item, ...] | None:
        """What the item stands for in a context, if its JSON does not say it."""


class McpForm:
    """A call of a tool of an MCP server."""

    item_type = "mcp_call"

    def __init__(self, tool: HostedTool, approval_request_id: str | None = None) -> None:
        self._label = tool.label
        self._name = tool.tool.name
        self._approval_request_id = approval_request_id

    def begin(self, output: NumberedItems, item_id: str) -> None:
        output.emit(events.McpCallInProgress, item_id=item_id)

    def write(self, output: NumberedItems, item_id: str, text: str) -> None:
        output.emit(events.McpCallArgumentsDone, item_id=item_id, arguments=text)

    def run(self, output: NumberedItems, item_id: str) -> None:
        pass  # the API has no event for it

    def report(
        self, output: NumberedItems, index: int, item_id: str, progress: CallProgress, *, detailed: bool
    ) -> None:
        output.emit_at(index, events.McpCallInProgress, item_id=item_id)
        if detailed:
            output.emit_at(
                index,
                events.McpCallProgress,
                item_id=item_id,
                progress=progress.progress,
                total=progress.total,
                message=progress.message,
            )

    def end(self, output: NumberedItems, index: int, item_id: str, outcome: CallOutcome) -> None:
        kind = events.McpCallFailed if outcome.error is not None else events.McpCallCompleted
        output.emit_at(index, kind, item_id=item_id)

    def item(
        self, item_id: str, text: str, status: ItemStatus, outcome: CallOutcome | None = None
    ) -> McpCallItem:
        shown: CallStatus = status
        if outcome is not None:
            shown = "completed" if outcome.error is None else "failed"
        return McpCallItem(
            id=item_id,
            server_label=self._label,
            name=self._name,
            arguments=text,
            status=shown,
            output=outcome.output if outcome is not None else None,
            error=outcome.error if outcome is not None else None,
            approval_request_id=self._approval_request_id,
        )

    def arguments(self, text: str) -> str:
        return text

    def as_generated(self, item_id: str, text: str) -> Item:
        return hosted_items_in_context.call_item(item_id, self._label, self._name, text)

    def broken_off(self, item_id: str, text: str) -> Item:
        return hosted_items_in_context.call_item(item_id, self._label, self._name, text, "incomplete")

    def result_text(self, outcome: CallOutcome) -> str:
        return hosted_items_in_context.result_text(
            McpCall(self._label, self._name, "", outcome.output, outcome.error)
        )

    def content(self, item_id: str, text: str, outcome: CallOutcome) -> tuple[Item, ...] | None:
        if not outcome.pictures:
            return None
        call_id = self._approval_request_id or item_id
        shown = hosted_items_in_context.output_item(call_id, self.result_text(outcome), outcome.pictures)
        return self.as_generated(call_id, text), shown


class BuiltinForm(ABC):
    """A call of a built-in tool: what is common to searches and code."""

    item_type: str
    _started: type[events.CallEvent]
    _running: type[events.CallEvent]
    _completed: type[events.CallEvent]

    def __init__(self, builtin: Builtin, *, shows_result: bool) -> None:
        self._builtin = builtin
        self._shows_result = shows_result

    def begin(self, output: NumberedItems, item_id: str) -> None:
        output.emit(self._started, item_id=item_id)

    def write(self, output: NumberedItems, item_id: str, text: str) -> None:
        return  # searches show their query in the item

    def run(self, output: NumberedItems, item_id: str) -> None:
        output.emit(self._running, item_id=item_id)

    def report(
        self, output: NumberedItems, index: int, item_id: str, progress: CallProgress, *, detailed: bool
    ) -> None:
        output.emit_at(index, self._running, item_id=item_id)

    def end(self, output: NumberedItems, index: int, item_id: str, outcome: CallOutcome) -> None:
        if outcome.error is None:  # the API has no event for a failure
            output.emit_at(index, self._completed, item_id=item_id)

    @abstractmethod
    def item(
        self, item_id: str, text: str, status: ItemStatus, outcome: CallOutcome | None = None
    ) -> OutputItem:
        """The item. With an ``outcome``, that of a call that has ended."""

    @abstractmethod
    def refused(self, item_id: str, text: str) -> OutputItem:
        """The item of a call past ``max_tool_calls``: it stays as if it ran."""

    def read(self, text: str) -> str:
        """The query or the code in what the model has written; nothing if it is not in that form."""
        try:
            written = _object.decode(text or "{}").get(FUNCTIONS[self._builtin.kind].argument)
            return _text.decode(written) if written is not None else ""
        except (ValueError, RecursionError):
            return ""

    def arguments(self, text: str) -> str:
        return self._builtin.arguments(self.read(text))

    def as_generated(self, item_id: str, text: str) -> Item:
        return hosted_items_in_context.builtin_call_item(item_id, self._builtin.kind, self.read(text))

    def broken_off(self, item_id: str, text: str) -> None:
        return None  # its item shows a whole query or none

    def result_text(self, outcome: CallOutcome) -> str:
        return error_text(outcome.error) if outcome.error is not None else outcome.output or ""

    def content(self, item_id: str, text: str, outcome: CallOutcome) -> tuple[Item, ...]:
        result = hosted_items_in_context.output_item(item_id, self.result_text(outcome), outcome.pictures)
        return self.as_generated(item_id, text), result

    def _result(self, outcome: CallOutcome | None) -> str | None:
        """The result that the item shows; None if it shows none."""
        return outcome.output if outcome is not None and self._shows_result else None


class WebSearchForm(BuiltinForm):
    item_type = "web_search_call"
    _started = events.WebSearchCallInProgress
    _running = events.WebSearchCallSearching
    _completed = events.WebSearchCallCompleted

    def item(
        self, item_id: str, text: str, status: ItemStatus, outcome: CallOutcome | None = None
    ) -> WebSearchCallItem:
        if status == "in_progress":
            return WebSearchCallItem(item_id, status)
        result = self._result(outcome)
        sources = UNSET if result is None else [SearchSource(url) for url in urls_in(result)]
        return WebSearchCallItem(item_id, _ended(status, outcome), self._action(text, sources))

    def refused(self, item_id: str, text: str) -> WebSearchCallItem:
        return WebSearchCallItem(item_id, "searching", self._action(text))

    def _action(self, text: str, sources: list[SearchSource] | msgspec.UnsetType = UNSET) -> SearchAction:
        query = self.read(text)
        return SearchAction(query, [query] if query else [], sources)


class FileSearchForm(BuiltinForm):
    item_type = "file_search_call"
    _started = events.FileSearchCallInProgress
    _running = events.FileSearchCallSearching
    _completed = events.FileSearchCallCompleted

    def item(
        self, item_id: str, text: str, status: ItemStatus, outcome: CallOutcome | None = None
    ) -> FileSearchCallItem:
        result = self._result(outcome)
        passages = None if result is None else passages_in(result)
        return FileSearchCallItem(item_id, _ended(status, outcome), self._queries(text), passages)

    def refused(self, item_id: str, text: str) -> FileSearchCallItem:
        return FileSearchCallItem(item_id, "searching", self._queries(text))

    def _queries(self, text: str) -> list[str]:
        query = self.read(text)
        return [query] if query else []


class CodeForm(BuiltinForm):
    item_type = "code_interpreter_call"
    _started = events.CodeInterpreterCallInProgress
    _running = events.CodeInterpreterCallInterpreting
    _completed = events.CodeInterpreterCallCompleted

    def write(self, output: NumberedItems, item_id: str, text: str) -> None:
        # The model writes the code inside of JSON, so that it is known as a whole only.
        code = self.read(text)
        output.emit(events.CodeInterpreterCallCodeDelta, item_id=item_id, delta=code)
        output.emit(events.CodeInterpreterCallCodeDone, item_id=item_id, code=code)

    def item(
        self, item_id: str, text: str, status: ItemStatus, outcome: CallOutcome | None = None
    ) -> CodeInterpreterCallItem:
        outputs = self._outputs()
        result = self._result(outcome)
        if outputs is not None and result is not None:
            outputs.append(CodeLogs(result))
        return CodeInterpreterCallItem(
            item_id, _ended(status, outcome), self.read(text), self._container(item_id), outputs
        )

    def refused(self, item_id: str, text: str) -> CodeInterpreterCallItem:
        code, container = self.read(text), self._container(item_id)
        return CodeInterpreterCallItem(item_id, "interpreting", code, container, self._outputs())

    def _outputs(self) -> list[CodeLogs] | None:
        """The outputs of code that has not run: null if the client does not want to see any."""
        return [] if self._shows_result else None

    def _container(self, item_id: str) -> str:
        return self._builtin.container or f"cntr_{item_id.partition('_')[2]}"


def builtin_form(builtin: Builtin, include: frozenset[str]) -> BuiltinForm:
    """The form of a call of a built-in tool. ``include``: what the client wants to see."""
    if builtin.kind == "web_search":
        return WebSearchForm(builtin, shows_result=SOURCES in include)
    if builtin.kind == "file_search":
        return FileSearchForm(builtin, shows_result=RESULTS in include)
    return CodeForm(builtin, shows_result=OUTPUTS in include)


def _ended(status: ItemStatus, outcome: CallOutcome | None) -> ItemStatus | Literal["failed"]:
    if outcome is None:
        return status
    return "completed" if outcome.error is None else "failed"


def begin_call(output: NumberedItems, form: HostedForm) -> str:
    """Start the item of a call; returns its id."""
    item_id = output.name_item(form.item_type)
    output.start_item(form.item(item_id, "", "in_progress"))
    form.begin(output, item_id)
    return item_id
