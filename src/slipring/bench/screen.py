"""What a bench shows: progress on standard error while it runs, tables on standard output at its end."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from slipring.bench import results
from slipring.bench.modes import Mode
from slipring.bench.results import Record
from slipring.bench.statistics import Spread, Summary, saved, summarise
from slipring.bench.workloads.plan import Plan

_PLAIN_WIDTH = 150
"""Of a table that goes to a file or a pipe, where nobody can make the window wider."""

_DISTURBING_CORES = 0.2


class Progressing:
    """A bar for each workload, on a terminal; a line for each elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "Progressing":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, plan: Plan, modes: list[Mode], repeats: int) -> None:
        name = plan.workload.name
        self._task = self._progress.add_task(name, total=len(modes) * repeats, now="")
        if not self._console.is_terminal:
            names = ", ".join(mode.name for mode in modes)
            print(f"{name}: {repeats} × {names} …", file=sys.stderr, flush=True)

    def loop(self, mode: Mode, repeat: int) -> None:
        assert self._task is not None
        self._progress.update(self._task, now=mode.name)

    def done(self, mode: Mode, loops: list[results.Loop]) -> None:
        assert self._task is not None
        self._progress.advance(self._task)
        for wrong in [wrong for loop in loops for wrong in loop.wrongs][:1]:
            self._console.print(f"[red]{escape(mode.name)}: {escape(wrong)}[/red]")


def show(record: Record) -> None:
    """The whole record, in tables."""
    console = wide_console()
    summaries = summarise(record)
    for workload in record.workloads:
        rows = [summary for summary in summaries if summary.workload == workload.name]
        if rows:
            console.print(_table(workload, rows))
    for line in _remarks(record, summaries):
        console.print(line)


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def endpoint_remarks(endpoint: results.Endpoint) -> list[str]:
    """What was measured, and what of it is simulated."""
    what = escape(endpoint.url) if endpoint.url else f"a slipring of its own, {escape(endpoint.engine or '')}"
    lines = [f"Measured: {what}; model {escape(endpoint.model)}."]
    if endpoint.tokens_per_s is not None:
        speed = f"{endpoint.tokens_per_s:g} tokens/s" if endpoint.tokens_per_s else "unlimited"
        tokens = "" if "vocabulary=" in (endpoint.engine or "") else ", and nothing is tokenized"
        lines.append(
            f"Only the decoding speed is simulated ({speed}){tokens}; the prefix cache is on for every mode."
        )
    return lines


def bystander_remarks(others_cores: float | None, machine: results.Machine) -> list[str]:
    """A machine that is busy with other things measures these, too."""
    if others_cores is None or others_cores < _DISTURBING_CORES:
        return []
    return [
        f"[yellow]Other processes took {others_cores:.1f} of {machine.cores} cores meanwhile: figures of a"
        " busy machine say little.[/yellow]"
    ]


def _table(workload: results.Workload, rows: list[Summary]) -> Table:
    table = Table(
        title=escape(f"{workload.title}: {workload.about}"), title_justify="left", title_style="bold"
    )
    table.add_column("mode", no_wrap=True)
    for heading in (
        *("loop ms", "range", "change", "turn ms", "p95", "first token", "CPU/turn"),
        *("sent", "received", "cached"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    first = next((row.wall_ms for row in rows if row.wall_ms is not None), None)
    for row in rows:
        table.add_row(*(_wrong(row) if row.wrongs else _cells(row, first)))
    return table


def _wrong(row: Summary) -> list[str]:
    return [row.mode, "[red]WRONG[/red]", *[""] * 9]


def _cells(row: Summary, first: Spread | None) -> list[str]:
    assert row.wall_ms is not None
    less = saved(first, row.wall_ms) if first is not None and first is not row.wall_ms else None
    return [
        row.mode,
        f"{row.wall_ms.median:,.0f}",
        f"{row.wall_ms.low:,.0f}–{row.wall_ms.high:,.0f}",
        f"{-less:+.0%}" if less is not None else "",
        _figure(row.turn_ms, ".1f"),
        f"{row.turn_ms.p95:,.1f}" if row.turn_ms is not None else "",
        _figure(row.first_token_ms, ".1f"),
        _figure(row.cpu_ms, ".2f"),
        _bytes(row.sent_bytes),
        _bytes(row.received_bytes),
        f"{row.cached_share:.0%}" if row.cached_share is not None else "",
    ]


def _figure(spread: Spread | None, form: str) -> str:
    return f"{spread.median:,{form}}" if spread is not None else ""


def _bytes(count: float) -> str:
    return f"{count / 1000:,.0f} kB" if count < 1e7 else f"{count / 1e6:,.1f} MB"


def _remarks(record: Record, summaries: list[Summary]) -> list[str]:
    settings = record.settings
    lines = endpoint_remarks(record.endpoint)
    repeats = f"{settings.repeats} {'repeat' if settings.repeats == 1 else 'repeats'}"
    lines.append(
        f"Medians of {repeats}; tools take {settings.tool_ms:g} ms, not counted; {settings.rtt_ms:g} ms of"
        " round trip were added."
    )
    lines += bystander_remarks(record.others_cores, record.machine)
    lines += [f"[yellow]{mode} was skipped:[/yellow] {escape(why)}" for mode, why in record.skipped.items()]
    for summary in summaries:
        if summary.wrongs:
            more = f" (and {len(summary.wrongs) - 1} more)" if len(summary.wrongs) > 1 else ""
            lines.append(
                f"[red]{summary.workload}, {summary.mode} is wrong:[/red] {escape(summary.wrongs[0])}{more}"
            )
    return lines
