"""Ended turns, as the server reports them to its observers: turn log, metrics, traces, live page.

An ended turn has ids, sizes and times, never content and never a key.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from slipring.protocol.endpoints.translation import Api
from slipring.protocol.items.items import Item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Response
from slipring.protocol.turn_report import TurnReport
from slipring.server.access.auth import Caller

Transport = Literal["websocket", "sse", "http", "background"]


class Origin(Struct, frozen=True, gc=False):
    """Where requests come from."""

    transport: Transport
    connection: int = 0
    """Number of the WebSocket, counted from 1 in each process. 0: an HTTP request."""
    traceparent: str | None = None
    """The trace context of the handshake or of the HTTP request, not yet validated."""
    api: Api = "responses"
    """The API that the client speaks."""


class EndedTurn(Struct, frozen=True):
    """A turn that has ended: completed, incomplete, failed, cancelled or refused."""

    report: TurnReport
    lane: str | None
    caller: Caller
    origin: Origin
    started_at: float
    """Unix time at which its request had arrived."""
    traceparent: str | None = None
    """The trace context of the request: its own, else that of its connection; not yet validated."""
    counted_tokens: int = 0
    """Tokens of its context that another turn of the same request has counted towards quotas."""

    @property
    def ended_at(self) -> float:
        """Unix time at which its last stage ended."""
        return self.started_at + self.report.total_ms / 1000


class TurnContent(Struct, frozen=True):
    """What a turn added to its context: the new items of its request, and its output so far."""

    request: CreateRequest
    input: tuple[Item, ...] = ()
    output: tuple[Item, ...] = ()
    response: Response | None = None
    """None if the request was refused."""


class RecordingCounts(Struct):
    """Turns that were to be recorded with their content, by what became of them."""

    written: int = 0
    dropped: int = 0
    """Too many at once, no room in files or directory, or an error."""


Observer = Callable[[EndedTurn], None]
"""Called once per turn, after the turn's last events have been handed to the transport. It must return at
once, and not raise."""
ContentObserver = Callable[[EndedTurn, TurnContent | None], None]
"""As ``Observer``, for the few that may see content because an operator has switched that on. It must keep no
more of the content than a bound of its own. None: there is no content, or its client asked the server to keep
nothing."""
