"""The records of ``engines.py``, and what the pages show of them: tables, a sentence, a figure.

A way with a wrong answer has no times.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slipring.commands.bench.report import charts
from slipring.commands.bench.results import Machine

RESULTS = Path(__file__).parents[1] / "results" / "engines"
OWN, WITH_SESSIONS = "slipring", "slipring-sessions"
UNSCHEDULED, SESSIONS_UNSCHEDULED = "slipring-unscheduled", "slipring-sessions-unscheduled"
NAMES = {
    "vllm": "vLLM",
    "llama-server": "llama-server",
    "agentic-api": "agentic-api",
    UNSCHEDULED: "slipring, `scheduling=false`:",
    SESSIONS_UNSCHEDULED: "slipring, `scheduling=false`, sessions in vLLM:",
    OWN: "slipring",
    WITH_SESSIONS: "slipring, sessions in vLLM:",
}
WAYS = {
    "full": "`/v1/responses`, full history",
    "resent": "`/v1/responses`, full history, recognised",
    "chat": "`/v1/chat/completions`, full history",
    "chained": "`/v1/responses`, chained",
    "websocket": "WebSocket",
}
_LAST = 5
_SCRIPT = Path(__file__).with_name("ways.js")
_STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft)}
.title{font-size:17px;font-weight:700;fill:var(--ink)}.head{font-weight:700;fill:var(--ink)}
.name{fill:var(--ink)}.small{font-size:12px}.paper{fill:var(--paper);stroke:var(--rule)}
.span{stroke:var(--ink);stroke-width:1.5}
"""


class Plan(Struct, frozen=True):
    """What a loop sends."""

    turns: int
    output_bytes: int
    """Size of what a tool returns."""
    answer_tokens: int
    pause_s: tuple[float, float] | None = None
    """How long a tool takes: at least and at most."""


class Turn(Struct, frozen=True):
    """Measurements of one turn."""

    first_ms: float
    total_ms: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    sent_bytes: int


class Measured(Struct):
    """One or several loops at a time."""

    server: str
    way: str
    at_once: int
    repeat: int
    wall_ms: float = 0.0
    cpu_ms: dict[str, float] = {}
    """CPU time of each process, of all loops."""
    turns: list[list[Turn]] = []
    loops_ms: list[float] = []
    """How long each loop took, with its pauses."""
    wrong: str | None = None


class Record(Struct, kw_only=True):
    """All measurements with one engine."""

    engine: str
    when: str
    machine: Machine
    versions: dict[str, str]
    plan: Plan
    repeats: int
    threads: int
    left_out: dict[str, str] = {}
    """Servers that were not measured, and why."""
    measured: list[Measured]


class Way(Struct, frozen=True):
    """All repeats of one way, with one number of loops at a time."""

    server: str
    way: str
    repeats: list[Measured]

    @property
    def title(self) -> str:
        return f"{NAMES[self.server]} {WAYS[self.way]}"

    @property
    def is_own(self) -> bool:
        return self.server in (OWN, WITH_SESSIONS)

    @property
    def wrong(self) -> str | None:
        return next((each.wrong for each in self.repeats if each.wrong), None)

    @property
    def walls_s(self) -> list[float]:
        return [each.wall_ms / 1e3 for each in self.repeats]

    @property
    def wall_s(self) -> float:
        return statistics.median(self.walls_s)

    def turns(self, first: int = 0) -> list[Turn]:
        """All turns, of each loop from turn ``first`` on."""
        return [turn for each in self.repeats for loop in each.turns for turn in loop[first:]]


def read(engine: str) -> Record:
    return msgspec.json.decode((RESULTS / f"{engine}.json").read_bytes(), type=Record)


def ways(record: Record, at_once: int) -> list[Way]:
    """All ways with this many loops at a time, in the order of ``NAMES`` and ``WAYS``."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for each in record.measured:
        if each.at_once == at_once:
            found.setdefault((each.server, each.way), []).append(each)
    order = [(server, way) for server in NAMES for way in WAYS]
    return [Way(*key, repeats) for key, repeats in sorted(found.items(), key=lambda it: order.index(it[0]))]


def amounts(record: Record) -> list[int]:
    """How many loops ran at a time."""
    return sorted({each.at_once for each in record.measured})


def about(record: Record) -> str:
    plan, last = record.plan, max(turn.input_tokens for way in ways(record, 1) for turn in way.turns())
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    repeats = "One repeat" if record.repeats == 1 else f"{record.repeats} repeats"
    left_out = "".join(f" Not measured: {why}." for why in record.left_out.values())
    return (
        f"{plan.turns} turns; each brings {plan.output_bytes / 1000:g} kB of a tool's output and asks for"
        f" {plan.answer_tokens} tokens; {last:,} tokens at the end; 4 kB of instructions and 10 tools."
        f" {repeats}, medians and ranges; {record.when[:10]}, {record.machine.cpu},"
        f" {record.machine.cores} cores, {record.threads} for the engine; {versions}.{left_out}"
    )


def table(record: Record) -> str:
    """All ways, with their times and the CPU time of each process."""
    processes = list(dict.fromkeys(name for each in record.measured for name in each.cpu_ms))
    several = amounts(record)[-1]
    lines = [
        f"| way | loop s | {several} loops at once s | first token ms, median; last {_LAST} turns | sent kB"
        f" | CPU ms a turn: {' / '.join(processes)} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    together = {(way.server, way.way): way for way in ways(record, several)}
    for way in ways(record, 1):
        others = together.get((way.server, way.way))
        if wrong := way.wrong or (others.wrong if others else None):
            lines.append(f"| {way.title} | **wrong**: {wrong.partition(':')[0]} | | | | |")
            continue
        first = statistics.median(turn.first_ms for turn in way.turns())
        late = statistics.median(turn.first_ms for turn in way.turns(record.plan.turns - _LAST))
        sent = statistics.median(sum(turn.sent_bytes for turn in each.turns[0]) for each in way.repeats)
        cpu = [_cpu(way, name) for name in processes]
        lines.append(
            f"| {way.title} | {_span(way.walls_s)} | {_span(others.walls_s) if others else ''}"
            f" | {first:.0f}; {late:.0f} | {sent / 1000:,.0f} | {' / '.join(cpu)} |"
        )
    return "\n".join(lines)


def sentence(record: Record) -> str:
    """How much less time slipring's WebSocket takes than the best other way, and where slipring is slower."""
    parts = []
    for at_once in (1, amounts(record)[-1]):
        column = ways(record, at_once)
        other = _best_other(column)
        own = {way.server: way for way in column if way.is_own and way.way == "websocket"}
        loops = "One loop" if at_once == 1 else f"{at_once} loops at once"
        sessions = own.get(WITH_SESSIONS)
        more = f", with sessions {_less(sessions.wall_s, other.wall_s)}" if sessions else ""
        parts.append(
            f"{loops} over slipring's WebSocket: {_less(own[OWN].wall_s, other.wall_s)} than over the best"
            f" other way ({other.title}){more}."
        )
        slower = [way.title for way in column if way.is_own and not way.wrong and way.wall_s > other.wall_s]
        parts += [f"Not won: {'; '.join(slower)}."] if slower else []
    return " ".join(parts)


def figure(record: Record) -> str:
    """Bars for all ways, as SVG: one loop on top, several below."""
    groups = [
        {
            "heading": "One loop" if at_once == 1 else f"{at_once} loops at once",
            "bars": [_bar(way) for way in ways(record, at_once) if not way.wrong],
        }
        for at_once in amounts(record)
    ]
    words = sentence(record).replace("`", "")
    texts = {
        "title": f"A coding loop of {record.plan.turns} calls over one {NAMES[record.engine]}, by the way it"
        " is sent",
        "about": words,
        "subtitle": _subtitle(record),
        "conditions": f"{record.when[:10]} · {record.machine.cpu}, {record.machine.cores} cores · a tiny"
        f" model with random weights · medians and ranges of {record.repeats}",
    }
    return charts.still(_SCRIPT, {"css": charts.css() + _STYLE, "groups": groups, **texts})


def _subtitle(record: Record) -> str:
    """The sentence in short: the lines of a figure are not broken."""
    parts = []
    for at_once in amounts(record):
        column = ways(record, at_once)
        (own,) = (way for way in column if way.server == OWN and way.way == "websocket")
        loops = "one loop" if at_once == 1 else f"{at_once} loops at once"
        parts.append(f"{loops} {_less(own.wall_s, _best_other(column).wall_s)}")
    return f"slipring's WebSocket against the fastest way without slipring: {', '.join(parts)}"


def _bar(way: Way) -> dict[str, object]:
    return {
        "name": way.title.replace("`", ""),
        "css": "m3" if way.is_own else "m0",
        "label": f"{way.wall_s:.2f} s",
        "value": way.wall_s,
        "low": min(way.walls_s),
        "high": max(way.walls_s),
    }


def _best_other(column: Sequence[Way]) -> Way:
    return min((way for way in column if not way.is_own and not way.wrong), key=lambda way: way.wall_s)


def _less(own: float, other: float) -> str:
    share = 1 - own / other
    return f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"


def _span(values: Iterable[float]) -> str:
    each = list(values)
    return f"{statistics.median(each):.2f} ({min(each):.2f} – {max(each):.2f})"


def _cpu(way: Way, process: str) -> str:
    spent = [
        each.cpu_ms[process] / sum(map(len, each.turns)) for each in way.repeats if process in each.cpu_ms
    ]
    return f"{statistics.median(spent):.0f}" if spent else "–"
