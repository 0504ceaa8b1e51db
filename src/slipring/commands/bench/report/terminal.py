"""Prints a record to the terminal: one table for each workload and one for a replay, each followed by its
result in words.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipring.commands.bench.client.redaction import strip_controls
from slipring.commands.bench.report import units
from slipring.commands.bench.report.conditions import busy_warning, repeats, simulation, subject, tool_time
from slipring.commands.bench.report.replay_comparison import NOTE, TITLE, ReplayTable, replay_table
from slipring.commands.bench.report.verdict import (
    NO_DIFFERENCE,
    TOO_FEW,
    baseline_note,
    baseline_of,
    compare_with,
    failures,
    verdict,
)
from slipring.commands.bench.results import BenchRecord, Workload
from slipring.commands.bench.statistics import Spread, Summary, summarise

_PLAIN_WIDTH = 150
"""Width of output to a file or a pipe."""
_WIDE = 124
"""Terminals of at least this width get all columns."""
_NONE = "–"
_OUTPUT_NOTE = "output: tokens of a loop; "
_SMALL = 0.01
"""Stages below this share of a turn are summed up as "other"."""
_MOST_TURNS = 40
"""Turns of a replay that are shown one by one."""
_COLUMNS = ("loop", "least–most", "time", "turn", "p95", "first", "sent", "bytes")
_WIDE_COLUMNS = (*_COLUMNS, "created", "CPU/turn", "output", "cached", "history")


def show(record: BenchRecord) -> None:
    """Print the record to standard output."""
    with wide_console() as console:
        console.print(render(record, is_wide=console.width >= _WIDE))


@contextmanager
def wide_console() -> Iterator[Console]:
    """A console whose text is printed to standard output at the end; wide if that is not a terminal. Raises
    ``OSError``: rich itself would end the process if the reader of standard output has ended."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    with console.capture() as printed:
        yield console
    sys.stdout.write(printed.get())
    sys.stdout.flush()


def render(record: BenchRecord, *, is_wide: bool = False) -> RenderableType:
    """``is_wide``: use all columns, which need more than 80 characters."""
    columns = _WIDE_COLUMNS if is_wide else _COLUMNS
    summaries = summarise(record)
    parts: list[RenderableType] = [_text(subject(record))]
    if simulated := simulation(record.endpoint):
        parts.append(_text(f"Simulated. {simulated}", style="yellow"))
    if busy := busy_warning(record.others_cores, record.machine):
        parts.append(_text(f"Busy machine. {busy}", style="yellow"))
    for workload in record.workloads:
        result = verdict(record, summaries, workload)
        here = [summary for summary in summaries if summary.workload == workload.name]
        parts += [Text(), _table(record, here, workload, columns), _text(result.sentence)]
        if (compared := replay_table(record, here, workload)) is not None:
            parts += [Text(), _replay(compared)]
        if is_wide:
            parts += [_stages(summary) for summary in here if summary.stages_ms]
        for summary in here:
            if summary.faults:
                parts.append(_text(f"{summary.mode}: {_first(summary.faults)}", style="red"))
            if summary.errors:
                reason = f"{summary.mode} {failures(summary)} repeats: {_first(summary.errors)}"
                parts.append(_text(reason, style="red"))
    parts += [_text(f"{mode} was not measured: {why}", style="dim") for mode, why in record.skipped.items()]
    settings = record.settings
    parts.append(
        _text(
            f"Medians of {repeats(record, summaries)}. Time of tools: {tool_time(settings)}, not counted."
            f" Added round trip: {settings.rtt_ms:g} ms."
        )
    )
    return Group(*parts)


def _text(content: str, style: str = "") -> Text:
    """Texts of servers may contain terminal escapes, which are removed."""
    return Text(strip_controls(content), style=style)


def _first(reasons: tuple[str, ...]) -> str:
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")


def _stages(summary: Summary) -> Text:
    """Mean time of a turn by stage, in one line."""
    spent = [*summary.stages_ms, ("outside", summary.outside_ms or 0.0)]
    least_ms = _SMALL * sum(ms for _, ms in spent)
    shown = [(name, ms) for name, ms in spent if ms >= least_ms]
    if rest_ms := sum(ms for _, ms in spent if ms < least_ms):
        shown.append(("other", rest_ms))
    text = ", ".join(f"{name} {units.duration(ms)}" for name, ms in shown)
    line = strip_controls(f"{summary.mode}, a turn: {text}")
    return Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def _plain_table(title: str, caption: str) -> Table:
    """A table without lines."""
    return Table(
        title=_text(title, style="bold"),
        caption=_text(caption),
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _table(record: BenchRecord, here: list[Summary], workload: Workload, columns: tuple[str, ...]) -> Table:
    baseline = baseline_of(here, workload)
    caption = (
        f"first: time to the first token; {_OUTPUT_NOTE if 'output' in columns else ''}time and bytes (sent):"
        f" {baseline_note(record, baseline)}; ≈: {NO_DIFFERENCE}, or {TOO_FEW}"
    )
    table = _plain_table(f"{workload.title}: {workload.about}", caption)
    table.add_column("mode", overflow="fold", min_width=12)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for summary in here:
        cells = _cells(record, summary, baseline)[: len(columns)]
        table.add_row(_text(summary.mode), *map(Text, cells))
    return table


def _replay(compared: ReplayTable) -> Table:
    """The comparison with a recording; of a long loop, its first and last turns."""
    table = _plain_table(TITLE, NOTE)
    for name in compared.columns:
        table.add_column(_text(name), justify="right", overflow="fold")
    rows = compared.rows
    if len(rows) > _MOST_TURNS:
        half = _MOST_TURNS // 2
        rows = [*rows[:half], ["…", *([""] * (len(compared.columns) - 1))], *rows[-half:]]
    for row in rows:
        table.add_row(*map(Text, row))
    table.add_row(*(Text(cell, style="bold") for cell in compared.total))
    return table


def _cells(record: BenchRecord, summary: Summary, baseline: Summary | None) -> list[str]:
    wall, turn = summary.wall_ms, summary.turn_ms
    if wall is None or turn is None:
        return ["WRONG" if summary.faults else "FAILED", *([_NONE] * (len(_WIDE_COLUMNS) - 1))]
    compared = compare_with(record, summary, baseline)
    time = _NONE if compared is None else units.ratio(1 - compared.saved)
    if compared is not None and not compared.is_clear:
        time = f"≈{time}"
    sent = None
    if baseline is not None and baseline is not summary:
        sent = units.shown_ratio(summary.sent_bytes, baseline.sent_bytes, units.size)
    return [
        units.duration(wall.median),
        units.span(wall.low, wall.high, units.duration) if wall.count > 1 else _NONE,
        time,
        units.duration(turn.median),
        units.duration(turn.p95),
        _median(summary.first_token_ms),
        units.size(summary.sent_bytes),
        _NONE if sent is None else units.ratio(sent),
        _median(summary.created_ms),
        _median(summary.cpu_ms),
        _NONE if summary.output_tokens is None else f"{summary.output_tokens:,.0f}",
        _NONE if summary.cached_share is None else units.percent(summary.cached_share),
        summary.history_checked or _NONE,
    ]


def _median(figures: Spread | None) -> str:
    return _NONE if figures is None else units.duration(figures.median)
