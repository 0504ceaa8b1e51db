"""The format of recordings: what a client did with a server, as a file of JSON lines.

The first line is a ``Header``, every other line a ``RecordedTurn``. ``server/observation/recorder`` writes
such files, ``slipring bench --replay`` reads them. A file is complete in itself: a turn continues a turn of
the same file. It holds content. Fields with their default values are left out.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

FORMAT = 1
"""Version of the format. Readers refuse any other."""
NOTICE = "This file holds content: everything that the client sent and that the model answered."


class Header(Struct, kw_only=True, frozen=True):
    """The first line of a file."""

    slipring_recording: int = FORMAT
    notice: str = NOTICE
    begun_at: str
    """When the first turn arrived, as in 2026-11-15T12:00:00.000Z."""
    server: str
    """Name and version of the server that made the recording."""
    engines: list[str]
    tenant: str


class Answer(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a turn ended, with times that begin at the arrival of the request."""

    status: str
    """As in the API; ``refused`` if there was no response, ``cancelled`` if the client disconnected."""
    total_ms: float
    first_token_ms: float | None = None
    """None if nothing was generated."""
    output: list[Any] = []
    """The items of the answer; of a failed or cancelled one, those that were complete."""
    output_bytes: int = 0
    usage: dict[str, Any] | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class RecordedTurn(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One turn, in the order in which turns ended."""

    turn: int
    """Its number in the file, from 0."""
    continues: int | None = None
    """The turn whose context it continues, by ``previous_response_id`` or by sending that context again;
    None: it begins a conversation."""
    is_detached: bool = False
    """Whether it continues a response that is not in the file, so that its context is unknown."""
    sends_history: bool = False
    """Whether the request contained the context that it continues. ``input`` is without it."""
    at_ms: float
    """Arrival of the request, since the time in the header."""
    waited_ms: float | None = None
    """From the end of the turn that it continues to its own arrival: the time of the client's tools, or of
    its user."""
    transport: str
    """``websocket``, ``sse``, ``http`` or ``background``."""
    api: str = "responses"
    """``responses``, ``chat_completions`` or ``messages``. Items and fields are those of the Responses API in
    all of them."""
    connection: int = 0
    """Number of its WebSocket in its process; 0 for an HTTP request."""
    lane: str | None = None
    model: str | None = None
    request: dict[str, Any]
    """The other fields of the request. A turn that continues another has only those that differ from it; null
    is a field that it lacks."""
    input: list[Any]
    """The new items."""
    answer: Answer
    timing: Any = UNSET
    """The ``TurnReport`` of the server, if slipring made the recording."""
