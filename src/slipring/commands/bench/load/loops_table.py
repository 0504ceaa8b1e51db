"""Shows loops that ran at once: a table, and what came out in words."""

import statistics

from rich.markup import escape
from rich.table import Table

from slipring.commands.bench.load.results import LoopsRecord, LoopsRun
from slipring.commands.bench.load.service_level import Percentiles
from slipring.commands.bench.report.conditions import busy_warning, by_api, simulation
from slipring.commands.bench.report.terminal import wide_console
from slipring.commands.bench.report.units import duration, percent

_BUSY_CORES = 0.85


def show(record: LoopsRecord) -> None:
    """Print the record to standard output."""
    endpoint, beside = record.endpoint, record.beside
    what = endpoint.url or f"a slipring server started by the bench, engine {endpoint.engine}"
    with wide_console() as console:
        if record.runs:
            console.print(_table(record))
        console.print(escape(f"Measured: {what}{by_api(endpoint)}; model {endpoint.model}."))
        if beside is not None:
            console.print(escape(f"Beside it: {beside.url}; model {beside.model}."))
        if simulated := simulation(endpoint):
            console.print(escape(f"Simulated. {simulated}"))
        for line in verdict(record):
            console.print(line)


def verdict(record: LoopsRecord) -> list[str]:
    """The ways with the most loops at once, warnings, and faults."""
    lines = [escape(sentence(record))]
    if any(run.client_cores > _BUSY_CORES for run in record.runs):
        lines.append(
            "[yellow]The bench used a whole core: it may have slowed down the measurement itself.[/yellow]"
        )
    if busy := busy_warning(record.others_cores, record.machine):
        lines.append(f"[yellow]Busy machine. {busy}[/yellow]")
    for run in record.runs:
        for reason, count in run.faults.items():
            lines.append(f"[red]{run.at_once} loops, {run.way}, {count} ×[/red] {escape(reason)}")
    return lines


def sentence(record: LoopsRecord) -> str:
    """When the most loops had ended that ended in any way."""
    for at_once in sorted({run.at_once for run in record.runs}, reverse=True):
        walls = {way.title: [run.wall_ms for run in record.of(way.name, at_once)] for way in record.ways}
        ended = sorted((statistics.median(found), title) for title, found in walls.items() if found)
        if ended:
            times = ", ".join(f"{title} {duration(wall_ms)}" for wall_ms, title in ended)
            return f"{at_once} loops at once until all have ended: {times}."
    return "No loops have ended."


def _table(record: LoopsRecord) -> Table:
    pauses = f"{record.think_ms:g} ms between turns" if record.think_ms else "no pauses"
    table = Table(
        title=f"{record.workload.title}: {record.workload.about}; {pauses}",
        title_justify="left",
        title_style="bold",
    )
    titles = {way.name: way.title for way in record.ways}
    for heading in _row(record.runs[0], ""):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for at_once in dict.fromkeys(run.at_once for run in record.runs):
        for way, title in titles.items():
            for run in record.runs:
                if (run.way, run.at_once) == (way, at_once):
                    table.add_row(*_row(run, title).values(), style="red" if run.faults else None)
    return table


def _row(run: LoopsRun, title: str) -> dict[str, str]:
    """The cells of a run by their headings."""
    cached = percent(run.cached_tokens / run.input_tokens) if run.cached_tokens else ""
    return {
        "loops": f"{run.at_once:,}",
        "way": escape(title),
        "all ended": "" if run.faults else duration(run.wall_ms),
        "a turn\np50 / p95": _ranks(run.turn_ms),
        "first token\np50 / p95": _ranks(run.first_token_ms),
        "last 5 turns\np50 / p95": _ranks(run.last_first_token_ms),
        "cached": cached,
        "server\ncores": f"{run.server_cores:.2f}" if run.server_cores is not None else "",
        "bench\ncores": f"{run.client_cores:.2f}",
        "history\nchecked by": run.history_checked or "",
        "faults": f"{sum(run.faults.values()):,}",
    }


def _ranks(found: Percentiles | None) -> str:
    return f"{duration(found.p50)} / {duration(found.p95)}" if found else ""
