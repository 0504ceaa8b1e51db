"""What the state machine of a connection tells its driver to do."""

from typing import NamedTuple

from slipring.mcp.failures import McpFailure
from slipring.mcp.protocol.tools import ToolList, ToolResult


class Agreement(NamedTuple):
    """What client and server agreed on."""

    is_modern: bool
    """Whether the server speaks revision 2026-07-28 or newer: no handshake and no sessions."""
    version: str
    server_name: str
    """What the server calls itself."""
    instructions: str | None
    announces_tool_changes: bool


class ProgressUpdate(NamedTuple):
    """How far a call is, as its server reports it."""

    progress: float
    total: float | None
    message: str | None


class Send(NamedTuple):
    """Send this message. Before any byte of a request leaves, call ``sent`` of the state machine."""

    data: bytes
    request_id: int | None
    """None for notifications and replies, which have no answer."""
    headers: tuple[tuple[str, str], ...]
    """Of the HTTP request, if the message is one."""


class Abandon(NamedTuple):
    """No caller waits for this request any more: close the stream of its response."""

    request_id: int


class Report(NamedTuple):
    """Hand the progress of an operation to its caller."""

    operation: int
    update: ProgressUpdate


class Finish(NamedTuple):
    """An operation has ended. Every operation ends exactly once, unless it is cancelled."""

    operation: int
    result: Agreement | ToolList | ToolResult | McpFailure | None
    """None: a subscription that its server ended."""


class ToolsChanged(NamedTuple):
    """The server's list of tools is no longer what it was."""


Action = Send | Abandon | Report | Finish | ToolsChanged
