"""What servers offer and return: lists of tools, and results of calls, decoded with tolerance.

One tool that cannot be used does not cost the others: it is left out, with the reason.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from slipring.mcp.failures import Malformed, TooLarge
from slipring.mcp.limits import McpLimits
from slipring.mcp.protocol.param_headers import InvalidMark, ParamHeader, param_headers

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_MAX_CONTENT_BLOCKS = 10_000


class ToolAnnotations(msgspec.Struct, frozen=True, rename="camel"):
    """What a server says about a tool. Not to be trusted unless the server is. Only ``read_only_hint`` is
    used; the others are here because one of another type makes all of them invalid."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class _WireTool(msgspec.Struct, rename="camel"):
    name: str
    input_schema: msgspec.Raw
    description: str | None = None
    output_schema: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _WirePage(msgspec.Struct, rename="camel"):
    tools: list[msgspec.Raw]
    next_cursor: str | None = None
    ttl_ms: float | None = None
    cache_scope: str | None = None
    result_type: str | None = None


class Tool(NamedTuple):
    """A tool that can be called. The schema is the server's own bytes."""

    name: str
    input_schema: msgspec.Raw
    description: str | None = None
    annotations: ToolAnnotations = ToolAnnotations()
    param_headers: tuple[ParamHeader, ...] = ()


class LeftOut(NamedTuple):
    """A tool that the server offers and that cannot be used."""

    name: str
    reason: str


class ToolList(NamedTuple):
    """All tools of a server, in its order, with its hints for caching."""

    tools: tuple[Tool, ...]
    left_out: tuple[LeftOut, ...] = ()
    ttl_s: float | None = None
    """How long the list is fresh; None if the server's protocol does not say."""
    scope: Literal["public", "private"] = "private"
    """Whether callers with other credentials may be given the same list."""

    def get(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


_page = msgspec.json.Decoder(_WirePage)
_tool = msgspec.json.Decoder(_WireTool)
_annotations = msgspec.json.Decoder(ToolAnnotations)
_any = msgspec.json.Decoder()


@dataclass
class ListInProgress:
    """Collects the pages of one list, within the limits."""

    limits: McpLimits
    check_marks: bool
    """Whether parameters will be mirrored into headers, so that tools with invalid marks are left out."""
    tools: dict[str, Tool] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    ttls_s: list[float | None] = field(default_factory=list)
    scopes: set[str | None] = field(default_factory=set)
    cursors: set[str] = field(default_factory=set)
    size: int = 0

    def add(self, result: msgspec.Raw) -> str | None:
        """Add a page; return the cursor of the next one. Raises ``Malformed``, ``TooLarge``."""
        self.size += len(result)
        if self.size > self.limits.max_list_bytes:
            raise TooLarge(f"the list of tools has more than {self.limits.max_list_bytes} bytes")
        try:
            page = _page.decode(result)
        except (msgspec.DecodeError, RecursionError):
            raise Malformed("the MCP server's list of tools is not one") from None
        if page.result_type not in (None, "complete"):
            raise Malformed("the MCP server's list of tools is of an unknown kind")
        if len(self.tools) + len(self.left_out) + len(page.tools) > self.limits.max_tools:
            raise TooLarge(f"the MCP server has more than {self.limits.max_tools} tools")
        for raw in page.tools:
            self._add(raw)
        self.ttls_s.append(None if page.ttl_ms is None else max(0.0, page.ttl_ms / 1000))
        self.scopes.add(page.cache_scope)
        return self._next(page.next_cursor)

    def _next(self, cursor: str | None) -> str | None:
        if cursor is None:
            return None
        if cursor in self.cursors:
            raise Malformed("the MCP server's list of tools repeats a page")
        self.cursors.add(cursor)
        if len(self.ttls_s) >= self.limits.max_pages:
            raise TooLarge(f"the list of tools has more than {self.limits.max_pages} pages")
        return cursor

    def _add(self, raw: msgspec.Raw) -> None:
        try:
            wire = _tool.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            self.left_out.append(LeftOut("", "its definition is invalid"))
            return
        try:
            tool = self._checked(wire)
        except (InvalidMark, ValueError) as error:
            self.left_out.append(LeftOut(wire.name[:256], str(error)))
        else:
            self.tools[tool.name] = tool

    def _checked(self, wire: _WireTool) -> Tool:
        """Return a usable tool. Raises ``ValueError`` with the reason if it is none."""
        if not _NAME.fullmatch(wire.name):
            raise ValueError("its name is empty, too long, or has control characters")
        if wire.name in self.tools:
            raise ValueError("an earlier tool has the same name")
        if len(wire.input_schema) + len(wire.output_schema) > self.limits.max_schema_bytes:
            raise ValueError(f"its schema has more than {self.limits.max_schema_bytes} bytes")
        try:
            schema = _any.decode(wire.input_schema)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("its schema cannot be read") from None
        if not isinstance(schema, dict):
            raise ValueError("its schema is not an object")
        return Tool(
            name=wire.name,
            input_schema=wire.input_schema,
            description=wire.description,
            annotations=_read_annotations(wire.annotations),
            param_headers=param_headers(schema) if self.check_marks else (),
        )

    def finished(self) -> ToolList:
        """Return the list: as fresh as its stalest page, public only if all pages are."""
        known = [ttl for ttl in self.ttls_s if ttl is not None]
        return ToolList(
            tools=tuple(self.tools.values()),
            left_out=tuple(self.left_out),
            ttl_s=min(known) if known else None,
            scope="public" if self.scopes == {"public"} else "private",
        )


def _read_annotations(raw: msgspec.Raw | msgspec.UnsetType) -> ToolAnnotations:
    """Annotations are hints: invalid ones are none."""
    if isinstance(raw, msgspec.UnsetType):
        return ToolAnnotations()
    try:
        return _annotations.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return ToolAnnotations()


class TextContent(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImageContent(msgspec.Struct, frozen=True, tag="image", rename="camel"):
    data: str
    """Base64."""
    mime_type: str


class AudioContent(msgspec.Struct, frozen=True, tag="audio", rename="camel"):
    data: str
    """Base64."""
    mime_type: str


class ResourceLink(msgspec.Struct, frozen=True, tag="resource_link", rename="camel"):
    uri: str
    name: str = ""
    description: str | None = None
    mime_type: str | None = None


class Resource(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of a resource: text, or a blob in Base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class EmbeddedResource(msgspec.Struct, frozen=True, tag="resource"):
    resource: Resource


class UnknownContent(NamedTuple):
    """A block of a type, or form, that slipring does not know."""

    raw: msgspec.Raw


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | UnknownContent

_block = msgspec.json.Decoder(TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource)


class ToolResult(NamedTuple):
    """The result of a call. ``is_error``: the tool itself reports a failure, which the model should read."""

    content: tuple[ContentBlock, ...]
    raw_content: tuple[msgspec.Raw, ...]
    """The same blocks as the server sent them."""
    structured: msgspec.Raw | None
    is_error: bool


class WantsInput(NamedTuple):
    """An interim result: the call is to be sent again with answers to these requests."""

    requests: dict[str, str]
    """By the server's key, the method of each request."""
    state: str | None


class _WireInputRequest(msgspec.Struct):
    method: str = ""


class _WireResult(msgspec.Struct, rename="camel"):
    content: list[msgspec.Raw] | None = None
    structured_content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None
    result_type: str | None = None
    input_requests: dict[str, _WireInputRequest] | None = None
    request_state: str | None = None


_result = msgspec.json.Decoder(_WireResult)


def read_result(result: msgspec.Raw, max_bytes: int) -> ToolResult | WantsInput:
    """Decode the result of a call. Raises ``Malformed``, ``TooLarge``."""
    if len(result) > max_bytes:
        raise TooLarge(f"the tool's result has more than {max_bytes} bytes")
    try:
        wire = _result.decode(result)
    except (msgspec.DecodeError, RecursionError):
        raise Malformed("the MCP server's result of the call is not one") from None
    if wire.result_type == "input_required":
        requests = {key: request.method for key, request in (wire.input_requests or {}).items()}
        if not requests and wire.request_state is None:
            raise Malformed("the MCP server wants input for the call and does not say which")
        return WantsInput(requests, wire.request_state)
    if wire.result_type not in (None, "complete"):
        raise Malformed("the MCP server's result of the call is of an unknown kind")
    blocks = tuple(wire.content or ())
    if len(blocks) > _MAX_CONTENT_BLOCKS:
        raise TooLarge(f"the tool's result has more than {_MAX_CONTENT_BLOCKS} blocks")
    structured = wire.structured_content
    return ToolResult(
        content=tuple(_read_block(raw) for raw in blocks),
        raw_content=blocks,
        structured=None if isinstance(structured, msgspec.UnsetType) else structured,
        is_error=bool(wire.is_error),
    )


def _read_block(raw: msgspec.Raw) -> ContentBlock:
    try:
        block: Any = _block.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return UnknownContent(raw)
    found: ContentBlock = block
    return found
