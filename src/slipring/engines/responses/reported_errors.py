"""Failures that an upstream reports, as errors for API clients.

Statuses are kept. Ids in messages are removed: they are the upstream's own. So are secrets that it was sent.
"""

import re
from typing import Any

import msgspec

from slipring.base.errors import ApiError, ServerError
from slipring.core.generation import UpstreamTools
from slipring.engines.remote.retries_and_breaker import Retryable
from slipring.engines.remote.upstream_errors import api_error, read_error, without_secret
from slipring.engines.responses.events import Event

_LOST_CODES = frozenset(
    {
        "previous_response_not_found",
        "websocket_connection_limit_reached",
        "websocket_stream_limit_reached",
    }
)
_ID = re.compile(r"\b(?:resp|msg|rs|fc|ctc|call|req|ws|cmp)_(?=\w*\d)\w{12,}")


class ContextLost(Retryable):
    """The upstream no longer has the response to continue: the whole context can be sent instead."""

    def __init__(self) -> None:
        super().__init__("The engine cannot be reached.")


class LanesUnsupported(ContextLost):
    """The upstream does not take a ``stream_id``."""


class _Error(msgspec.Struct):
    """An error in any of its forms: an ``error`` frame, a flat ``error`` event, the error of a response."""

    code: Any = None
    message: Any = None
    param: Any = None
    headers: Any = None


class _FailedResponse(msgspec.Struct):
    error: _Error | None = None


_failed_response = msgspec.json.Decoder(_FailedResponse)


def from_error_event(event: Event) -> ApiError:
    """The error that an ``error`` frame or event reports. Raises ``ServerError`` if it is malformed."""
    error = _error(event)
    code = str(error.code or "")
    if code in _LOST_CODES:
        return ContextLost()
    if "stream_id" in str(error.param or error.message or ""):
        return LanesUnsupported()
    status = event.status or event.status_code
    headers = {**_mapping(event.headers), **_mapping(error.headers)}
    return _refusal(error, status if isinstance(status, int) else None, headers)


def from_failed_response(response: bytes) -> ApiError:
    """The error that ended a response which had begun."""
    return _refusal(_failed_response.decode(response).error or _Error(), None, {})


def code_of(event: Event) -> str:
    """The code of an ``error`` frame."""
    return str(_error(event).code or "")


def without_ids(error: ApiError, tools: UpstreamTools | None = None) -> ApiError:
    """The same error without the upstream's ids in its message, and without the secrets of ``tools``."""
    error.message = _ID.sub("(id)", error.message)
    for secret in tools.secrets if tools is not None else ():
        error.message = without_secret(error.message, secret)
        error.detail = without_secret(error.detail, secret)
    return error


def _error(event: Event) -> _Error:
    if isinstance(event.error, dict):
        known = ("code", "message", "param", "headers")
        return _Error(**{name: event.error[name] for name in known if name in event.error})
    if isinstance(event.error, str):
        return _Error(message=event.error)
    if event.error is not None:
        raise ServerError("The engine's answer cannot be read.")
    return _Error(event.code, event.message, event.param)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _refusal(error: _Error, status: int | None, headers: dict[str, Any]) -> ApiError:
    body = msgspec.json.encode({"message": str(error.message or ""), "code": str(error.code or "")})
    return api_error(read_error(body, status, {name: str(value) for name, value in headers.items()}))
