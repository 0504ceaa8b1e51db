"""The records of ``many_agents.py``, and what the pages show of them: tables, a sentence, the figure.

A cell with a wrong answer has no times.
"""

import functools
import json
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from comparison import NAMES, OWN, UNSCHEDULED, WAYS, WITH_SESSIONS, Measured, Plan
from msgspec import Struct

from slipring.commands.bench.report import charts
from slipring.commands.bench.report.charts import Style
from slipring.commands.bench.report.figure import AT_ONCE_STYLE, Plot, Series, Value, drawn_at_once
from slipring.commands.bench.results import Machine

RESULTS = Path(__file__).parent / "results" / "agents"
Pauses = tuple[float, float]
_LAST = 5
_CLIENT = "client"
"""Stands after the servers, where CPU times are listed."""
_ENDED = Path(__file__).with_name("ended.js")


class Cell(Struct, frozen=True):
    """What is measured at a time."""

    server: str
    way: str
    at_once: int
    plan: Plan

    @property
    def title(self) -> str:
        return f"{NAMES[self.server]} {WAYS[self.way]}"

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.way


class Run(Struct, kw_only=True):
    """The measurements of a cell. Times are in ms, by loop and turn."""

    cell: Cell
    repeat: int
    wall_ms: float
    cpu_ms: dict[str, float]
    """CPU time of each process."""
    first_ms: list[list[float]]
    total_ms: list[list[float]]
    loops_ms: list[float]
    """How long each loop took, with its pauses; of loops that have ended."""
    prefilled_tokens: int
    """What the engine had to read of all prompts: the rest was in its cache, or in a session."""
    prompt_tokens: int
    last_tokens: int
    """The length of the last prompt of a loop."""
    sent_bytes: int
    engine: dict[str, float] = {}
    """What the engine's own counters have counted meanwhile."""
    samples: dict[str, list[float]] = {}
    """Gauges of the engine, once a second."""
    wrong: str | None = None
    when: str
    """When the measurement began that this run is part of."""


class Record(Struct, kw_only=True):
    """All measurements with one model."""

    shape: str
    model: dict[str, Any]
    when: str
    """When the last measurement began."""
    machine: Machine
    gpu: str | None
    versions: dict[str, str]
    command: str
    kv_tokens: int = 0
    """What the engine's KV cache holds; 0 if the engine does not report it."""
    left_out: dict[str, str] = {}
    """Servers that were not measured, and why."""
    measured: list[Run] = []


def run_of(
    measured: Measured, cell: Cell, engine: dict[str, float], samples: dict[str, list[float]], when: str
) -> Run:
    turns = [turn for loop in measured.turns for turn in loop]
    return Run(
        cell=cell,
        repeat=measured.repeat,
        wall_ms=round(measured.wall_ms, 1),
        cpu_ms={name: round(spent, 1) for name, spent in measured.cpu_ms.items()},
        first_ms=[[round(turn.first_ms, 1) for turn in loop] for loop in measured.turns],
        total_ms=[[round(turn.total_ms, 1) for turn in loop] for loop in measured.turns],
        loops_ms=[round(ms, 1) for ms in measured.loops_ms],
        prefilled_tokens=sum(turn.input_tokens - turn.cached_tokens for turn in turns),
        prompt_tokens=sum(turn.input_tokens for turn in turns),
        last_tokens=max((turn.input_tokens for turn in turns), default=0),
        sent_bytes=sum(turn.sent_bytes for turn in turns),
        engine=engine,
        samples=samples,
        wrong=measured.wrong,
        when=when,
    )


def decode(path: Path) -> Record:
    return msgspec.json.decode(path.read_bytes(), type=Record)


def write(record: Record, path: Path) -> None:
    """Replaces the file at once, so that a run that is stopped leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(msgspec.to_builtins(record), separators=(",", ":")) + "\n")
    unfinished.replace(path)


def read(shape: str) -> Record:
    return decode(RESULTS / f"{shape}.json")


@functools.cache
def _machines() -> dict[str, str]:
    """A letter for each machine on which the records were made, by when its measurements began. Those that
    began within an hour of each other were on one."""
    times = sorted({run.when for path in RESULTS.glob("*.json") for run in decode(path).measured})
    letters: dict[str, str] = {}
    number, last = -1, None
    for when in times:
        began = datetime.fromisoformat(when)
        number += last is None or began - last > timedelta(hours=1)
        letters[when], last = chr(ord("a") + number), began
    return letters


def _measured_on(runs: Iterable[Run]) -> list[str]:
    """The letters of the machines."""
    return sorted({_machines()[run.when] for run in runs})


def about(record: Record) -> str:
    """The model, the loops and the machine."""
    plan = record.measured[0].cell.plan
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    left_out = "".join(f" Not measured: {why}." for why in record.left_out.values())
    where = record.gpu or "no GPU"
    return (
        f"{_heading(record)}, random weights. {plan.turns} turns; each brings"
        f" {plan.output_bytes / 1000:g} kB of a tool's output and asks for {plan.answer_tokens} tokens;"
        f" {_last_tokens(record):,} tokens at the end. {where}, {record.machine.cpu},"
        f" {record.machine.cores} cores; {versions}.{left_out} Machines of this kind: {_dates(record)}."
    )


def _days(record: Record) -> str:
    """From the first to the last."""
    days = sorted({run.when[:10] for run in record.measured})
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def _dates(record: Record) -> str:
    """When each machine began, by its letter."""
    first: dict[str, str] = {}
    for when in sorted(run.when for run in record.measured):
        first.setdefault(_machines()[when], when)
    return ", ".join(f"*{letter}* {when[:10]} {when[11:16]}" for letter, when in first.items())


def pauses(record: Record) -> Pauses | None:
    """How long tools take in the cells that have pauses; None if there are no such cells."""
    return next((run.cell.plan.pause_s for run in record.measured if run.cell.plan.pause_s), None)


def table(record: Record, pauses: bool) -> str:
    """A row for each way and number of loops at once. Loops of fewer turns than the others say so."""
    chosen, turns = _by_cell(record, pauses, shorter=True), _turns(record)
    counted = dict.fromkeys(name for runs in chosen.values() for run in runs for name in run.cpu_ms)
    processes = sorted(counted, key=lambda name: name == _CLIENT)
    lines = [
        f"| loops at once | way | time s | a turn ms | first token ms: all, last {_LAST} turns"
        f" | prefilled tokens | CPU ms a turn: {' / '.join(processes)} | machine |",
        "|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for cell, runs in chosen.items():
        shorter = "" if cell.plan.turns == turns else f", of {cell.plan.turns} turns"
        named = f"| {cell.at_once}{shorter} | {cell.title} |"
        if wrong := next((run.wrong for run in runs if run.wrong), None):
            lines.append(f"{named} {_shortened(wrong)} | | | | | |")
            continue
        first = _median(ms for run in runs for loop in run.first_ms for ms in loop)
        late = _median(ms for run in runs for loop in run.first_ms for ms in loop[-_LAST:])
        turn = _median(ms for run in runs for loop in run.total_ms for ms in loop)
        prefilled = statistics.median(run.prefilled_tokens for run in runs)
        cpu = " / ".join(_cpu(runs, name) for name in processes)
        lines.append(
            f"{named} {_span([run.wall_ms / 1e3 for run in runs])} | {turn:,.0f} | {first:,.0f}, {late:,.0f}"
            f" | {prefilled:,.0f} | {cpu} | {', '.join(_measured_on(runs))} |"
        )
    return "\n".join(lines)


def short_table(records: Sequence[Record]) -> str:
    """The times alone, without pauses: a row for each model and way, a column for each number of loops.
    Medians and ranges, where a cell was repeated. Loops of fewer turns than the others say so."""
    amounts = sorted({amount for record in records for amount in _amounts(record)})
    lines = [
        f"| model | loops at once: | {' | '.join(map(str, amounts))} |",
        f"|---|---|{'---:|' * len(amounts)}",
    ]
    for record in records:
        chosen = _by_cell(record, pauses=False, shorter=True)
        found = {(cell.key, cell.at_once): runs for cell, runs in chosen.items()}
        for key in dict.fromkeys(key for key, _ in found):
            cells = [_time(found.get((key, at), ()), _turns(record)) for at in amounts]
            lines.append(f"| {_SIZES[record.shape]} | {NAMES[key[0]]} {WAYS[key[1]]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _time(runs: Sequence[Run], turns: int) -> str:
    """How long a cell took, with its number of turns if that is another; empty if it was not measured."""
    if not _is_right(runs):
        return ""
    plan = runs[0].cell.plan
    shorter = "" if plan.turns == turns else f" ({plan.turns} turns)"
    return f"{_span([run.wall_ms / 1e3 for run in runs])} s{shorter}"


def sentence(record: Record) -> str:
    """How much faster sessions are than vLLM's own endpoint, for each number of loops at once."""
    found = {(cell.key, cell.at_once): runs for cell, runs in _by_cell(record, pauses=False).items()}
    parts = []
    for amount in _amounts(record):
        own, other = found.get((_SESSIONS, amount)), found.get((_CHAT, amount))
        if own and other and _is_right(own) and _is_right(other):
            loops = "one loop" if amount == 1 else f"{amount} loops"
            times = _wall_s(own), _wall_s(other)
            parts.append(f"{loops} {times[0]:.1f} s against {times[1]:.1f} s ({_ratio(times[1] / times[0])})")
    return f"Sessions against vLLM's own Chat Completions: {'; '.join(parts)}."


def figure(records: Sequence[Record]) -> str:
    """Loops at once against the time of all of them, as SVG: one plot for each model."""
    shown = (_CHAT, _SOCKET, _SESSIONS)
    plots = []
    for record in records:
        found = {(cell.key, cell.at_once): runs for cell, runs in _by_cell(record, pauses=False).items()}
        amounts = [
            amount
            for amount in _amounts(record)
            if all((key, amount) in found and _is_right(found[key, amount]) for key in shown)
        ]
        series = [
            Series(_SHORT[key], _STYLES[key], [_range(found[key, amount]) for amount in amounts])
            for key in shown
        ]
        plots.append(Plot(_heading(record), "loops at once", amounts, series))
    first = records[0]
    return drawn_at_once(
        plots,
        title="Agents at once over one vLLM: time until all have finished their loops",
        about=" ".join(f"{_heading(record)}: {sentence(record)}" for record in records),
        subtitle=_subtitle(records),
        conditions=f"{_days(first)} · {first.gpu or first.machine.cpu} · vLLM {first.versions['vllm']}"
        f" · {_turns(first)} turns, {_last_tokens(first) // 1000:,},000 tokens at the end, no pauses"
        " · random weights",
    )


def pressure_about(record: Record) -> str:
    """The loops, and how much of them the cache holds."""
    at_once = record.measured[0].cell.at_once
    least, most = record.measured[0].cell.plan.pause_s or (0.0, 0.0)
    holds = record.kv_tokens // _last_tokens(record)
    return (
        f"{about(record)} {at_once} loops at once, with tools of {least:g} to {most:g} s, over a KV cache for"
        f" {record.kv_tokens:,} tokens: {holds} such contexts at their end."
    )


def pressure_table(record: Record) -> str:
    """A row for each way: how long loops took together and each, and what was found in the cache."""
    lines = [
        "| way | all loops s | mean of a loop s | p95 s | first token ms, median / p95 | prefix hits"
        " | prefilled tokens | CPU of vLLM's API process s | machine |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for cell, runs in _by_cell(record, pauses=True).items():
        first = sorted(ms for run in runs for loop in run.first_ms for ms in loop)
        tokens = f"{statistics.median(run.prefilled_tokens for run in runs):,.0f}"
        cpu = f"{statistics.median(run.cpu_ms['vllm'] for run in runs) / 1e3:.0f}"
        if run := next((run for run in runs if run.wrong), None):
            done, all_turns = sum(map(len, run.total_ms)), cell.at_once * cell.plan.turns
            ended = f"{len(run.loops_ms)} of {cell.at_once}"
            times = f"{_shortened(run.wrong or '')}; {done} of {all_turns} turns, {ended} loops ended | – | –"
        else:
            times = " | ".join(
                _span(values)
                for values in (
                    [run.wall_ms / 1e3 for run in runs],
                    [_mean_s(run) for run in runs],
                    [_p95_s(run) for run in runs],
                )
            )
        lines.append(
            f"| {cell.title} | {times} | {_median(first):,.0f} / {_p95(first):,.0f}"
            f" | {_hits(runs):.0%} | {tokens} | {cpu} | {', '.join(_measured_on(runs))} |"
        )
    return "\n".join(lines)


def pressure_sentence(record: Record) -> str:
    """The mean and the p95 of a loop, against the mean over vLLM's own endpoint."""
    found = {cell.key: runs for cell, runs in _by_cell(record, pauses=True).items()}
    other = found[_CHAT]
    # A loop that was stopped would have taken longer.
    is_whole = _is_right(other)
    theirs = statistics.fmean(map(_mean_s, other)) if is_whole else _wall_s(other)
    parts = []
    for key in (_SOCKET, _SESSIONS):
        runs = found[key]
        mean, p95 = (statistics.fmean(map(each, runs)) for each in (_mean_s, _p95_s))
        share = f"{'' if is_whole else 'less than '}{mean / theirs:.2f}"
        parts.append(f"{_SHORT[key]}: mean of a loop {mean:.0f} s, {share} of theirs, p95 {p95:.0f} s")
    at_least = "" if is_whole else "more than "
    return f"vLLM's own Chat Completions: mean of a loop {at_least}{theirs:.0f} s. {'; '.join(parts)}."


def pressure_figure(records: Sequence[Record]) -> str:
    """How many loops have ended by which time, as SVG: one plot for each model."""
    plots = []
    for record in records:
        found = {cell.key: runs[0] for cell, runs in _by_cell(record, pauses=True).items()}
        longest = max(run.wall_ms for run in found.values()) / 1e3
        step = 20 if longest < 150 else 40
        plots.append(
            {
                "heading": f"{_SIZES[record.shape]}, {record.measured[0].cell.at_once} loops, room for"
                f" {record.kv_tokens // _last_tokens(record)}",
                "ticks": [step * number for number in range(int(longest / step) + 2)],
                "series": [
                    {
                        "name": _SHORT[key],
                        "style": style,
                        "points": _ended(found[key]) if key in found else [],
                    }
                    for key, style in _STYLES.items()
                    if any(key == run.cell.key for each in records for run in each.measured)
                ],
            }
        )
    first = records[0]
    texts = {
        "title": "Contexts that do not fit the KV cache: loops that have ended",
        "about": " ".join(f"{_heading(record)}: {pressure_sentence(record)}" for record in records),
        "subtitle": "vLLM alone prefills whole histories again; slipring lets as many loops run as fit",
        "conditions": f"{_days(first)} · {first.gpu or first.machine.cpu} · vLLM {first.versions['vllm']}"
        " · tools of 0.3 to 3 s · random weights · loops that begin together",
    }
    return charts.still(_ENDED, {"css": charts.css() + AT_ONCE_STYLE, "plots": plots, **texts}) + "\n"


def _ended(run: Run) -> list[dict[str, float]]:
    """How many loops have ended by which time, in s. A run that was stopped has a last point."""
    times = [0.0, *sorted(run.loops_ms)]
    if run.wrong:
        times.append(run.wall_ms)
    counts = [min(number, len(run.loops_ms)) for number in range(len(times))]
    return [
        {"at": round(at / 1e3, 2), "value": count, "low": count, "high": count}
        for at, count in zip(times, counts, strict=True)
    ]


_CHAT, _SOCKET, _SESSIONS = ("vllm", "chat"), (OWN, "websocket"), (WITH_SESSIONS, "websocket")
_UNSCHEDULED = (UNSCHEDULED, "websocket")
_STYLES = {
    _CHAT: Style(css="m0", mark="circle", dash="7 3"),
    _UNSCHEDULED: Style(css="m1", mark="triangle", dash="3 3"),
    _SOCKET: Style(css="m4", mark="square", dash="10 3 2 3"),
    _SESSIONS: Style(css="m3", mark="diamond"),
}
_SHORT = {
    _CHAT: "vLLM, Chat Completions",
    _UNSCHEDULED: "slipring, scheduling=false",
    _SOCKET: "slipring, WebSocket",
    _SESSIONS: "slipring, WebSocket and sessions",
}
_SIZES = {"tiny": "a tiny model", "small": "0.3B", "7b": "as large as 7B models"}


def _subtitle(records: Sequence[Record]) -> str:
    """What the most loops at once gain, in a line."""
    parts = []
    for record in records:
        found = {(cell.key, cell.at_once): runs for cell, runs in _by_cell(record, pauses=False).items()}
        most = max(at for key, at in found if key == _SESSIONS and (_CHAT, at) in found)
        factor = _wall_s(found[_CHAT, most]) / _wall_s(found[_SESSIONS, most])
        parts.append(f"{most} agents {_ratio(factor)}")
    return f"With sessions {', large model: '.join(parts)}"


def _last_tokens(record: Record) -> int:
    return max(run.last_tokens for run in record.measured)


def _heading(record: Record) -> str:
    return f"{record.model['layers']} layers of {record.model['width']:,} ({_SIZES[record.shape]})"


def _by_cell(record: Record, pauses: bool, shorter: bool = False) -> dict[Cell, list[Run]]:
    """All repeats of the cells with or without pauses: by number of loops, then in the order of ``NAMES``.
    ``shorter``: also loops of fewer turns than the others, which were run where whole ones do not fit."""
    order = [(server, way) for server in NAMES for way in WAYS]
    found: dict[Cell, list[Run]] = {}
    for run in record.measured:
        plan = run.cell.plan
        if (plan.pause_s is not None) is pauses and (shorter or plan.turns == _turns(record)):
            found.setdefault(run.cell, []).append(run)
    return dict(sorted(found.items(), key=lambda it: (it[0].at_once, order.index(it[0].key))))


def _turns(record: Record) -> int:
    """Of each loop, but those that are shorter than the others."""
    return max(run.cell.plan.turns for run in record.measured)


def _amounts(record: Record) -> list[int]:
    return sorted({cell.at_once for cell in _by_cell(record, pauses=False)})


def _is_right(runs: Sequence[Run]) -> bool:
    return bool(runs) and not any(run.wrong for run in runs)


def _wall_s(runs: Sequence[Run]) -> float:
    return statistics.median(run.wall_ms for run in runs) / 1e3


def _range(runs: Sequence[Run]) -> Value:
    walls = [run.wall_ms for run in runs]
    return Value(statistics.median(walls), min(walls), max(walls))


def _mean_s(run: Run) -> float:
    return statistics.fmean(run.loops_ms) / 1e3


def _p95_s(run: Run) -> float:
    return _p95(sorted(run.loops_ms)) / 1e3


def _p95(ranked: Sequence[float]) -> float:
    return ranked[int(0.95 * (len(ranked) - 1))]


def _hits(runs: Sequence[Run]) -> float:
    """The share of all prompts that was in the cache or in a session."""
    return 1 - sum(run.prefilled_tokens for run in runs) / sum(run.prompt_tokens for run in runs)


def _ratio(factor: float) -> str:
    return f"{factor:.1f} times as fast" if factor >= 1.5 else f"{1 - 1 / factor:.0%} less"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _span(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.1f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.1f} – {max(values):.1f})"


def _cpu(runs: Sequence[Run], process: str) -> str:
    spent = [
        run.cpu_ms[process] / sum(map(len, run.total_ms))
        for run in runs
        if process in run.cpu_ms and run.total_ms
    ]
    return f"{statistics.median(spent):.1f}" if spent else "–"


def _shortened(wrong: str) -> str:
    return wrong if wrong.startswith("stopped") else f"**wrong**: {wrong.partition(':')[0]}"
