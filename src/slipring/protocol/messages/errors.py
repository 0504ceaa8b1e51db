"""Errors in the shape of the Messages API, with the names of its own fields."""

import re
from collections.abc import Callable
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.base.errors import ApiError, InvalidPrompt, InvalidRequest, Unavailable
from slipring.protocol.endpoints.translation import ErrorReply
from slipring.protocol.events import Error
from slipring.protocol.messages.history import Place

_RENAMED = {
    "input": "messages",
    "instructions": "system",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning": "thinking",
    "reasoning.effort": "thinking",
    "safety_identifier": "metadata.user_id",
}
_IN_ITEM = {
    "call_id": "tool_use_id",
    "arguments": "input",
    "encrypted_content": "signature",
    "server_label": "server_name",
    "output": "content",
}
_IN_PART = dict.fromkeys((".image_url", ".file_id", ".file_data", ".file_url"), ".source")
_IN_TOOL = {
    "parameters": "input_schema",
    "server_label": "name",
    "server_url": "url",
    "authorization": "authorization_token",
    "allowed_tools": "tool_configuration.allowed_tools",
}
_IN_TOOLSET = {"server_label": "mcp_server_name", "server_url": "mcp_server_name", "allowed_tools": "configs"}
_ENTRY = re.compile(r"(input|tools)\[(\d+)\](?:\.(\w+)(?:\[(\d+)\])?)?(.*)", re.DOTALL)
_QUOTED = re.compile(r"'([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+(?:\[\d+\])?)*)'")
_MISSING = re.compile(r"Missing required parameter: '([^']*)'\.?")
_NAMED = re.compile(r"(?:Invalid|Unknown parameter:|Unsupported (?:parameter|value):) '([^']*)'[:.]? *")


def dotted(path: str) -> str:
    """``messages[2].content[0]`` as ``messages.2.content.0``."""
    return path.replace("[", ".").replace("]", "")


class Fields:
    """The fields of one request."""

    def __init__(self) -> None:
        self.place: Callable[[int], Place | None] = lambda item: None
        """Where the item with an index comes from, if there is one."""
        self.tools: list[str] = []
        """The field of each tool."""
        self.format = "output_config.format"
        """The field of the answer's format."""

    def name(self, path: str) -> str:
        """The client's name for a field of the create request."""
        if path in _RENAMED:
            return _RENAMED[path]
        if path.startswith("text.format"):
            return dotted(self.format + path.removeprefix("text.format"))
        found = _ENTRY.fullmatch(path)
        if found is None:
            return dotted(path)
        where, number, field, part, rest = found.groups()
        index = int(number)
        if where == "input":
            place = self.place(index)
            return "messages" if place is None else _in_item(place, field or "", part, rest)
        if index >= len(self.tools):
            return "tools"
        inner = f"[{part}]" if part is not None else ""
        return _in_tool(self.tools[index], field or "", f"{inner}{rest}")


def _in_item(place: Place, field: str, part: str | None, rest: str) -> str:
    """The client's name for a field of the item at this place."""
    message = f"messages[{place.message}].content"
    if not place.blocks:
        return dotted(message)
    if field == "tools" and part is not None and int(part) < len(place.tools):
        name, _, inner = rest.removeprefix(".").partition(".")
        return _in_tool(place.tools[int(part)], name, f".{inner}" if inner else "")
    if field == "content" and part is not None:
        at = int(part)
        block = place.blocks[at] if at < len(place.blocks) else place.blocks[-1]
        return dotted(f"{message}[{block}]{_IN_PART.get(rest, rest)}")
    if field == "content":
        return dotted(f"{message}[{place.blocks[0]}]")
    return dotted(f"{message}[{place.blocks[0]}].{_IN_ITEM.get(field, field)}".rstrip("."))


def _in_tool(where: str, field: str, rest: str) -> str:
    renamed = _IN_TOOL.get(field, field)
    if not where.startswith("mcp_servers"):
        renamed = _IN_TOOLSET.get(field, renamed)
    return dotted(f"{where}.{renamed}{rest}".rstrip("."))


def styled_message(message: str, name: Callable[[str], str], param: str | None = None) -> str:
    """A message in the style of the API: it begins with the field that it is about. ``name``: the client's
    name for a field. Beside ``param``, only places in lists are fields for certain: other words in quotes may
    be the client's own, as the name of a tool."""

    def in_client_terms(found: re.Match[str]) -> str:
        path = found.group(1)
        return f"'{name(path)}'" if path == param or "[" in path else found.group(0)

    def renamed(text: str) -> str:
        return _QUOTED.sub(in_client_terms, text)

    if (missing := _MISSING.match(message)) is not None:
        return f"{name(missing.group(1))}: Field required{renamed(message[missing.end() :])}"
    if (named := _NAMED.match(message)) is not None and named.end() < len(message):
        return f"{name(named.group(1))}: {renamed(message[named.end() :])}"
    return renamed(message)


ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
]
_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
OVERLOADED = 529
"""Has no name in HTTP."""
_FAILED_DEPENDENCY = 424
UNTHREADED = "thread_unsupported_request"
"""The code by which clients know that they have to send their whole history."""
_ERROR_CODES = {UNTHREADED: UNTHREADED, InvalidPrompt.code: "dlp_request_denied"}
"""Of errors that clients act on, by our own. For another 400, Claude Code sends a request up to five times
again, each time without one of its betas; of this one it knows that the request must not be sent again."""
_WINDOW = re.compile(r"maximum context length is (\d+) tokens\b.*\bresulted in (?:at least )?(\d+) tokens")


class ErrorCode(Struct):
    error_code: str


class ErrorDetail(Struct):
    type: ErrorType
    message: str
    details: ErrorCode | UnsetType = UNSET
    """Only for an error that clients act on."""


class MessagesError(Struct, tag_field="type", tag="error"):
    error: ErrorDetail
    request_id: str


def reply_of(error: Error, fields: Fields, request_id: str) -> ErrorReply:
    """The HTTP response of an error."""
    status = _status_of(error.status)
    headers = {} if error.error.headers is UNSET else error.error.headers
    message = _message_of(error.error.code, error.error.message, fields, error.error.param)
    body = _body(status, error.error.code, message, request_id)
    return ErrorReply(status, body, {**headers, "request-id": request_id})


def body_of(error: ApiError, fields: Fields, request_id: str) -> MessagesError:
    """The error that ends a stream."""
    message = _message_of(error.code, error.message, fields, error.param)
    return _body(_status_of(error.status), error.code, message, request_id)


def in_style(error: InvalidRequest) -> InvalidRequest:
    """An error about a field of the client's own request, which it names as the decoder does."""
    param = dotted(error.param) if error.param is not None else None
    return InvalidRequest(styled_message(error.message, dotted), param=param, code=error.code)


def _body(status: int, code: str, message: str, request_id: str) -> MessagesError:
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    known = _ERROR_CODES.get(code)
    return MessagesError(ErrorDetail(kind, message, UNSET if known is None else ErrorCode(known)), request_id)


def _status_of(status: int) -> int:
    if status == Unavailable.status:
        return OVERLOADED
    return InvalidRequest.status if status == _FAILED_DEPENDENCY else status


def _message_of(code: str, message: str, fields: Fields, param: str | None) -> str:
    if code == "context_length_exceeded":
        # Claude Code compacts its history when it reads these words.
        found = _WINDOW.search(message)
        if found is None:
            return f"prompt is too long: {message}"
        return f"prompt is too long: {found.group(2)} tokens > {found.group(1)} maximum"
    styled = styled_message(message, fields.name, param)
    named = fields.name(param) if param is not None else ""
    return styled if styled.startswith(named) else f"{named}: {styled}"
