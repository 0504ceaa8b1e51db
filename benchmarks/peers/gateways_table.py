"""Shows the figures of ``gateways.py``: a table, what it was measured with, and who needs less."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULT = Path(__file__).parents[1] / "results" / "gateways.json"
RIVAL, RESPONSES, LIKE_RIVAL, CHAT = (
    "agentic-api",
    "slipring, responses",
    "slipring, responses, like agentic-api",
    "slipring, chat",
)
TITLES = {
    RIVAL: "agentic-api",
    RESPONSES: "slipring, Responses behind it",
    LIKE_RIVAL: "the same, first events and commits as agentic-api's",
    CHAT: "slipring, Chat Completions behind it",
}
_MODES = {
    "websocket": "WebSocket",
    "http-full": "HTTP with full history",
    "http-chained": "HTTP, chained",
}

Turns = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""Medians of the rounds: by mode, then by server, then by kind."""
Rest = Mapping[str, Mapping[str, list[float]]]
"""What idle connections cost in each round: by server, then by kind."""


class Row(NamedTuple):
    """A line of the table: one figure of all servers, in each round."""

    what: str
    unit: str
    digits: int
    rounds: dict[str, list[float]]
    """By server. A figure that depends on neither first events nor commits is not measured for
    ``LIKE_RIVAL``."""

    @property
    def ratio(self) -> float:
        """slipring in front of Responses, against agentic-api; infinite if that needs nothing."""
        own, other = (statistics.median(self.rounds[name]) for name in (RESPONSES, RIVAL))
        return own / other if other > 0 else math.inf

    @property
    def is_clear(self) -> bool:
        """Whether every round of the one is below every round of the other."""
        own, other = self.rounds[RESPONSES], self.rounds[RIVAL]
        return max(own) < min(other) or max(other) < min(own)


def read() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RESULT.read_text())
    return record


def rows(turns: Turns, rest: Rest) -> list[Row]:
    """All figures that were measured, in the order of the table."""
    shown = [
        *(
            (f"{title}: {what}", "ms", 2, turns.get(mode, {}), kind)
            for mode, title in _MODES.items()
            for what, kind in (("added to a turn", "turn_ms"), ("CPU of a turn", "cpu_ms"))
        ),
        *((f"{_MODES[mode]}: CPU of a delta", "µs", 0, turns.get(mode, {}), "delta_us") for mode in _MODES),
        ("WebSocket: first output after", "ms", 2, turns.get("websocket", {}), "first_ms"),
        ("memory of an idle WebSocket", "KiB", 1, rest, "idle_kib"),
        ("CPU at rest with 1,250 WebSockets", "ms/s", 1, rest, "rest_ms_per_s"),
        ("memory at start", "MB", 1, rest, "start_mb"),
    ]
    return [
        Row(what, unit, digits, {name: list(found[kind]) for name, found in figures.items() if kind in found})
        for what, unit, digits, figures, kind in shown
        if figures
    ]


def table(turns: Turns, rest: Rest) -> str:
    """Medians and ranges of the rounds."""
    lines = [
        f"| | {' | '.join(TITLES.values())} | slipring / agentic-api |",
        "| --- |" + " ---: |" * (len(TITLES) + 1),
    ]
    for row in rows(turns, rest):
        cells = [_range(row.rounds[name], row.digits) if name in row.rounds else "" for name in TITLES]
        lines.append(f"| {row.what}, {row.unit} | {' | '.join(cells)} | {_ratio(row)} |")
    return "\n".join(lines)


def about(record: Mapping[str, Any]) -> str:
    """What was measured, and where."""
    versions = ", ".join(f"{name} {each}" for name, each in {**record["versions"], **record["peers"]}.items())
    turns = len(record["turns"]["websocket"][RIVAL]["turn_ms"])
    rest = len(record["rest"][RIVAL]["start_mb"])
    return (
        f"Medians and ranges of {turns} rounds, and of {rest} with idle connections; {record['when'][:10]},"
        f" {record['machine']['cpu']}, {record['machine']['cores']} cores; {versions}."
    )


def sentence(turns: Turns, rest: Rest) -> str:
    """Where slipring in front of Responses needs less than agentic-api, where more, and where the rounds
    overlap."""
    found = rows(turns, rest)
    groups = {
        "slipring needs less": [row for row in found if row.is_clear and row.ratio < 1],
        "It needs more": [row for row in found if row.is_clear and row.ratio > 1],
        "The ranges overlap": [row for row in found if not row.is_clear],
    }
    return " ".join(f"{verdict}: {_listed(each)}." for verdict, each in groups.items() if each)


def _listed(found: Sequence[Row]) -> str:
    return "; ".join(f"{row.what} ({_ratio(row)})" for row in found)


def _ratio(row: Row) -> str:
    return f"{row.ratio:.2f} ×" if math.isfinite(row.ratio) else "against 0"


def _range(values: Sequence[float], digits: int) -> str:
    middle = statistics.median(values)
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f} – {max(values):,.{digits}f})"
