"""The items of hosted tools: of MCP servers (lists of tools, calls, approvals), and of built-in tools that
the server runs (searches, and code).

``shown_result`` of a built-in call is what clients can see of a result. It is all that is known of a call
that comes back in a history: the whole result stays with the server that made the call.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from slipring.protocol import wire
from slipring.protocol.tools.mcp_tools import ListedTool

CallStatus = Literal["in_progress", "calling", "completed", "incomplete", "failed"]


class ProtocolError(Struct, tag_field="type", tag="mcp_protocol_error"):
    """The server answered a call with an error of the protocol, or not in its form."""

    code: int
    message: str


class _Block(Struct):
    text: str | None = None


_blocks = msgspec.json.Decoder(list[_Block])


class ToolError(Struct, tag_field="type", tag="mcp_tool_execution_error"):
    """The tool ran and reported that it failed, in ``content`` blocks of MCP."""

    content: Raw

    def __post_init__(self) -> None:
        try:
            _blocks.decode(self.content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"Invalid content blocks: {error}") from None

    @property
    def texts(self) -> list[str]:
        """The texts of the blocks that have one."""
        return [block.text for block in _blocks.decode(self.content) if block.text is not None]


class HttpError(Struct, tag_field="type", tag="http_error"):
    """The server could not be reached, or answered with an HTTP error."""

    code: int
    message: str


CallError = ProtocolError | ToolError | HttpError


class McpListTools(Struct):
    """The body of ``mcp_list_tools``."""

    server_label: Annotated[str, Meta(min_length=1, max_length=256)]
    tools: list[ListedTool]
    error: CallError | str | None = None


class McpCall(Struct):
    """The body of ``mcp_call``."""

    server_label: Annotated[str, Meta(min_length=1, max_length=256)]
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str
    output: str | None = None
    error: CallError | str | None = None
    status: CallStatus | None = None
    approval_request_id: str | None = None


class McpApprovalRequest(Struct):
    """The body of ``mcp_approval_request``."""

    server_label: Annotated[str, Meta(min_length=1, max_length=256)]
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str


class McpApprovalResponse(Struct):
    """The body of ``mcp_approval_response``."""

    approval_request_id: Annotated[str, Meta(min_length=1, max_length=512)]
    approve: bool
    reason: str | None = None


def error_text(error: CallError | str) -> str:
    """What a model reads of an error."""
    if isinstance(error, str):
        return error
    if not isinstance(error, ToolError):
        return error.message
    return "\n".join(error.texts) or "The tool failed."


SearchStatus = Literal["in_progress", "searching", "completed", "incomplete", "failed"]
CodeStatus = Literal["in_progress", "interpreting", "completed", "incomplete", "failed"]


class Source(Struct):
    url: str | None = None


class SentAction(Struct):
    """What a web search did, as clients send it back."""

    type: str = "search"
    query: str | None = None
    queries: list[str] | None = None
    url: str | None = None
    sources: list[Source] | None = None


class WebSearchCall(Struct):
    """The body of ``web_search_call``."""

    action: SentAction | None = None
    status: str | None = None

    @property
    def argument(self) -> str:
        action = self.action or SentAction()
        return action.query or " ".join(action.queries or ()) or action.url or ""

    @property
    def shown_result(self) -> str | None:
        urls = [source.url for source in (self.action or SentAction()).sources or () if source.url]
        return "\n".join(urls) or None


class FileSearchCall(Struct):
    """The body of ``file_search_call``."""

    queries: list[str] = []
    results: list[dict[str, Any]] | None = None
    status: str | None = None

    @property
    def argument(self) -> str:
        return " ".join(self.queries)

    @property
    def shown_result(self) -> str | None:
        return wire.encode(self.results).decode() if self.results else None


class CodeOutput(Struct):
    logs: str | None = None


class CodeInterpreterCall(Struct):
    """The body of ``code_interpreter_call``."""

    code: str | None = None
    outputs: list[CodeOutput] | None = None
    status: str | None = None

    @property
    def argument(self) -> str:
        return self.code or ""

    @property
    def shown_result(self) -> str | None:
        logs = [output.logs for output in self.outputs or () if output.logs is not None]
        return "\n".join(logs) if logs else None


BuiltinCall = WebSearchCall | FileSearchCall | CodeInterpreterCall
