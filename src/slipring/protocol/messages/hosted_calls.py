"""Calls that the server runs: a block with the call and one with its result, which are one item here.

MCP servers of the request, ``web_search`` and ``code_execution``. What a client sends back of them becomes
the item again.
"""

import msgspec
from msgspec import Raw, Struct

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.endpoints.json_prefix import JsonPrefix
from slipring.protocol.hosted.hosted_items import CodeInterpreterCall, McpCall, WebSearchCall, error_text
from slipring.protocol.items import Item
from slipring.protocol.messages import content
from slipring.protocol.messages.content import (
    CodeExecutionToolResultBlock,
    McpToolResultBlock,
    McpToolUseBlock,
    ServerToolUseBlock,
    WebSearchToolResultBlock,
)

Result = McpToolResultBlock | WebSearchToolResultBlock | CodeExecutionToolResultBlock


class PlacedResult(Struct, frozen=True):
    """A result that a client sends back."""

    block: Result
    where: str
    """The place of its content."""


WEB_SEARCH = "web_search"
CODE_EXECUTION = "code_execution"
_MOST_RESULT_BYTES = 1024 * 1024


class McpToolUse(Struct, tag_field="type", tag="mcp_tool_use"):
    id: str
    name: str
    server_name: str
    input: Raw


class McpToolResult(Struct, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    content: list[content.TextBlock]
    is_error: bool


class ServerToolUse(Struct, tag_field="type", tag="server_tool_use"):
    id: str
    name: str
    input: Raw


class FoundPage(Struct, tag_field="type", tag="web_search_result"):
    url: str
    title: str
    encrypted_content: str = ""


class SearchFailure(Struct, tag_field="type", tag="web_search_tool_result_error"):
    error_code: str = "unavailable"


class WebSearchToolResult(Struct, tag_field="type", tag="web_search_tool_result"):
    tool_use_id: str
    content: list[FoundPage] | SearchFailure


class CodeResult(Struct, tag_field="type", tag="code_execution_result"):
    stdout: str
    stderr: str = ""
    return_code: int = 0
    content: list[Raw] = []


class CodeFailure(Struct, tag_field="type", tag="code_execution_tool_result_error"):
    error_code: str = "unavailable"


class CodeExecutionToolResult(Struct, tag_field="type", tag="code_execution_tool_result"):
    tool_use_id: str
    content: CodeResult | CodeFailure


HostedUse = McpToolUse | ServerToolUse
HostedResult = McpToolResult | WebSearchToolResult | CodeExecutionToolResult
TYPES = frozenset({"mcp_call", "web_search_call", "code_interpreter_call"})
"""Items that have these blocks."""


def use_of(item: Item) -> HostedUse:
    """The block with the call of an item of one of these types."""
    body, item_id = item.body(), item.id or ""
    if isinstance(body, McpCall):
        return McpToolUse(item_id, body.name, body.server_label, input_of(body.arguments))
    if isinstance(body, WebSearchCall):
        return ServerToolUse(item_id, WEB_SEARCH, wire.raw({"query": body.argument}))
    assert isinstance(body, CodeInterpreterCall)
    return ServerToolUse(item_id, CODE_EXECUTION, wire.raw({"code": body.argument}))


def result_of(item: Item) -> HostedResult:
    """The block with the result of an item of one of these types."""
    body, item_id = item.body(), item.id or ""
    if isinstance(body, McpCall):
        text = body.output if body.output is not None else error_text(body.error or "")
        return McpToolResult(item_id, [content.TextBlock(text)] if text else [], body.output is None)
    if isinstance(body, WebSearchCall):
        if body.status != "completed":
            return WebSearchToolResult(item_id, SearchFailure())
        urls = (body.shown_result or "").splitlines()
        return WebSearchToolResult(item_id, [FoundPage(url, url) for url in urls])
    assert isinstance(body, CodeInterpreterCall)
    if body.status != "completed":
        return CodeExecutionToolResult(item_id, CodeFailure())
    return CodeExecutionToolResult(item_id, CodeResult(body.shown_result or ""))


def input_of(arguments: str) -> Raw:
    """The arguments of a call as an object; an empty one if a model has not written a whole object. What
    follows the object is left out."""
    prefix = JsonPrefix()
    accepted = prefix.accept(arguments)
    return Raw(accepted.strip().encode()) if prefix.is_whole else Raw(b"{}")


def arguments_of(sent: Raw, where: str) -> str:
    """The input of a call as the arguments that a model wrote, without white space."""
    if not bytes(sent).startswith(b"{"):
        raise InvalidRequest.at(where, "expected an object", code="invalid_type")
    return msgspec.json.format(bytes(sent), indent=-1).decode()


class _Query(Struct):
    query: str = ""


class _Code(Struct):
    code: str = ""


class _Page(Struct):
    url: str = ""


class _Printed(Struct):
    stdout: str = ""
    stderr: str = ""


_query = msgspec.json.Decoder(_Query)
_code = msgspec.json.Decoder(_Code)
_pages = msgspec.json.Decoder(list[_Page])
_printed = msgspec.json.Decoder(_Printed)


def item_of(
    block: McpToolUseBlock | ServerToolUseBlock, answer: PlacedResult | None, where: str
) -> dict[str, object]:
    """The item of a call and its result, as the server emitted it. ``where``: the place of the call."""
    result, shown = (None, "") if answer is None else (answer.block, answer.where)
    if isinstance(block, McpToolUseBlock):
        call = _mcp_call(block, where)
        return {**call, **_mcp_result(result if isinstance(result, McpToolResultBlock) else None, shown)}
    if block.name == WEB_SEARCH:
        query = wire.decode(_query, block.input, where=f"{where}.input").query
        found = _pages_of(result, shown) if isinstance(result, WebSearchToolResultBlock) else None
        action: dict[str, object] = {"type": "search", "query": query, "queries": [query]}
        if found is not None:
            action["sources"] = [{"type": "url", "url": url} for url in found]
        status = "failed" if found is None else "completed"
        return {"type": "web_search_call", "id": block.id, "status": status, "action": action}
    if block.name == CODE_EXECUTION:
        code = wire.decode(_code, block.input, where=f"{where}.input").code
        logs = _logs_of(result, shown) if isinstance(result, CodeExecutionToolResultBlock) else None
        call = {"type": "code_interpreter_call", "id": block.id, "code": code, "container_id": ""}
        if logs is None:
            return {**call, "status": "failed", "outputs": None}
        return {**call, "status": "completed", "outputs": [{"type": "logs", "logs": logs}]}
    param = f"{where}.name"
    raise UnsupportedParameter.at(param, f"this server does not run {quoted(block.name)}")


def _mcp_call(block: McpToolUseBlock, where: str) -> dict[str, object]:
    return {
        "type": "mcp_call",
        "id": block.id,
        "server_label": block.server_name,
        "name": block.name,
        "arguments": arguments_of(block.input, f"{where}.input"),
    }


def _mcp_result(result: McpToolResultBlock | None, where: str) -> dict[str, object]:
    if result is None:
        return {"status": "incomplete"}
    text = "\n".join(content.read_texts(result.content, where))
    if result.is_error is True:
        return {"status": "failed", "error": text}
    return {"status": "completed", "output": text}


def _pages_of(result: WebSearchToolResultBlock, where: str) -> list[str] | None:
    """The pages that a search has found; None if it failed."""
    if not bytes(result.content).startswith(b"["):
        return None
    wire.require_short(result.content, where, _MOST_RESULT_BYTES)
    return [page.url for page in wire.decode(_pages, result.content, where=where)]


def _logs_of(result: CodeExecutionToolResultBlock, where: str) -> str | None:
    """What code has printed; None if it did not run."""
    if wire.type_of(result.content, where) != "code_execution_result":
        return None
    printed = wire.decode(_printed, result.content, where=where)
    return printed.stdout + printed.stderr
