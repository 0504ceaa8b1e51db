"""The report of a turn that has ended: its outcome, sizes and the time each stage took. Never content.

An addition to the API, sent only to clients that ask for it.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

StageName = Literal[
    "decode",
    "queue",
    "resolve",
    "validate",
    "weigh",
    "compact",
    "render",
    "engine_queue",
    "prefill",
    "generate",
    "client",
    "rollout",
    "store",
    "terminal",
]


class Stage(Struct, frozen=True, gc=False):
    """A piece of a turn: when it began, counted from the arrival of the request, and how long it took."""

    name: StageName
    start_ms: float
    duration_ms: float


class TokenCounts(Struct, frozen=True, gc=False):
    """What went through the engine."""

    rendered: int
    """Ids that were made for this turn."""
    input: int
    cached: int
    output: int


class TurnReport(Struct, frozen=True):
    """All that is kept about a turn."""

    status: str
    """The status of the response; ``refused`` if there was none, ``cancelled`` if its client disconnected."""
    request_bytes: int
    stages: list[Stage]
    total_ms: float
    response_id: str | UnsetType = UNSET
    previous_response_id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    input_items: int | UnsetType = UNSET
    send_ms: float | UnsetType = UNSET
    """Spent in waiting for the client to take what was written while the answer was made."""
    tokens: TokenCounts | UnsetType = UNSET
    fallback: str | UnsetType = UNSET
    """Why the whole context was rendered and not the delta alone."""
    dropped_items: int | UnsetType = UNSET
    """The oldest items, left out to make the rest fit."""
    error_code: str | UnsetType = UNSET


def server_timing(stages: list[Stage]) -> str:
    """Stages as the value of a ``Server-Timing`` header."""
    return ", ".join(f"{stage.name};dur={stage.duration_ms:g}" for stage in stages)
