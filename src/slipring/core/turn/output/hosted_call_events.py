"""Hosted calls and lists of tools in the output of a response: their items and events, while the model
writes them and while they run.
"""

from abc import ABC, abstractmethod
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from slipring.core.chain import hosted_items_in_context
from slipring.core.hosted.tools import Builtin, CallOutcome, CallProgress, HostedCall, HostedTool
from slipring.core.turn.output.numbered_items import NumberedItems
from slipring.core.turn.output.search_results import passages_in, urls_in
from slipring.protocol import events
from slipring.protocol.hosted.builtin_tools import FUNCTIONS
from slipring.protocol.hosted.hosted_items import CallError, CallStatus, McpCall, ProtocolError, error_text
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.items import Item
from slipring.protocol.responses import (
    CodeInterpreterCallItem,
    CodeLogs,
    FileSearchCallItem,
    ItemStatus,
    McpApprovalRequestItem,
    McpCallItem,
    McpListToolsItem,
    OutputItem,
    SearchAction,
    SearchSource,
    WebSearchCallItem,
)

SOURCES, RESULTS, OUTPUTS = (
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
)
"""What a request must ``include`` to see the results of built-in tools."""


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


_object = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)


class OpenHostedCall:
    """A hosted call that the model is writing. Opening it emits its first events."""

    __slots__ = ("_form", "_output", "id", "pieces", "tool")

    def __init__(self, output: NumberedItems, tool: HostedTool, form: HostedForm) -> None:
        self._output = output
        self._form = form
        self.tool = tool
        self.pieces: list[str] = []
        self.id = begin_call(output, form)

    def run(self) -> "RunningCall":
        """The arguments are complete: keep the item's place in the output until the call has ended."""
        return _run(self._output, self.id, self.tool, self._form, self._finish_arguments())

    def break_off(self) -> Item | None:
        """End a call that will not run: the model broke it off, or the answer was cut. Returns it as the
        model wrote it; None if its item does not stand for it in a context."""
        text = self._finish_arguments()
        self._output.keep(self._form.item(self.id, text, "incomplete"))
        return self._form.broken_off(self.id, text)

    def _finish_arguments(self) -> str:
        arguments = "".join(self.pieces)
        self._form.write(self._output, self.id, arguments)
        return arguments


class OpenMcpCall(OpenHostedCall):
    """An ``mcp_call``: clients see its arguments while the model writes them."""

    __slots__ = ("delta_kind",)

    def __init__(self, output: NumberedItems, tool: HostedTool) -> None:
        self.delta_kind = events.McpCallArgumentsDelta
        super().__init__(output, tool, McpForm(tool))


class OpenApproval:
    """A call that needs approval, while the model writes it. Clients see it only once it is complete."""

    __slots__ = ("pieces", "tool")

    def __init__(self, tool: HostedTool) -> None:
        self.tool = tool
        self.pieces: list[str] = []

    def item(self, item_id: str) -> McpApprovalRequestItem:
        tool = self.tool
        return McpApprovalRequestItem(
            id=item_id, server_label=tool.label, name=tool.tool.name, arguments="".join(self.pieces)
        )


class RunningCall(Struct, frozen=True, eq=False):
    """A hosted call that runs, and its place in the output."""

    call: HostedCall
    index: int
    form: HostedForm
    written: str
    """What the model wrote."""
    approval_request_id: str | None = None

    def as_generated(self) -> Item:
        """The call as the model wrote it."""
        return self.form.as_generated(self.call.id, self.written)

    def result_text(self, outcome: CallOutcome) -> str:
        """What the model reads of the result."""
        return self.form.result_text(outcome)

    def report(self, output: NumberedItems, progress: CallProgress, *, detailed: bool) -> None:
        """Emit that the call still runs. ``detailed``: with what its server says."""
        self.form.report(output, self.index, self.call.id, progress, detailed=detailed)

    def end(self, output: NumberedItems, outcome: CallOutcome) -> None:
        """Emit the end of the call, and fill its place."""
        item_id, form = self.call.id, self.form
        form.end(output, self.index, item_id, outcome)
        item = form.item(item_id, self.written, "completed", outcome)
        output.fill(self.index, item, form.content(item_id, self.written, outcome))


def run_approved(output: NumberedItems, tool: HostedTool, arguments: str, request_id: str) -> RunningCall:
    """Emit the beginning of a call that the client has approved: as recorded, ``in_progress`` twice."""
    form = McpForm(tool, request_id)
    item_id = begin_call(output, form)
    output.emit(events.McpCallArgumentsDelta, item_id=item_id, delta=arguments)
    form.begin(output, item_id)
    form.write(output, item_id, arguments)
    return _run(output, item_id, tool, form, arguments, request_id)


def begin_call(output: NumberedItems, form: HostedForm) -> str:
    """Start the item of a call; returns its id."""
    item_id = output.name_item(form.item_type)
    output.start_item(form.item(item_id, "", "in_progress"))
    form.begin(output, item_id)
    return item_id


def _run(
    output: NumberedItems,
    item_id: str,
    tool: HostedTool,
    form: HostedForm,
    written: str,
    request_id: str | None = None,
) -> RunningCall:
    form.run(output, item_id)
    call = HostedCall(item_id, tool.server, tool.label, tool.tool.name, form.arguments(written))
    return RunningCall(call, output.reserve(), form, written, request_id)


_REQUEST_CANCELLED = -32800
_LOST = ProtocolError(_REQUEST_CANCELLED, "The list of tools is not available.")
"""Why a list is empty that its response did not wait for, or that may not be shown."""


class HostedLists:
    """The lists of one response. Clients see at once that they are fetched, and their content by ``show``."""

    __slots__ = ("_ended", "_running")

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, int]] = {}
        """By label, the id and the place of each list that has no end yet for the client."""
        self._ended: dict[str, tuple[list[ListedTool], CallError | None]] = {}
        """By label, what can be shown."""

    def begin(self, output: NumberedItems, label: str, tag: str) -> None:
        """A list is being fetched. ``tag``: text that the id of its item ends with."""
        item_id = output.name_item("mcp_list_tools", tag)
        output.start_item(McpListToolsItem(id=item_id, server_label=label, tools=[]))
        output.emit(events.McpListToolsInProgress, item_id=item_id)
        self._running[label] = item_id, output.reserve()

    def end(self, label: str, tools: list[ListedTool], error: CallError | None) -> None:
        """A list has been fetched: ``tools`` is what the client lets the model call."""
        self._ended[label] = tools, error

    def show(self, output: NumberedItems) -> None:
        """Emit the lists that have been fetched since the last time."""
        ended, self._ended = self._ended, {}
        for label, (tools, error) in ended.items():
            self._show(output, label, tools, error)

    def end_all(self, output: NumberedItems) -> None:
        """The response has ended: no list is shown any more."""
        self._ended = {}
        for label in list(self._running):
            self._show(output, label, [], _LOST)

    def _show(
        self, output: NumberedItems, label: str, tools: list[ListedTool], error: CallError | None
    ) -> None:
        """Emit the end of a list, and fill its place. The only way in which anything of a list reaches the
        client."""
        item_id, index = self._running.pop(label)
        kind = events.McpListToolsCompleted if error is None else events.McpListToolsFailed
        output.emit_at(index, kind, item_id=item_id)
        text = UNSET if error is None else error_text(error)
        output.fill(index, McpListToolsItem(id=item_id, server_label=label, tools=tools, error=text))
