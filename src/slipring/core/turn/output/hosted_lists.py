"""The lists of tools that are fetched for one response: which of them the client has not been shown yet."""

from slipring.core.turn.output import hosted_events
from slipring.core.turn.output.hosted_events import HostedOutput, RunningList
from slipring.protocol.hosted.mcp_items import CallError, ProtocolError
from slipring.protocol.hosted.mcp_tools import ListedTool

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
        self._running[label] = hosted_events.begin_list(output, label, tag)

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
