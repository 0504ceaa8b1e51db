"""Hosted calls while the model writes them and while they run: their events and their items."""

from typing import Protocol

from msgspec import UNSET, Struct

from slipring.core.chain import hosted_items
from slipring.core.hosted.tools import (
    CallOutcome,
    CallProgress,
    HostedCall,
    HostedTool,
    ResolvedServer,
)
from slipring.core.turn.call_events import CallOutput
from slipring.protocol import events
from slipring.protocol.hosted.mcp_items import CallStatus, McpCall, error_text
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.items import Item
from slipring.protocol.responses import (
    McpApprovalRequestItem,
    McpCallItem,
    McpListToolsItem,
    OutputItem,
)


class HostedOutput(CallOutput, Protocol):
    """The part of ``Output`` that hosted calls write to."""

    def emit_at(self, index: int, kind: type[events.ItemEvent], **fields: object) -> None: ...

    def reserve(self) -> int:
        """Keep the place of the item that was started last, for a later ``fill``; returns its index."""

    def fill(self, index: int, item: OutputItem) -> None:
        """Finish the item at a reserved place."""

    def keep(self, item: OutputItem, content: tuple[Item, ...] | None = None) -> Item:
        """Finish the item that was started last."""


class OpenMcpCall:
    """An ``mcp_call`` whose arguments the model is writing. Opening it emits its first events."""

    __slots__ = ("_output", "delta_kind", "id", "pieces", "tool")

    def __init__(self, output: HostedOutput, tool: HostedTool) -> None:
        self._output = output
        self.tool = tool
        self.pieces: list[str] = []
        self.delta_kind = events.McpCallArgumentsDelta
        self.id = output.name_item("mcp_call")
        output.start_item(self._item("", "in_progress"))
        output.emit(events.McpCallInProgress, item_id=self.id)

    def run(self) -> "RunningCall":
        """The arguments are complete: keep the item's place in the output until the call has ended."""
        return _run(self._output, self.id, self.tool, self._finish_arguments())

    def break_off(self) -> Item:
        """End a call that will not run: the model broke it off, or the answer was cut. Returns it as the
        model wrote it."""
        item = self._item(self._finish_arguments(), "incomplete")
        self._output.keep(item)
        return hosted_items.call_item(self.id, item.server_label, item.name, item.arguments, "incomplete")

    def _finish_arguments(self) -> str:
        arguments = "".join(self.pieces)
        self._output.emit(events.McpCallArgumentsDone, item_id=self.id, arguments=arguments)
        return arguments

    def _item(self, arguments: str, status: CallStatus) -> McpCallItem:
        tool = self.tool
        return McpCallItem(
            id=self.id, server_label=tool.label, name=tool.tool.name, arguments=arguments, status=status
        )


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


class DroppedCall:
    """A hosted call past ``max_tool_calls``, while the model writes it: it leaves nothing."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []


class RunningCall(Struct, frozen=True, eq=False):
    """A hosted call that runs, and its place in the output."""

    call: HostedCall
    index: int
    approval_request_id: str | None = None

    def as_generated(self) -> Item:
        """The call as the model wrote it."""
        call = self.call
        return hosted_items.call_item(call.id, call.label, call.tool, call.arguments)

    def result_text(self, outcome: CallOutcome) -> str:
        """What the model reads of the result."""
        call = self.call
        ended = McpCall(call.label, call.tool, call.arguments, outcome.output, outcome.error)
        return hosted_items.result_text(ended)

    def report(self, output: HostedOutput, progress: CallProgress, *, detailed: bool) -> None:
        """Emit that the call still runs. ``detailed``: with what its server says."""
        item_id = self.call.id
        output.emit_at(self.index, events.McpCallInProgress, item_id=item_id)
        if detailed:
            output.emit_at(
                self.index,
                events.McpCallProgress,
                item_id=item_id,
                progress=progress.progress,
                total=progress.total,
                message=progress.message,
            )

    def end(self, output: HostedOutput, outcome: CallOutcome) -> None:
        """Emit the end of the call, and fill its place."""
        call, has_failed = self.call, outcome.error is not None
        kind = events.McpCallFailed if has_failed else events.McpCallCompleted
        output.emit_at(self.index, kind, item_id=call.id)
        item = McpCallItem(
            id=call.id,
            server_label=call.label,
            name=call.tool,
            arguments=call.arguments,
            status="failed" if has_failed else "completed",
            output=outcome.output,
            error=outcome.error,
            approval_request_id=self.approval_request_id,
        )
        output.fill(self.index, item)


def run_approved(output: HostedOutput, tool: HostedTool, arguments: str, request_id: str) -> RunningCall:
    """Emit the beginning of a call that the client has approved."""
    item_id = output.name_item("mcp_call")
    item = McpCallItem(
        id=item_id,
        server_label=tool.label,
        name=tool.tool.name,
        arguments="",
        status="in_progress",
        approval_request_id=request_id,
    )
    output.start_item(item)
    output.emit(events.McpCallInProgress, item_id=item_id)
    output.emit(events.McpCallArgumentsDelta, item_id=item_id, delta=arguments)
    output.emit(events.McpCallArgumentsDone, item_id=item_id, arguments=arguments)
    return _run(output, item_id, tool, arguments, request_id)


def _run(
    output: HostedOutput, item_id: str, tool: HostedTool, arguments: str, request_id: str | None = None
) -> RunningCall:
    call = HostedCall(item_id, tool.server, tool.label, tool.tool.name, arguments)
    return RunningCall(call, output.reserve(), request_id)


def show_list(output: HostedOutput, label: str, server: ResolvedServer, tools: list[ListedTool]) -> None:
    """Emit the item of a list that was fetched: ``tools`` is what the client lets the model call."""
    item_id = output.name_item("mcp_list_tools")
    output.start_item(McpListToolsItem(id=item_id, server_label=label, tools=[]))
    output.emit(events.McpListToolsInProgress, item_id=item_id)
    kind = events.McpListToolsCompleted if server.error is None else events.McpListToolsFailed
    output.emit(kind, item_id=item_id)
    error = UNSET if server.error is None else error_text(server.error)
    output.keep(McpListToolsItem(id=item_id, server_label=label, tools=tools, error=error))
