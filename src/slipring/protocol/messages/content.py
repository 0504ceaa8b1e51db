"""Content blocks of a request, and the parts of Responses items that images, documents and texts become."""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct, UnsetType

from slipring.protocol import wire
from slipring.protocol.client_tools import CallId
from slipring.protocol.items import MOST_PARTS, InputFile, InputImage, InputText, Name, OutputText

T = TypeVar("T")
ImageType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
Part = InputText | InputImage | InputFile | OutputText


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


def read(decoder: wire.Decoder[T], content: Raw, where: str) -> T:
    """Decode the content of a message, with the decoder for its role."""
    wire.require_few(content, MOST_PARTS, where, "content blocks")
    return wire.decode(decoder, content, where=where)


def read_texts(content: Raw | UnsetType, where: str) -> list[str]:
    """Decode a text or a list of texts; empty if it is absent."""
    if isinstance(content, UnsetType):
        return []
    found = read(_texts, content, where)
    return [found] if isinstance(found, str) else [block.text for block in found]


def read_result(block: ToolResultBlock, where: str) -> list[ResultBlock]:
    """Decode what a tool has returned."""
    if isinstance(block.content, UnsetType):
        return []
    found: str | list[ResultBlock] = read(_results, block.content, f"{where}.content")
    return [TextBlock(found)] if isinstance(found, str) else found


def parts_of(block: ShownBlock, where: str) -> Iterator[Part]:
    """A block that a user or a tool shows to the model, as parts of an item."""
    if isinstance(block, TextBlock):
        yield InputText(block.text)
    elif isinstance(block, ImageBlock):
        yield _image(block)
    elif isinstance(block, SearchResultBlock):
        texts = read(_text_list, block.content, f"{where}.content")
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
        found = read(_texts_and_images, source.content, f"{where}.source.content")
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
