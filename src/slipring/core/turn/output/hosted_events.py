"""Hosted calls while the model writes them and while they run, and lists of tools while they are fetched:
their events and their items."""

from typing import Protocol

from msgspec import UNSET, Struct

from slipring.core.chain import hosted_items
from slipring.core.generation import CallStarted
from slipring.core.hosted.tools import (
    CallOutcome,
    CallProgress,
    HostedCall,
    HostedTool,
)
from slipring.core.turn.output.hosted_forms import BuiltinForm, EventOutput, HostedForm, McpForm
from slipring.protocol import events
from slipring.protocol.hosted.hosted_items import CallError, ProtocolError, error_text
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.items import Item
from slipring.protocol.responses import (
    McpApprovalRequestItem,
    McpListToolsItem,
    OutputItem,
)


class HostedOutput(EventOutput, Protocol):
    """The part of ``Output`` that hosted calls write to."""

    def reserve(self) -> int:
        """Keep the place of the item that was started last, for a later ``fill``; returns its index."""

    def fill(self, index: int, item: OutputItem, content: tuple[Item, ...] | None = None) -> None:
        """Finish the item at a reserved place; ``content`` is what it stands for in a context."""

    def keep(self, item: OutputItem, content: tuple[Item, ...] | None = None) -> Item:
        """Finish the item that was started last."""


class OpenHostedCall:
    """A hosted call that the model is writing. Opening it emits its first events."""

    __slots__ = ("_form", "_output", "id", "pieces", "tool")

    def __init__(self, output: HostedOutput, tool: HostedTool, form: HostedForm) -> None:
        self._output = output
        self._form = form
        self.tool = tool
        self.pieces: list[str] = []
        self.id = _begin(output, form)

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

    def __init__(self, output: HostedOutput, tool: HostedTool) -> None:
        self.delta_kind = events.McpCallArgumentsDelta
        super().__init__(output, tool, McpForm(tool))


class RefusedCall:
    """A call of a built-in tool past ``max_tool_calls``. Clients see it begin, and never end; the model reads
    ``reason`` as its result."""

    __slots__ = ("_form", "_output", "id", "pieces", "reason")

    def __init__(self, output: HostedOutput, form: BuiltinForm, reason: str) -> None:
        self._output = output
        self._form = form
        self.reason = reason
        self.pieces: list[str] = []
        self.id = _begin(output, form)

    def as_generated(self, call_id: str) -> Item:
        """The call as the model wrote it."""
        return self._form.as_generated(call_id, "".join(self.pieces))

    def close(self) -> OutputItem:
        arguments = "".join(self.pieces)
        self._form.write(self._output, self.id, arguments)
        self._form.run(self._output, self.id)
        return self._form.refused(self.id, arguments)


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


class RejectedCall:
    """A call that is not made, while the model writes it: of a tool that is not on offer, or past
    ``max_tool_calls``. Clients see nothing of it; the model reads ``reason`` as its result."""

    __slots__ = ("_started", "pieces", "reason")

    def __init__(self, started: CallStarted, reason: str) -> None:
        self._started = started
        self.reason = reason
        self.pieces: list[str] = []

    def as_generated(self, call_id: str) -> Item:
        """The call as the model wrote it."""
        return hosted_items.rejected_call_item(
            call_id, self._started.namespace, self._started.name, "".join(self.pieces)
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

    def report(self, output: HostedOutput, progress: CallProgress, *, detailed: bool) -> None:
        """Emit that the call still runs. ``detailed``: with what its server says."""
        self.form.report(output, self.index, self.call.id, progress, detailed=detailed)

    def end(self, output: HostedOutput, outcome: CallOutcome) -> None:
        """Emit the end of the call, and fill its place."""
        item_id, form = self.call.id, self.form
        form.end(output, self.index, item_id, outcome)
        item = form.item(item_id, self.written, "completed", outcome)
        output.fill(self.index, item, form.content(item_id, self.written, outcome))


def run_approved(output: HostedOutput, tool: HostedTool, arguments: str, request_id: str) -> RunningCall:
    """Emit the beginning of a call that the client has approved: as recorded, ``in_progress`` twice."""
    form = McpForm(tool, request_id)
    item_id = _begin(output, form)
    output.emit(events.McpCallArgumentsDelta, item_id=item_id, delta=arguments)
    form.begin(output, item_id)
    form.write(output, item_id, arguments)
    return _run(output, item_id, tool, form, arguments, request_id)


def _begin(output: HostedOutput, form: HostedForm) -> str:
    """Start the item of a call; returns its id."""
    item_id = output.name_item(form.item_type)
    output.start_item(form.item(item_id, "", "in_progress"))
    form.begin(output, item_id)
    return item_id


def _run(
    output: HostedOutput,
    item_id: str,
    tool: HostedTool,
    form: HostedForm,
    written: str,
    request_id: str | None = None,
) -> RunningCall:
    form.run(output, item_id)
    call = HostedCall(item_id, tool.server, tool.label, tool.tool.name, form.arguments(written))
    return RunningCall(call, output.reserve(), form, written, request_id)


class RunningList(Struct, frozen=True, eq=False):
    """A list of tools that is being fetched, and its place in the output."""

    id: str
    label: str
    index: int

    def end(self, output: HostedOutput, tools: list[ListedTool], error: CallError | None = None) -> None:
        """Emit the end of the list, and fill its place: ``tools`` is what the client lets the model call. The
        only way in which anything of a list reaches the client."""
        kind = events.McpListToolsCompleted if error is None else events.McpListToolsFailed
        output.emit_at(self.index, kind, item_id=self.id)
        text = UNSET if error is None else error_text(error)
        output.fill(
            self.index, McpListToolsItem(id=self.id, server_label=self.label, tools=tools, error=text)
        )


def begin_list(output: HostedOutput, label: str, tag: str) -> RunningList:
    """Emit that a list is being fetched. ``tag``: text that the id of its item ends with."""
    item_id = output.name_item("mcp_list_tools", tag)
    output.start_item(McpListToolsItem(id=item_id, server_label=label, tools=[]))
    output.emit(events.McpListToolsInProgress, item_id=item_id)
    return RunningList(item_id, label, output.reserve())


_REQUEST_CANCELLED = -32800
_LOST = ProtocolError(_REQUEST_CANCELLED, "The list of tools is not available.")
"""Why a list is empty that its response did not wait for, or that may not be shown."""


class HostedLists:
    """The lists of one response. Clients see at once that they are fetched, and their content by ``show``."""

    __slots__ = ("_ended", "_running")

    def __init__(self) -> None:
        self._running: dict[str, RunningList] = {}
        """By label, what has no end yet for the client."""
        self._ended: dict[str, tuple[list[ListedTool], CallError | None]] = {}
        """By label, what can be shown."""

    def begin(self, output: HostedOutput, label: str, tag: str) -> None:
        """A list is being fetched. ``tag``: text that the id of its item ends with."""
        self._running[label] = begin_list(output, label, tag)

    def end(self, label: str, tools: list[ListedTool], error: CallError | None) -> None:
        """A list has been fetched: ``tools`` is what the client lets the model call."""
        self._ended[label] = tools, error

    def show(self, output: HostedOutput) -> None:
        """Emit the lists that have been fetched since the last time."""
        ended, self._ended = self._ended, {}
        for label, (tools, error) in ended.items():
            self._running.pop(label).end(output, tools, error)

    def end_all(self, output: HostedOutput) -> None:
        """The response has ended: no list is shown any more."""
        self._ended = {}
        for label in list(self._running):
            self._running.pop(label).end(output, [], _LOST)
