"""Turn reports: the stages of a finished turn with their durations, its sizes and token counts.

An extension of the API, sent only to clients that enable it. A report holds ids, sizes and times, never
content.
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
    """One stage of a turn. ``start_ms`` counts from the arrival of the request."""

    name: StageName
    start_ms: float
    duration_ms: float


class TokenCounts(Struct, frozen=True, gc=False):
    """Tokens that an engine processed."""

    rendered: int
    """Tokens rendered for this turn."""
    input: int
    cached: int
    output: int


class TurnReport(Struct, frozen=True):
    """How one turn went."""

    status: str
    """The response's status, or ``refused`` if there was none."""
    request_bytes: int
    stages: list[Stage]
    total_ms: float
    response_id: str | UnsetType = UNSET
    previous_response_id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    input_items: int | UnsetType = UNSET
    send_ms: float | UnsetType = UNSET
    """Time in which generation waited for the client to read."""
    tokens: TokenCounts | UnsetType = UNSET
    fallback: str | UnsetType = UNSET
    """Why the engine rendered the whole context instead of the new items only."""
    dropped_items: int | UnsetType = UNSET
    """Oldest items that were left out so that the rest fits the context window."""
    error_code: str | UnsetType = UNSET

    def as_line(self, lane: str | None) -> str:
        """The report as one log line."""
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
        for stage in self.stages:  # a rollout repeats stages in every step
            name = f"{stage.name}_ms"
            spent[name] = round(spent.get(name, 0.0) + stage.duration_ms, 3)
        fields |= spent
        fields |= {"send_ms": self.send_ms, "total_ms": self.total_ms}
        return " ".join(f"{name}={value}" for name, value in fields.items() if value is not UNSET)


def _plain(sent: str | UnsetType) -> str | UnsetType:
    """Escape a client's string so that it cannot break the log line or imitate a field."""
    if sent is UNSET or _PLAIN.fullmatch(sent):
        return sent
    return ascii(sent).replace(" ", "_")


def server_timing(stages: list[Stage]) -> str:
    """Format stages as the value of a ``Server-Timing`` header."""
    return ", ".join(f"{stage.name};dur={stage.duration_ms:g}" for stage in stages)
