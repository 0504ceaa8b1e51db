"""What an upstream says when it fails, as our clients are told it.

Statuses are kept. Ids in the words are not: they are the upstream's own.
"""

import re
from typing import Any

import msgspec

from slipring.engines.remote.admission import Retryable
from slipring.engines.remote.upstream import refusal
from slipring.errors import ApiError

_LOST_CODES = frozenset(
    {
        "previous_response_not_found",
        "websocket_connection_limit_reached",
        "websocket_stream_limit_reached",
    }
)
_STATUSES = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "server_error": 500,
    "server_is_overloaded": 503,
    "slow_down": 503,
    "service_unavailable": 503,
}
_OURS = re.compile(r"invalid|image|policy|prompt|context_length|unsupported|refused|not_found|missing")
"""Codes of faults that are in the request, where nothing else tells."""
_ID = re.compile(r"\b(?:resp|msg|rs|fc|ctc|call|req|ws|cmp)_(?=\w*\d)\w{12,}")


class Lost(Retryable):
    """The upstream has lost what was to be continued, or its socket is gone: the whole can be sent again."""

    def __init__(self) -> None:
        super().__init__("The engine cannot be reached.")


class NoLanes(Lost):
    """The upstream takes no ``stream_id``."""


class _Error(msgspec.Struct):
    """An error in any of its forms: an ``error`` frame, a flat ``error`` event, the error of a response."""

    code: str | int | None = None
    message: str | None = None
    param: str | None = None
    headers: dict[str, Any] | None = None


class _Event(_Error):
    error: _Error | None = None
    status: int | None = None
    status_code: int | None = None


_event = msgspec.json.Decoder(_Event)


class _Failed(msgspec.Struct):
    error: _Error | None = None


_failed = msgspec.json.Decoder(_Failed)


def of_error_event(payload: bytes | str) -> ApiError:
    """The fault that an ``error`` frame or event tells."""
    event = _event.decode(payload)
    error = event.error or event
    code = str(error.code or "")
    if code in _LOST_CODES:
        return Lost()
    if "stream_id" in (error.param or error.message or ""):
        return NoLanes()
    status = event.status or event.status_code or _status(code)
    headers = {**(event.headers or {}), **(error.headers or {})}
    return _refusal(status, error.message or "", headers)


def of_failed_response(response: bytes) -> ApiError:
    """The fault that ended a response which had begun."""
    error = _failed.decode(response).error or _Error()
    return _refusal(_status(str(error.code or "")), error.message or "", {})


def code_of(payload: bytes | str) -> str:
    """The code of an ``error`` frame."""
    event = _event.decode(payload)
    return str((event.error or event).code or "")


def without_ids(error: ApiError) -> ApiError:
    """The same fault in words that name nothing of the upstream's."""
    error.message = _ID.sub("(id)", error.message)
    return error


def _status(code: str) -> int:
    return _STATUSES.get(code) or (400 if _OURS.search(code) else 500)


def _refusal(status: int, message: str, headers: dict[str, Any]) -> ApiError:
    body = msgspec.json.encode({"error": {"message": message}})
    return refusal(status, body, {name.title(): str(value) for name, value in headers.items()})
