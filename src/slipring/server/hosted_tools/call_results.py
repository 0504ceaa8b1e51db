"""What models and clients read of a call of a hosted tool: its result, or why it, or the list of a server's
tools, has failed.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec
from msgspec import Raw

from slipring.base.errors import InvalidRequest
from slipring.core.attachments import AttachmentRules
from slipring.core.hosted_tools import CallOutcome
from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    McpFailure,
    Outcome,
    ProtocolFailure,
    RequestRefused,
    TimedOut,
    Unreachable,
)
from slipring.mcp.protocol.tools import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
)
from slipring.mcp.result_redaction import Redaction
from slipring.protocol.items.hosted_items import CallError, HttpError, ProtocolError, ToolError
from slipring.protocol.items.item_pictures import Picture, described, picture_of

_MOST_IMAGES = 16
"""Of one result. Others are named."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""Line breaks in JSON are between values: in a string they are escaped."""
INVALID_ARGUMENTS, INTERNAL_ERROR = -32602, -32603
_REFUSED = -32600
_BAD_GATEWAY, _GATEWAY_TIMEOUT = 502, 504
_fields = msgspec.json.Decoder(dict[str, Raw])


def one_line(raw: bytes) -> Raw:
    """JSON of a server in a line of its own: event streams end a value at a line break."""
    return Raw(raw.translate(_ONE_LINE))


def outcome_of(
    result: ToolResult, redaction: Redaction, most_chars: int, rules: AttachmentRules | None = None
) -> CallOutcome:
    """What a tool returned, or reported as its failure. ``most_chars``: of text that the model reads.
    ``rules``: of the model that reads it; None: it sees no images."""
    if not result.is_error:
        shown = _shown_images(result, rules)
        text = _cut(redaction.text(_text(result, shown)), most_chars)
        return CallOutcome(output=text, pictures=tuple(url for url, _ in shown.values()))
    content = _blocks(result)
    if len(content) > most_chars:
        whole = TextContent(_cut(redaction.text(_text(result, {})), most_chars))
        content = b"[" + _shown(msgspec.json.encode(whole)) + b"]"
    return CallOutcome(error=ToolError(content=one_line(redaction.json(content))))


def _shown_images(result: ToolResult, rules: AttachmentRules | None) -> dict[int, tuple[str, Picture]]:
    """The images of a result that the model sees, by the index of their blocks: the data URL of each, and
    what it is."""
    shown: dict[int, tuple[str, Picture]] = {}
    if rules is None or not rules.shows_images:
        return shown
    for index, block in enumerate(result.content):
        if isinstance(block, ImageContent) and len(shown) < _MOST_IMAGES:
            url = f"data:{block.mime_type};base64,{block.data}"
            with suppress(InvalidRequest):
                picture = picture_of(url)
                rules.refuse_picture(picture, "image")
                shown[index] = url, picture
    return shown


def _text(result: ToolResult, shown: Mapping[int, tuple[str, Picture]]) -> str:
    """All text of a result, in order. What is not text is named. Structured content stands for text that is
    missing. ``shown``: images that the model sees."""
    pieces = [
        piece
        for index, block in enumerate(result.content)
        for piece in (_pieces(block) if index not in shown else [f"[{described(shown[index][1])}]"])
    ]
    if result.structured is not None and not any(isinstance(each, TextContent) for each in result.content):
        pieces.insert(0, bytes(result.structured).decode())
    return "\n".join(pieces)


def _pieces(block: ContentBlock) -> Iterator[str]:
    match block:
        case TextContent(text=text):
            yield text
        case ImageContent(mime_type=kind):
            yield f"[image: {kind}, not shown]"
        case AudioContent(mime_type=kind):
            yield f"[audio: {kind}, not shown]"
        case ResourceLink(uri=uri, mime_type=kind):
            yield f"[link: {kind or 'resource'}, {uri}]"
        case EmbeddedResource(resource=resource):
            shown = "" if resource.text is not None else ", not shown"
            yield f"[resource: {resource.mime_type or 'of unknown type'}, {resource.uri}{shown}]"
            if resource.text is not None:
                yield resource.text
        case _:
            yield "[content of a type that is not known]"


def _blocks(result: ToolResult) -> bytes:
    """The blocks of a result as the API shows them. Blocks of unknown types become a text that says so."""
    raws = map(_block, result.content, result.raw_content)
    return b"[" + b",".join(raws) + b"]"


def _block(block: ContentBlock, raw: Raw) -> bytes:
    if isinstance(block, TextContent):
        return _shown(raw)
    if isinstance(block, ImageContent | AudioContent | ResourceLink | EmbeddedResource):
        # "text" belongs to blocks of text: readers take it for a string.
        return _shown(raw if "text" not in _fields.decode(raw) else msgspec.json.encode(block))
    return _shown(msgspec.json.encode(TextContent(*_pieces(block))))


def _shown(raw: bytes | Raw) -> bytes:
    """A block as recorded ones are: ``annotations`` and ``meta`` are null if the server sent none."""
    fields = _fields.decode(raw)
    added = {"annotations": fields.pop("annotations", None), "meta": fields.pop("_meta", None)}
    return msgspec.json.encode({**fields, **added})


def call_error(failure: McpFailure, most_chars: int) -> CallError:
    """A failed call as the API shows it. The message has no secrets: the MCP client has removed them."""
    if isinstance(failure, ProtocolFailure):
        return ProtocolError(failure.code, _cut(failure.message, most_chars))
    unknown = " Outcome unknown: the call may have run." if failure.outcome is Outcome.UNKNOWN else ""
    return _error(failure, stated(failure) + unknown)


def list_error(failure: McpFailure) -> CallError:
    """A list that could not be fetched, as the API shows it."""
    return _error(failure, stated(failure))


def _error(failure: McpFailure, message: str) -> CallError:
    if isinstance(failure, HttpRejected):
        return HttpError(failure.status, message)
    if isinstance(failure, TimedOut):
        return HttpError(_GATEWAY_TIMEOUT, message)
    if isinstance(failure, Unreachable | ConnectionLost):
        return HttpError(_BAD_GATEWAY, message)
    if isinstance(failure, ProtocolFailure):
        return ProtocolError(failure.code, message)
    return ProtocolError(_REFUSED if isinstance(failure, RequestRefused) else INTERNAL_ERROR, message)


def stated(failure: McpFailure) -> str:
    """A failure as a sentence, without the text of the server, which is not for everybody who may list its
    tools."""
    if isinstance(failure, ProtocolFailure):
        return f"The MCP server answered with error {failure.code}."
    return f"{failure.message[:1].upper()}{failure.message[1:]}."


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut off: {len(text) - most} more characters]"
