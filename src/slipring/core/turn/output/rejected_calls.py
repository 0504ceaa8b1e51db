"""Calls that are not made, because a tool is not on offer or ``max_tool_calls`` is reached: what clients see
of them and what the model reads, and after how many the response ends.
"""

from slipring.core.chain import hosted_items_in_context
from slipring.core.generation import CallStarted
from slipring.core.hosted_tools import HostedTool
from slipring.core.turn.output.call_items import BuiltinForm, begin_call, builtin_form
from slipring.core.turn.output.numbered_items import NumberedItems
from slipring.protocol.items.items import Item
from slipring.protocol.responses import OutputItem

NOT_OFFERED = "There is no tool of this name."
LIMIT_REACHED = "The limit on tool calls of this answer is reached. No tool can be called any more."
MOST_REJECTED = 8
"""Calls per response that are not made and whose model reads why. After more of them the response ends."""


class RefusedCall:
    """A call of a built-in tool past ``max_tool_calls``. Clients see it begin, and never end; the model reads
    ``reason`` as its result."""

    __slots__ = ("_form", "_output", "id", "pieces", "reason")

    def __init__(self, output: NumberedItems, form: BuiltinForm, reason: str) -> None:
        self._output = output
        self._form = form
        self.reason = reason
        self.pieces: list[str] = []
        self.id = begin_call(output, form)

    def as_generated(self, call_id: str) -> Item:
        """The call as the model wrote it."""
        return self._form.as_generated(call_id, "".join(self.pieces))

    def close(self) -> OutputItem:
        arguments = "".join(self.pieces)
        self._form.write(self._output, self.id, arguments)
        self._form.run(self._output, self.id)
        return self._form.refused(self.id, arguments)


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
        return hosted_items_in_context.rejected_call_item(
            call_id, self._started.namespace, self._started.name, "".join(self.pieces)
        )


class Rejections:
    """The calls of one response that are not made."""

    __slots__ = ("_include", "_rejected", "_shows_refused")

    def __init__(self, include: frozenset[str]) -> None:
        """``include``: what the client wants to see of results."""
        self._include = include
        self._rejected = 0
        """Calls so far whose model reads why."""
        self._shows_refused = False
        """Whether an item shows that a call was past the budget. One is enough."""

    def open(
        self, output: NumberedItems, started: CallStarted, tool: HostedTool | None, *, is_spent: bool
    ) -> RefusedCall | RejectedCall | None:
        """Begin a call if it is not to be made; None if it may be. ``tool``: None for one that is not hosted.
        ``is_spent``: no further call may be made."""
        if not started.is_offered:
            return RejectedCall(started, LIMIT_REACHED if is_spent else NOT_OFFERED)
        if tool is None or not is_spent:
            return None
        if tool.builtin is None or self._shows_refused:
            return RejectedCall(started, LIMIT_REACHED)
        self._shows_refused = True
        return RefusedCall(output, builtin_form(tool.builtin, self._include), LIMIT_REACHED)

    def may_be_read(self) -> bool:
        """Whether the model reads why another call is not made: not if there were too many, which ends the
        response."""
        self._rejected += 1
        return self._rejected <= MOST_REJECTED
