"""What can go wrong with a request to the server of an engine. Callers translate it for operators or API
clients."""

from collections.abc import Mapping
from http.client import HTTPException

from slipring.base.connection_failures import reason


class HttpFailure(Exception):
    """A request got no usable answer."""


class Unreachable(HttpFailure):
    """No connection could be made, or it broke. The message says why, for operators."""


class ConnectTimedOut(Unreachable):
    """The server did not accept a connection in time."""


class TimedOut(HttpFailure):
    """The server accepted the request and then sent nothing for too long."""


class BadStatus(HttpFailure):
    """The server answered with a status that is no success."""

    def __init__(self, status: int, reason: str, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {reason}".rstrip())
        self.status = status
        self.body = body
        self.headers = headers


class Unreadable(HttpFailure):
    """The answer is not what its content type promises: no JSON, or an event line without end."""


class RedirectedElsewhere(HttpFailure):
    """The server redirects to another host, which is given neither the key nor the context."""

    def __init__(self, host: str) -> None:
        super().__init__(f"it redirects to {host}, which is another host: name that one if it is right")


class CannotConnect(OSError):
    """No connection could be made. The cause says why."""


FAILURES = (HTTPException, OSError)
"""What is raised if a request fails on the way. ``TimeoutError`` is an ``OSError``."""


def failure_of(error: Exception) -> HttpFailure:
    """One of ``FAILURES`` as an ``HttpFailure``."""
    if isinstance(error, CannotConnect) and isinstance(error.__cause__, TimeoutError):
        return ConnectTimedOut("timed out")
    if isinstance(error, TimeoutError):
        return TimedOut("timed out")
    return Unreachable(reason(error))
