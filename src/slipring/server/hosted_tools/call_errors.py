"""What clients get of a call, or a list, that has failed."""

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
from slipring.protocol.hosted.hosted_items import CallError, HttpError, ProtocolError
from slipring.server.hosted_tools.result_text import cut

INVALID_ARGUMENTS = -32602
_REFUSED = -32600
INTERNAL_ERROR = -32603
_BAD_GATEWAY, _GATEWAY_TIMEOUT = 502, 504


def error_of(failure: McpFailure, most_chars: int) -> CallError:
    """A failed call as the API shows it. The message has no secrets: the MCP client has removed them."""
    if isinstance(failure, ProtocolFailure):
        return ProtocolError(failure.code, cut(failure.message, most_chars))
    unknown = " Outcome unknown: the call may have run." if failure.outcome is Outcome.UNKNOWN else ""
    return _error(failure, stated(failure) + unknown)


def error_of_list(failure: McpFailure) -> CallError:
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
