"""Errors in the shape of the Messages API."""

import re
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipring.base.errors import ApiError, InvalidPrompt, InvalidRequest, Unavailable
from slipring.protocol.endpoints.translation import ErrorReply
from slipring.protocol.events import Error
from slipring.protocol.messages.error_paths import Fields, dotted, styled_message
from slipring.protocol.messages.requests import UNTHREADED

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
