"""What can go wrong with an MCP server, as exceptions.

    McpFailure                  has ``outcome``: whether the server may have run the call
    ├── RequestRefused          slipring itself refuses: the address policy, a header, the arguments
    ├── Unreachable             no connection, or the process did not start
    ├── ConnectionLost          the connection or the process ended before the answer
    ├── TimedOut
    ├── HttpRejected            an HTTP status other than success
    │   ├── SessionExpired      the server does not know the session any more
    │   └── NoStreamableHttp    nothing that speaks streamable HTTP is at this URL
    ├── ProtocolFailure         a JSON-RPC error of the server: code and message
    ├── InputRequired           the tool wants input that slipring does not give
    ├── Malformed               what the server sent is not MCP
    ├── TooLarge                what the server sent exceeds a limit
    └── VersionMismatch         no protocol version in common

Messages contain no URL, no header, no body and nothing of a process's output, because any of these may
contain secrets. ``ProtocolFailure.message`` is the server's own text, without the credentials that were sent.
"""

import enum


class Outcome(enum.Enum):
    """What is known about a request that failed. Only the first two may be sent again."""

    NOT_SENT = "not_sent"
    """The server has received none of it."""
    REFUSED = "refused"
    """The server rejected it without acting on it."""
    ANSWERED = "answered"
    """The server answered that it failed."""
    UNKNOWN = "unknown"
    """The server may have run it, or may still be running it."""


class McpFailure(Exception):
    """A request to an MCP server failed."""

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._outcome = outcome

    @property
    def outcome(self) -> Outcome:
        """Whether the server may have acted on the request; ``UNKNOWN`` unless more is certain."""
        return self._outcome or Outcome.UNKNOWN

    def settle(self, outcome: Outcome) -> "McpFailure":
        """Set the outcome, unless it is known already; return the failure."""
        self._outcome = self._outcome or outcome
        return self

    def before_the_call(self) -> "McpFailure":
        """State that this failed before the caller's own request was sent; return the failure."""
        self._outcome = Outcome.NOT_SENT
        return self


class RequestRefused(McpFailure):
    """slipring does not send this request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.NOT_SENT)


class Unreachable(McpFailure):
    """No connection could be made, or the process could not be started."""


class ConnectionLost(McpFailure):
    """The connection, the stream of the response or the process ended before the answer."""


class TimedOut(McpFailure):
    """The server did not answer in time. It has been asked to cancel."""


class HttpRejected(McpFailure):
    """The server answered with an HTTP error, or a redirect, which is not followed."""

    def __init__(self, status: int, message: str = "", outcome: Outcome | None = None) -> None:
        certain = Outcome.REFUSED if 300 <= status < 500 and status != 408 else Outcome.UNKNOWN
        super().__init__(message or f"the MCP server answered with HTTP status {status}", outcome or certain)
        self.status = status


class SessionExpired(HttpRejected):
    """The server does not know the session: a new one is needed, and the request was not run."""


class NoStreamableHttp(HttpRejected):
    """No streamable HTTP at this URL; the older HTTP+SSE transport may be there."""


class ProtocolFailure(McpFailure):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message, Outcome.ANSWERED)
        self.code = code


class InputRequired(McpFailure):
    """The tool asked for input (sampling, or too many questions) that slipring does not give."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.ANSWERED)


class Malformed(McpFailure):
    """What the server sent is not what the protocol defines."""


class TooLarge(McpFailure):
    """What the server sent exceeds a limit."""


class VersionMismatch(McpFailure):
    """The server speaks no version of the protocol that slipring speaks."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Outcome.NOT_SENT)
