"""A record in a terminal: one table for each workload, and what it comes to."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipring.bench.report import units
from slipring.bench.report.conditions import simulation, subject
from slipring.bench.report.verdict import MEASURE, NO_DIFFERENCE, held_against, measure, verdict
from slipring.bench.results import Record, Workload
from slipring.bench.statistics import Spread, Summary, summarise

_NONE = "–"
_READING = "first: to the first token; time, bytes (sent): as shares of those of "
_COLUMNS = ("loop", "least–most", "time", "turn", "p95", "first", "sent", "bytes")
_WIDE_COLUMNS = (*_COLUMNS, "CPU/turn", "cached")


def render(record: Record, *, is_wide: bool = False) -> RenderableType:
    """``is_wide``: more columns than 80 characters have room for."""
    columns = _WIDE_COLUMNS if is_wide else _COLUMNS
    summaries = summarise(record)
    parts: list[RenderableType] = [Text(subject(record))]
    if said := simulation(record):
        parts.append(Text(f"Simulated. {said}", style="yellow"))
    for workload in record.workloads:
        told = verdict(record, summaries, workload)
        parts += [Text(), _table(record, summaries, workload, columns), Text(told.sentence)]
        parts += [
            Text(f"{summary.mode}: {summary.wrongs[0]}{_more(summary)}", style="red")
            for summary in summaries
            if summary.workload == workload.name and summary.wrongs
        ]
    parts += [Text(f"{mode} was not measured: {why}", style="dim") for mode, why in record.skipped.items()]
    return Group(*parts)


def _more(summary: Summary) -> str:
    return f" (and {len(summary.wrongs) - 1} more)" if len(summary.wrongs) > 1 else ""


def _table(record: Record, summaries: list[Summary], workload: Workload, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=Text(f"{workload.title}: {workload.about}", style="bold"),
        caption=Text(f"{_READING}{MEASURE}; ≈: {NO_DIFFERENCE}"),
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("mode", overflow="fold", min_width=12)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    against = measure(summaries, workload)
    for summary in summaries:
        if summary.workload == workload.name:
            cells = _cells(record, summary, against)[: len(columns)]
            table.add_row(Text(summary.mode), *map(Text, cells))
    return table


def _cells(record: Record, summary: Summary, against: Summary | None) -> list[str]:
    wall, turn = summary.wall_ms, summary.turn_ms
    if summary.wrongs or wall is None or turn is None:
        return ["WRONG", *([_NONE] * (len(_WIDE_COLUMNS) - 1))]
    compared = held_against(record, summary, against)
    time = _NONE if compared is None else units.ratio(1 - compared.saved)
    if compared is not None and compared.repeats > 1 and not compared.is_clear:
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
        _median(summary.cpu_ms),
        _NONE if summary.cached_share is None else units.percent(summary.cached_share),
    ]


def _median(figures: Spread | None) -> str:
    return _NONE if figures is None else units.duration(figures.median)
