"""What is told about a turn that is over: where its time went, and what it dealt with.

An addition to the API, told only to those who ask. Ids, sizes and times, never content.
"""

import re
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

_PLAIN = re.compile(r"[\w.-]+")
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
    """That of the response, or ``refused``."""
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

    def as_line(self, lane: str | None) -> str:
        """One line for a log."""
        fields: dict[str, object] = {
            "response": self.response_id,
            "lane": UNSET if lane is None else lane,
            "previous": _plain(self.previous_response_id),
            "status": self.status,
            "error": self.error_code,
            "model": self.model,
            "bytes": self.request_bytes,
            "items": self.input_items,
            "dropped": self.dropped_items,
            "fallback": UNSET if self.fallback is UNSET else f'"{self.fallback}"',
        }
        if self.tokens is not UNSET:
            counts = self.tokens
            fields |= {
                "rendered": counts.rendered,
                "input": counts.input,
                "cached": counts.cached,
                "output": counts.output,
            }
        spent: dict[str, float] = {}
        for stage in self.stages:  # of a rollout, step after step
            name = f"{stage.name}_ms"
            spent[name] = round(spent.get(name, 0.0) + stage.duration_ms, 3)
        fields |= spent
        fields |= {"send_ms": self.send_ms, "total_ms": self.total_ms}
        return " ".join(f"{name}={value}" for name, value in fields.items() if value is not UNSET)


def _plain(sent: str | UnsetType) -> str | UnsetType:
    """What a client sent, unable to break a line or to look like another field."""
    if sent is UNSET or _PLAIN.fullmatch(sent):
        return sent
    return ascii(sent).replace(" ", "_")


def server_timing(stages: list[Stage]) -> str:
    """Stages as the value of a ``Server-Timing`` header."""
    return ", ".join(f"{stage.name};dur={stage.duration_ms:g}" for stage in stages)
