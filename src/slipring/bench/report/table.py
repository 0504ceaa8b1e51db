"""A record in a terminal: one table for each workload, and what it comes to."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipring.bench.report import units
from slipring.bench.report.conditions import simulation, subject
from slipring.bench.report.verdict import (
    MEASURE,
    NO_DIFFERENCE,
    TOO_FEW,
    failures,
    held_against,
    measure,
    verdict,
)
from slipring.bench.results import Record, Workload
from slipring.bench.sayings import plain
from slipring.bench.statistics import Spread, Summary, summarise

_NONE = "–"
_SMALL = 0.01
"""Stages that are a smaller share of a turn are told as one."""
_READING = "first: to the first token; time, bytes (sent): as shares of those of "
_COLUMNS = ("loop", "least–most", "time", "turn", "p95", "first", "sent", "bytes")
_WIDE_COLUMNS = (*_COLUMNS, "created", "CPU/turn", "cached", "history")


def render(record: Record, *, is_wide: bool = False) -> RenderableType:
    """``is_wide``: more than 80 characters have room for."""
    columns = _WIDE_COLUMNS if is_wide else _COLUMNS
    summaries = summarise(record)
    parts: list[RenderableType] = [_text(subject(record))]
    if said := simulation(record):
        parts.append(_text(f"Simulated. {said}", style="yellow"))
    for workload in record.workloads:
        told = verdict(record, summaries, workload)
        here = [summary for summary in summaries if summary.workload == workload.name]
        parts += [Text(), _table(record, here, workload, columns), _text(told.sentence)]
        if is_wide:
            parts += [_stages(summary) for summary in here if summary.stages_ms]
        for summary in here:
            if summary.wrongs:
                parts.append(_text(f"{summary.mode}: {_first(summary.wrongs)}", style="red"))
            if summary.errors:
                why = f"{summary.mode} {failures(summary)} repeats: {_first(summary.errors)}"
                parts.append(_text(why, style="red"))
    parts += [_text(f"{mode} was not measured: {why}", style="dim") for mode, why in record.skipped.items()]
    return Group(*parts)


def _text(said: str, style: str = "") -> Text:
    """What a server has said cannot move the cursor."""
    return Text(plain(said), style=style)


def _first(complaints: tuple[str, ...]) -> str:
    return complaints[0] + (f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else "")


def _stages(summary: Summary) -> Text:
    """Where a turn's time goes, on average, in one line."""
    spent = [*summary.stages_ms, ("outside", summary.outside_ms or 0.0)]
    least_ms = _SMALL * sum(ms for _, ms in spent)
    shown = [(name, ms) for name, ms in spent if ms >= least_ms]
    if rest_ms := sum(ms for _, ms in spent if ms < least_ms):
        shown.append(("other", rest_ms))
    told = ", ".join(f"{name} {units.duration(ms)}" for name, ms in shown)
    return Text(plain(f"{summary.mode}, a turn: {told}"), style="dim", no_wrap=True, overflow="ellipsis")


def _table(record: Record, here: list[Summary], workload: Workload, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=_text(f"{workload.title}: {workload.about}", style="bold"),
        caption=Text(f"{_READING}{MEASURE}; ≈: {NO_DIFFERENCE}, or {TOO_FEW}"),
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("mode", overflow="fold", min_width=12)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    against = measure(here, workload)
    for summary in here:
        cells = _cells(record, summary, against)[: len(columns)]
        table.add_row(_text(summary.mode), *map(Text, cells))
    return table


def _cells(record: Record, summary: Summary, against: Summary | None) -> list[str]:
    wall, turn = summary.wall_ms, summary.turn_ms
    if wall is None or turn is None:
        return ["WRONG" if summary.wrongs else "FAILED", *([_NONE] * (len(_WIDE_COLUMNS) - 1))]
    compared = held_against(record, summary, against)
    time = _NONE if compared is None else units.ratio(1 - compared.saved)
    if compared is not None and not compared.is_clear:
        time = f"≈{time}"
    is_held = against is not None and against is not summary and against.sent_bytes > 0
    return [
        units.duration(wall.median),
        units.span(wall.low, wall.high, units.duration) if wall.count > 1 else _NONE,
        time,
        units.duration(turn.median),
        units.duration(turn.p95),
        _median(summary.first_token_ms),
        units.size(summary.sent_bytes),
        units.ratio(summary.sent_bytes / against.sent_bytes) if is_held and against else _NONE,
        _median(summary.created_ms),
        _median(summary.cpu_ms),
        _NONE if summary.cached_share is None else units.percent(summary.cached_share),
        summary.history_checked or _NONE,
    ]


def _median(figures: Spread | None) -> str:
    return _NONE if figures is None else units.duration(figures.median)
