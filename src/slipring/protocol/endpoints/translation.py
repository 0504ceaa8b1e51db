"""Translates between the HTTP API that a client speaks and the turns of the core.

A request of any API becomes a ``CreateRequest``, and the events of its turn become what that API sends. One
``Translation`` serves one request, so it may remember what it has read and written.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import UNSET, Struct, structs

from slipring.base.errors import (
    ApiError,
    ExternalConnectorError,
    InvalidRequest,
    NotFound,
    RateLimited,
    Unavailable,
    UnsupportedParameter,
)
from slipring.protocol import requests, wire
from slipring.protocol.endpoints import rate_limits
from slipring.protocol.endpoints.rate_limits import RateLimit
from slipring.protocol.endpoints.reply_bodies import InputTokens
from slipring.protocol.events import Error, ErrorAnswer, Event, ResponseEvent
from slipring.protocol.requests import NOTHING_KNOWN, CreateRequest, Known
from slipring.protocol.responses import ConnectorFailure, Outage, Response, ResponseError, TemporaryError

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


_openings: dict[type[Event], bytes] = {}
"""The bytes before the JSON of an event, by its class: a stream has thousands of events of few classes."""


def block(event: Event) -> bytes:
    """An event as one SSE block. To be written at once: some clients lose a block that arrives in two
    parts."""
    kind = type(event)
    opening = _openings.get(kind)
    if opening is None:
        event_type = kind.__struct_config__.tag
        assert isinstance(event_type, str)
        opening = _openings[kind] = _opening(event_type)
    return b"%b%b\n\n" % (opening, wire.encode(event))


def named_block(event_type: str, data: bytes) -> bytes:
    """An encoded event as one SSE block."""
    return b"%b%b\n\n" % (_opening(event_type), data)


def _opening(event_type: str) -> bytes:
    return b"event: %b\ndata: " % event_type.encode()


_FAILURES: dict[str, type[ApiError]] = {
    "invalid_prompt": InvalidRequest,
    "context_length_exceeded": InvalidRequest,
    "insufficient_quota": RateLimited,
    "model_not_found": NotFound,
}


Api = Literal["responses", "chat_completions", "messages"]


class ErrorReply(Struct, frozen=True):
    """An error as an HTTP response."""

    status: int
    body: object
    headers: dict[str, str] = {}


class Translation:
    """Reads one request and writes its answer. This base is the Responses API itself; other APIs override
    every method."""

    api: ClassVar[Api] = "responses"
    keepalive: bytes = KEEPALIVE
    """What is written to a stream that has been silent for long."""

    def read(self, body: bytes, known: Known = NOTHING_KNOWN) -> CreateRequest:
        """Decode a request. ``known``: what the client's tenant has sent before. Called in a thread if it is
        large. Raises ``ApiError``, whose message and param name the fields of the client's API."""
        create = requests.read_create(body)
        if create.stream_id is not None:
            raise UnsupportedParameter(
                "Unsupported parameter: 'stream_id' exists only on a WebSocket.", param="stream_id"
            )
        return create

    def frames(self, event: Event) -> bytes:
        """The SSE blocks for an event of the turn, the terminal one included; empty if it has none. Called
        for every token."""
        return block(event)

    def ends(self, event: ResponseEvent) -> bool:
        """Whether the answer is complete with this terminal event."""
        return True

    def end(self) -> bytes:
        """The SSE blocks that follow those of the terminal event."""
        return DONE

    def body(self, response: Response) -> object:
        """The whole answer, for a client that does not stream. The response has not failed."""
        return response

    def counted(self, tokens: int) -> object:
        """The answer to a request that only counts the tokens of its context."""
        return InputTokens(tokens)

    def error(self, error: Error) -> ErrorReply:
        """The answer to a request that is refused, or whose response has failed and is not streamed. The
        event's own ``headers`` become HTTP headers."""
        body = ErrorAnswer(structs.replace(error.error, headers=UNSET))
        headers = error.error.headers
        return ErrorReply(error.status, body, {} if headers is UNSET else headers)

    def limit_headers(self, limits: Sequence[RateLimit]) -> dict[str, str]:
        """The headers that say how much of the client's quotas is left."""
        return rate_limits.openai_headers(limits)


RESPONSES = Translation()
"""That of the Responses API, which remembers nothing."""


def failure_of(error: ResponseError) -> ApiError:
    """The error of a failed response as the one that a refused request would get."""
    if isinstance(error, TemporaryError):
        kind = Unavailable if isinstance(error, Outage) else RateLimited
        return kind(error.message, retry_after_s=error.retry_after_s)
    if isinstance(error, ConnectorFailure):
        return ExternalConnectorError(error.message, param="tools")
    return _FAILURES.get(error.code, ApiError)(error.message, code=error.code)
