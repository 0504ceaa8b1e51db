"""The errors that clients receive, as exceptions; and suggestions for misspelt names in their messages."""

from collections.abc import Iterable
from typing import Self

_LONGEST_QUOTE = 200
OVERLOAD_RETRY_S = 1.0
"""When to try again after a refusal because of what else runs: it may have ended by then."""


def quoted(text: str) -> str:
    """Quote a client's string for an error message, truncated to 200 characters."""
    return f"'{text}'" if len(text) <= _LONGEST_QUOTE else f"'{text[:_LONGEST_QUOTE]}…'"


class ApiError(Exception):
    """An error that is sent to the client, with the fields that the API defines."""

    status = 500
    type = "server_error"
    code = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        """Seconds after which a retry makes sense, if known."""
        self.detail = ""
        """What operators should know and clients may not see: for the log."""
        self.is_reported = False
        """Whether it is in the report of a turn, which counts it."""
        if code is not None:
            self.code = code


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    lead = "Invalid"
    """The first word of the message about a field."""

    @classmethod
    def at(cls, param: str, reason: str, *, code: str | None = None) -> Self:
        """The error of one field. ``reason`` is the end of a sentence, without its full stop."""
        return cls(f"{cls.lead} '{param}': {reason}.", param=param, code=code)


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"
    lead = "Unsupported parameter:"


class TooExpensive(InvalidRequest):
    """Client input exceeds a compile limit. ``reason`` continues a sentence that begins with "it"."""

    def __init__(self, reason: str, param: str | None = None) -> None:
        named = f"Invalid '{param}'" if param is not None else "The request cannot be served"
        super().__init__(f"{named}: it {reason}.", param=param)
        self.reason = reason


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, tokens: int, most: int, *, is_exact: bool = True) -> None:
        counted = tokens if is_exact else f"at least {tokens}"
        super().__init__(
            f"This model's maximum context length is {most} tokens. However, your input resulted in {counted}"
            " tokens. Please reduce the length of the input, or set truncation to 'auto'.",
            param="input",
        )


class InvalidPrompt(InvalidRequest):
    """A safety check has blocked the input or the answer. Clients do not retry for this code."""

    code = "invalid_prompt"


class InvalidEncryptedContent(InvalidRequest):
    code = "invalid_encrypted_content"

    def __init__(self, param: str) -> None:
        super().__init__(
            f"Invalid '{param}': this server cannot decrypt it. Send the content back unchanged.",
            param=param,
        )


class PreviousResponseNotFound(InvalidRequest):
    code = "previous_response_not_found"

    def __init__(self, response_id: str, reason: str | None = None) -> None:
        """``reason``: why it is not there any more, as a sentence."""
        message = f"Previous response with id {quoted(response_id)} not found."
        super().__init__(message if reason is None else f"{message} {reason}", param="previous_response_id")


class InvalidStreamId(InvalidRequest):
    code = "invalid_stream_id"

    def __init__(self) -> None:
        super().__init__(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may only"
            " contain letters, numbers, underscores, hyphens, and periods.",
            param="stream_id",
        )


class LaneLimitReached(InvalidRequest):
    code = "websocket_stream_limit_reached"

    def __init__(self, limit: int) -> None:
        super().__init__(
            "This WebSocket connection has reached its maximum number of distinct stream IDs"
            f" ({limit}). Reuse an existing stream_id or open a new WebSocket connection.",
            param="stream_id",
        )


class ConnectionLimitReached(InvalidRequest):
    code = "websocket_connection_limit_reached"

    def __init__(self, max_age_s: float) -> None:
        minutes = max_age_s / 60
        super().__init__(
            f"Responses websocket connection limit reached ({minutes:g} minutes)."
            " Create a new websocket connection to continue."
        )


class AuthenticationFailed(ApiError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class PermissionDenied(ApiError):
    status = 403
    type = "invalid_request_error"
    code = "permission_denied"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        served = ", ".join(f"'{model}'" for model in known) or "no model that this key may use"
        super().__init__(
            f"The model {quoted(name)} does not exist here. This server serves: {served}.", param="model"
        )


def conversation_not_found(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation with id {quoted(conversation_id)} not found.", param="conversation")


def response_not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id {quoted(response_id)} not found.", param="response_id")


class ExternalConnectorError(ApiError):
    status = 424
    type = "external_connector_error"
    code = "http_error"


class RateLimited(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class ServerError(ApiError):
    """A failure of the server or the engine. The default message reveals no internals."""

    def __init__(
        self,
        message: str = "The server had an error while processing your request.",
        *,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)


class Unavailable(ApiError):
    status = 503
    code = "service_unavailable"


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that has been handled, or is kept, and of those that it followed from.

    A traceback refers to the frames that the error has passed, and so to all that their variables hold. Often
    one of these refers to the error itself: then only a garbage collection would free what an answer held.
    """
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            found += [each.__cause__, each.__context__]


class StartupError(Exception):
    """The server cannot start. The message is one line that tells the operator what to fix."""


class UnusableModel(StartupError):
    """The server cannot start because of the model itself: its vocabulary, or its chat template."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``": did you mean NAME?"`` with the most similar known name; empty if none is similar."""
    import difflib  # needed for mistakes only, and every command imports this module

    similar = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {similar[0]}?" if similar and similar[0] != name else ""
