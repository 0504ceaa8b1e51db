"""The hosted calls and the lists of tools of one response: which run, how each ends, and what they returned.

A call is opened when a model begins to write it, runs when its arguments are complete, and fills the place
in the output that is kept for it when it ends. ``HostedCalls`` counts them against ``max_tool_calls``, and
keeps their results for the next step, in the order of the calls.
"""

from msgspec import UNSET, Struct

from slipring.core.chain import hosted_items_in_context
from slipring.core.generation import CallStarted
from slipring.core.hosted_tools import CallOutcome, CallProgress, HostedCall, HostedTool, HostedTools
from slipring.core.turn.output.call_items import HostedForm, McpForm, begin_call, builtin_form
from slipring.core.turn.output.numbered_items import NumberedItems
from slipring.core.turn.output.rejected_calls import RefusedCall, RejectedCall, Rejections
from slipring.protocol import events
from slipring.protocol.items.hosted_items import CallError, ProtocolError, error_text
from slipring.protocol.items.items import Item
from slipring.protocol.responses import McpApprovalRequestItem, McpListToolsItem
from slipring.protocol.tools.mcp_tools import ListedTool

_REQUEST_CANCELLED = -32800
LOST = CallOutcome(
    error=ProtocolError(_REQUEST_CANCELLED, "The call was cancelled. Whether it had any effect is not known.")
)
"""The outcome of a call that its response did not wait for."""
WITHHELD = CallOutcome(
    error=ProtocolError(
        _REQUEST_CANCELLED, "The call has ended. Its result has not passed the safety checks."
    )
)
"""The outcome of a call whose result was not inspected to the end, or was refused."""
_LIST_LOST = ProtocolError(_REQUEST_CANCELLED, "The list of tools is not available.")
"""Why a list is empty that its response did not wait for, or that may not be shown."""


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


def run_approved(output: NumberedItems, tool: HostedTool, arguments: str, request_id: str) -> RunningCall:
    """Emit the beginning of a call that the client has approved: as recorded, ``in_progress`` twice."""
    form = McpForm(tool, request_id)
    item_id = begin_call(output, form)
    output.emit(events.McpCallArgumentsDelta, item_id=item_id, delta=arguments)
    form.begin(output, item_id)
    form.write(output, item_id, arguments)
    return _run(output, item_id, tool, form, arguments, request_id)


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


class HostedCalls:
    """The state of the hosted calls of one response."""

    __slots__ = (
        "_calls",
        "_has_dropped",
        "_include",
        "_rejections",
        "_results",
        "_returned",
        "approved_results",
        "budget",
        "due",
        "made",
        "reporting",
        "returned",
        "running",
        "tools",
    )

    def __init__(self, tools: HostedTools, budget: int | None, include: frozenset[str] = frozenset()) -> None:
        """``budget``: the most calls that the response may make; None: any number. ``include``: what the
        client wants to see of results."""
        self._include = include
        self._rejections = Rejections(include)
        self.tools = tools
        self.budget = budget
        self.due: list[RunningCall] = []
        """Calls that the driver has not been asked to run yet."""
        self.running: dict[str, RunningCall] = {}
        """By the id of the item, those in ``due`` included."""
        self._returned: dict[str, CallOutcome] = {}
        """Results that are to be inspected, by the ids of their calls, which count as running."""
        self.returned: set[str] = set()
        """Running calls whose results wait for verdicts."""
        self.reporting: set[str] = set()
        """Running calls with a message that waits for verdicts."""
        self._has_dropped = False
        self.approved_results: dict[str, Item] = {}
        """What approved calls returned, by the id of the approval request."""
        self.made = 0
        """Calls so far."""
        self._calls: list[str] = []
        """The ids of calls since the last ``take_results``, in order."""
        self._results: dict[str, Item] = {}

    def open(
        self, output: NumberedItems, started: CallStarted
    ) -> OpenHostedCall | OpenApproval | RefusedCall | RejectedCall | None:
        """Begin a call that a model makes; None if the client runs the tool. A client never gets the call of
        a tool that is not on offer: it may be one of a server, which the client cannot call."""
        is_spent = self.budget is not None and self.budget <= 0
        tool = self.tools.find(started.namespace, started.name)
        if (rejected := self._rejections.open(output, started, tool, is_spent=is_spent)) is not None:
            return rejected
        if tool is None:
            return None
        if tool.needs_approval:
            return OpenApproval(tool)
        if self.budget is not None:
            self.budget -= 1
        if tool.builtin is not None:
            return OpenHostedCall(output, tool, builtin_form(tool.builtin, self._include))
        return OpenMcpCall(output, tool)

    def reject(self, call: RefusedCall | RejectedCall, call_id: str) -> Item | None:
        """A call that is not made is complete: the model reads why. Returns the call as the model wrote it;
        None if there were too many."""
        self.drop()
        if not self._rejections.may_be_read():
            return None
        self._calls.append(call_id)
        self._results[call_id] = hosted_items_in_context.output_item(call_id, call.reason)
        return call.as_generated(call_id)

    def start(self, call: RunningCall) -> None:
        """A call can run: its arguments are complete."""
        self.made += 1
        self._calls.append(call.call.id)
        self.running[call.call.id] = call
        self.due.append(call)

    def approve(self, output: NumberedItems, tool: HostedTool, arguments: str, request_id: str) -> None:
        """Begin a call that the client has approved. It counts, but the budget does not stop it: the client
        has asked for this very call."""
        if self.budget is not None:
            self.budget -= 1
        self.start(run_approved(output, tool, arguments, request_id))

    def offer(self, tools: HostedTools) -> None:
        """All lists of tools have been fetched: these can be called."""
        self.tools = tools

    def drop(self) -> None:
        """The model has made a call that no item shows."""
        self._has_dropped = True

    @property
    def has_dropped(self) -> bool:
        """Whether the model has made calls that no item shows. The engine's position covers them, and is then
        not that of the items."""
        return self._has_dropped

    def take_due(self) -> list[RunningCall]:
        due, self.due = self.due, []
        return due

    def report(self, call_id: str, progress: CallProgress, output: NumberedItems) -> None:
        """Emit what the server of a call says, if the call still runs."""
        self.reporting.discard(call_id)
        if (call := self.running.get(call_id)) is not None:
            call.report(output, progress, detailed=True)

    def keep(self, call_id: str, outcome: CallOutcome) -> None:
        """A running call has returned something that is to be inspected."""
        self.returned.add(call_id)
        self._returned[call_id] = outcome

    def take_returned(self, *, in_order: bool) -> list[tuple[str, CallOutcome]]:
        """The results to inspect now, each returned once. ``in_order``: none before those of earlier
        calls."""
        taken: list[tuple[str, CallOutcome]] = []
        for call_id in self._calls:
            if call_id in self._returned:
                taken.append((call_id, self._returned.pop(call_id)))
            elif in_order and call_id in self.running and call_id not in self.returned:
                break
        return taken

    def end(self, call_id: str, outcome: CallOutcome, output: NumberedItems) -> None:
        """A call has ended. Has no effect if it does not run."""
        call = self.running.pop(call_id, None)
        if call is None:
            return
        call.end(output, outcome)
        text = call.result_text(outcome)
        if call.approval_request_id is not None:
            asked = call.approval_request_id
            self.approved_results[asked] = hosted_items_in_context.output_item(asked, text, outcome.pictures)
        self._results[call_id] = hosted_items_in_context.output_item(call_id, text, outcome.pictures)

    def end_all(self, output: NumberedItems) -> None:
        """The response waits for its calls no longer: they end as lost."""
        self.due = []
        for call_id in list(self.running):
            self.end(call_id, WITHHELD if call_id in self.returned else LOST, output)

    @property
    def has_calls(self) -> bool:
        """Whether there were calls since the last ``take_results``."""
        return bool(self._calls)

    def ready_results(self) -> tuple[Item, ...]:
        """The results so far, in the order of the calls, up to the first call that still runs."""
        found: list[Item] = []
        for call_id in self._calls:
            result = self._results.get(call_id)
            if result is None:
                break
            found.append(result)
        return tuple(found)

    def take_results(self) -> tuple[Item, ...]:
        """The results of all calls since the last time, in the order of the calls. None may run."""
        results = self.ready_results()
        self._calls.clear()
        self._results.clear()
        return results


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
            self._show(output, label, [], _LIST_LOST)

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
