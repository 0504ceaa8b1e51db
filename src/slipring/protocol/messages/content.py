"""Content blocks of the Messages API, and the parts and items that they become.

A call that the server runs, to an MCP server of the request, ``web_search`` or ``code_execution``, is a block
with the call and one with its result; both are one item here. What a client sends back of them becomes the
item again.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct, UnsetType

from slipring.base.errors import InvalidRequest, UnsupportedParameter, quoted
from slipring.protocol import wire
from slipring.protocol.items.hosted_items import CodeInterpreterCall, McpCall, WebSearchCall, error_text
from slipring.protocol.items.items import (
    MOST_PARTS,
    InputFile,
    InputImage,
    InputText,
    Item,
    Name,
    OutputText,
)
from slipring.protocol.messages.json_prefix import JsonPrefix
from slipring.protocol.tools.client_tools import CallId

T = TypeVar("T")
ImageType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
Part = InputText | InputImage | InputFile | OutputText
WEB_SEARCH = "web_search"
CODE_EXECUTION = "code_execution"
_MOST_RESULT_BYTES = 1024 * 1024


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class OnlyText(Struct):
    """A text where no other block may stand. Its type is a field: decoders do not miss the tag of a type that
    has no alternatives."""

    type: Literal["text"]
    text: str


class Base64Image(Struct, tag_field="type", tag="base64"):
    media_type: ImageType
    data: str


class UrlSource(Struct, tag_field="type", tag="url"):
    url: str


class FileSource(Struct, tag_field="type", tag="file"):
    file_id: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    source: Base64Image | UrlSource | FileSource


class Base64Pdf(Struct, tag_field="type", tag="base64"):
    media_type: Literal["application/pdf"]
    data: str


class PlainText(Struct, tag_field="type", tag="text"):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class InnerContent(Struct, tag_field="type", tag="content"):
    content: Raw
    """A text, or a list of texts and images."""


class DocumentBlock(Struct, tag_field="type", tag="document"):
    source: Base64Pdf | PlainText | InnerContent | UrlSource | FileSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    source: str
    title: str
    content: Raw
    """A list of texts."""


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: CallId
    name: Name
    input: Raw


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: CallId
    content: Raw | UnsetType = msgspec.UNSET
    """A text, or a list of texts, images, documents, search results and references to tools."""
    is_error: bool | None = None


class ToolReferenceBlock(Struct, tag_field="type", tag="tool_reference"):
    """In the result of a search for tools: a tool that it has found."""

    tool_name: Name


class NamedTool(Struct, tag_field="type", tag="tool_reference"):
    name: Name


class DefinedTool(Struct, tag_field="type", tag="tool_definition"):
    definition: Raw


class ToolAdditionBlock(Struct, tag_field="type", tag="tool_addition"):
    tool: NamedTool | DefinedTool


class ToolRemovalBlock(Struct, tag_field="type", tag="tool_removal"):
    tool: NamedTool


class McpToolUseBlock(Struct, tag_field="type", tag="mcp_tool_use"):
    id: CallId
    name: Name
    server_name: str
    input: Raw


class McpToolResultBlock(Struct, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: CallId
    content: Raw | UnsetType = msgspec.UNSET
    """A text, or a list of texts."""
    is_error: bool | None = None


class ServerToolUseBlock(Struct, tag_field="type", tag="server_tool_use"):
    id: CallId
    name: str
    input: Raw


class WebSearchToolResultBlock(Struct, tag_field="type", tag="web_search_tool_result"):
    tool_use_id: CallId
    content: Raw


class CodeExecutionToolResultBlock(Struct, tag_field="type", tag="code_execution_tool_result"):
    tool_use_id: CallId
    content: Raw


UserBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock
AssistantBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | ServerToolUseBlock
    | WebSearchToolResultBlock
    | CodeExecutionToolResultBlock
)
ShownBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock
ResultBlock = ShownBlock | ToolReferenceBlock
SystemBlock = TextBlock | ToolAdditionBlock | ToolRemovalBlock

OF_USER: msgspec.json.Decoder[str | list[UserBlock]] = msgspec.json.Decoder(str | list[UserBlock])
OF_ASSISTANT: msgspec.json.Decoder[str | list[AssistantBlock]] = msgspec.json.Decoder(
    str | list[AssistantBlock]
)
OF_SYSTEM: msgspec.json.Decoder[str | list[SystemBlock]] = msgspec.json.Decoder(str | list[SystemBlock])
_texts = msgspec.json.Decoder(str | list[OnlyText])
_text_list = msgspec.json.Decoder(list[OnlyText])
_results = msgspec.json.Decoder(str | list[ResultBlock])
_texts_and_images = msgspec.json.Decoder(str | list[TextBlock | ImageBlock])


def read_content(decoder: wire.Decoder[T], content: Raw, where: str) -> T:
    """Decode the content of a message, with the decoder for its role."""
    wire.require_few(content, MOST_PARTS, where, "content blocks")
    return wire.decode(decoder, content, where=where)


def read_texts(content: Raw | UnsetType, where: str) -> list[str]:
    """Decode a text or a list of texts; empty if it is absent."""
    if isinstance(content, UnsetType):
        return []
    found = read_content(_texts, content, where)
    return [found] if isinstance(found, str) else [block.text for block in found]


def read_result(block: ToolResultBlock, where: str) -> list[ResultBlock]:
    """Decode what a tool has returned."""
    if isinstance(block.content, UnsetType):
        return []
    found: str | list[ResultBlock] = read_content(_results, block.content, f"{where}.content")
    return [TextBlock(found)] if isinstance(found, str) else found


def parts_of(block: ShownBlock, where: str) -> Iterator[Part]:
    """A block that a user or a tool shows to the model, as parts of an item."""
    if isinstance(block, TextBlock):
        yield InputText(block.text)
    elif isinstance(block, ImageBlock):
        yield _image(block)
    elif isinstance(block, SearchResultBlock):
        texts = read_content(_text_list, block.content, f"{where}.content")
        head = f"Search result: {block.title}\nSource: {block.source}\n\n"
        yield InputText(head + "\n".join(each.text for each in texts))
    else:
        yield from _document(block, where)


def _image(block: ImageBlock) -> InputImage:
    source = block.source
    if isinstance(source, Base64Image):
        return InputImage(image_url=f"data:{source.media_type};base64,{source.data}")
    if isinstance(source, UrlSource):
        return InputImage(image_url=source.url)
    return InputImage(file_id=source.file_id)


def _document(block: DocumentBlock, where: str) -> Iterator[Part]:
    """A document: its text, below its title and context, or a file."""
    named = (f"Document: {block.title}" if block.title else "", block.context or "")
    head = "\n".join(filter(None, named))
    source = block.source
    if isinstance(source, PlainText):
        yield InputText(f"{head}\n\n{source.data}" if head else source.data)
        return
    if head:
        yield InputText(f"{head}\n\n")
    if isinstance(source, InnerContent):
        found = read_content(_texts_and_images, source.content, f"{where}.source.content")
        for each in [TextBlock(found)] if isinstance(found, str) else found:
            yield _image(each) if isinstance(each, ImageBlock) else InputText(each.text)
    elif isinstance(source, Base64Pdf):
        data = f"data:{source.media_type};base64,{source.data}"
        yield InputFile(file_data=data, filename=block.title or "document.pdf")
    elif isinstance(source, UrlSource):
        yield InputFile(file_url=source.url)
    else:
        yield InputFile(file_id=source.file_id)


def joined(parts: Sequence[Part]) -> str | list[Part]:
    """Parts as the content of an item: as one text if there is only one, so that a text and a list with this
    text are the same item."""
    if len(parts) == 1 and isinstance(parts[0], InputText | OutputText):
        return parts[0].text
    return list(parts)


HostedResultBlock = McpToolResultBlock | WebSearchToolResultBlock | CodeExecutionToolResultBlock


class PlacedResult(Struct, frozen=True):
    """A result that a client sends back."""

    block: HostedResultBlock
    where: str
    """The place of its content."""


class McpToolUse(Struct, tag_field="type", tag="mcp_tool_use"):
    id: str
    name: str
    server_name: str
    input: Raw


class McpToolResult(Struct, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    content: list[TextBlock]
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
HOSTED_TYPES = frozenset({"mcp_call", "web_search_call", "code_interpreter_call"})
"""Items that have these blocks."""


def hosted_use(item: Item) -> HostedUse:
    """The block with the call of an item of one of these types."""
    body, item_id = item.body(), item.id or ""
    if isinstance(body, McpCall):
        return McpToolUse(item_id, body.name, body.server_label, input_of(body.arguments))
    if isinstance(body, WebSearchCall):
        return ServerToolUse(item_id, WEB_SEARCH, wire.raw({"query": body.argument}))
    assert isinstance(body, CodeInterpreterCall)
    return ServerToolUse(item_id, CODE_EXECUTION, wire.raw({"code": body.argument}))


def hosted_result(item: Item) -> HostedResult:
    """The block with the result of an item of one of these types."""
    body, item_id = item.body(), item.id or ""
    if isinstance(body, McpCall):
        text = body.output if body.output is not None else error_text(body.error or "")
        return McpToolResult(item_id, [TextBlock(text)] if text else [], body.output is None)
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


def hosted_item(
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
    text = "\n".join(read_texts(result.content, where))
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
