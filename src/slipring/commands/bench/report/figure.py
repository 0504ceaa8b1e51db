"""Figures as SVG files, for a README: a bench's main workload (cumulative time by turn, one line for each
mode), and much at once, as the levels of a load or its loops (how many run at a time against how long that
takes).

``figure.js`` and ``at_once.js`` draw them, with the plot of the HTML page, in a JavaScript engine instead of
a browser. This needs the extra ``svg``.
"""

import statistics
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from msgspec import Struct

from slipring.commands.bench.load.loops_table import sentence
from slipring.commands.bench.load.results import LoadRecord, LoopsRecord, LoopsRun
from slipring.commands.bench.load.service_level import Level, Percentiles
from slipring.commands.bench.report import charts
from slipring.commands.bench.report.charts import Style, drawn_modes, series_of, styles
from slipring.commands.bench.report.conditions import (
    busy_warning,
    counted,
    decoding,
    is_without_model,
    processor,
)
from slipring.commands.bench.report.units import duration
from slipring.commands.bench.report.verdict import verdict
from slipring.commands.bench.results import BenchRecord, Endpoint, Workload
from slipring.commands.bench.statistics import Summary, cumulative, summarise

MAIN = "coding"
"""The workload that is shown if the record has it; otherwise the first one."""
_BY_TURN = Path(__file__).with_name("figure.js")
_BY_TURN_STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft)}
.title{font-size:17px;font-weight:700;fill:var(--ink)}.figure{font-size:16px;font-weight:700;fill:var(--ink)}
.name{fill:var(--ink)}.small{font-size:12px}.paper{fill:var(--paper);stroke:var(--rule)}
.lead{stroke:var(--rule);fill:none}
"""
_AT_ONCE = Path(__file__).with_name("at_once.js")
AT_ONCE_STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft)}
.title{font-size:17px;font-weight:700;fill:var(--ink)}.head{font-weight:700;fill:var(--ink)}
.name{fill:var(--ink)}.small{font-size:12px}.paper{fill:var(--paper);stroke:var(--rule)}
"""


# --- A bench, turn by turn -------------------------------------------------------------------------


def write_bench(record: BenchRecord, path: Path) -> None:
    path.write_text(f"{render_bench(record)}\n", encoding="utf-8")


def render_bench(record: BenchRecord) -> str:
    summaries = summarise(record)
    workload = next(
        (each for each in record.workloads if each.name == MAIN), next(iter(record.workloads), None)
    )
    if workload is None:
        return _drawn_by_turn(title="Nothing was measured", about="", subtitle="", conditions="", series=[])
    result = verdict(record, summaries, workload)
    modes = drawn_modes(record, summaries, workload)
    return _drawn_by_turn(
        title=result.title,
        about=result.sentence,
        subtitle=_subtitle(record, summaries, workload) if modes else result.sentence,
        conditions=_conditions(record),
        series=series_of(modes, [cumulative(mode.loops) for mode in modes]),
    )


def _drawn_by_turn(**data: object) -> str:
    return charts.still(_BY_TURN, {"css": charts.css() + _BY_TURN_STYLE, **data})


def _subtitle(record: BenchRecord, summaries: list[Summary], workload: Workload) -> str:
    titles = {mode.name: mode.title for mode in record.modes}
    here = [each for each in summaries if each.workload == workload.name]
    faulty = [titles[each.mode] for each in here if each.faults]
    failed = [titles[each.mode] for each in here if each.wall_ms is None and not each.faults]
    text = "Time in turns so far, in a loop of "
    text += "one turn" if workload.turns == 1 else f"{workload.turns} turns"
    if not faulty and not failed and any(each.repeats > 1 for each in here):  # else there is no space for it
        text += f"; medians, and least to most over {counted(here)}"
    text += f". Wrong answers, so not shown: {'; '.join(faulty)}" if faulty else ""
    text += f". Failed, so not shown: {'; '.join(failed)}" if failed else ""
    return text


def _conditions(record: BenchRecord) -> str:
    endpoint, versions = record.endpoint, record.versions
    parts = [
        *(["busy machine"] if busy_warning(record.others_cores, record.machine) else []),
        _served(endpoint),
        *([f"slipring {versions['slipring']}"] if "slipring" in versions else []),
        record.when[:10],
        processor(record.machine),
    ]
    return " · ".join(parts)


def _served(endpoint: Endpoint) -> str:
    return f"no model: decoding {decoding(endpoint)}" if is_without_model(endpoint) else endpoint.model


# --- Much at once ----------------------------------------------------------------------------------


class Value(Struct, frozen=True):
    """A time in ms, and its range."""

    value: float
    low: float
    high: float


class Series(Struct, frozen=True):
    """A line: a value for each amount."""

    name: str
    style: Style
    values: list[Value]


class Plot(Struct, frozen=True):
    """How long it takes when so many run at once."""

    heading: str
    caption: str
    """What the amounts count."""
    amounts: list[int]
    series: list[Series]


def drawn_at_once(plots: list[Plot], *, title: str, about: str, subtitle: str, conditions: str) -> str:
    """All plots have lines with the same names."""
    texts = {"title": title, "about": about, "subtitle": subtitle, "conditions": conditions}
    return charts.still(_AT_ONCE, {"css": charts.css() + AT_ONCE_STYLE, "plots": plots, **texts}) + "\n"


# --- The levels of a load --------------------------------------------------------------------------


_TURN = Style(css="m3", mark="diamond")
_FIRST = Style(css="m0", mark="circle", dash="7 3")


def write_load(record: LoadRecord, path: Path) -> None:
    path.write_text(render_load(record), encoding="utf-8")


def render_load(record: LoadRecord) -> str:
    levels = [level for level in record.levels if level.turn_ms and level.first_token_ms]
    served = _served(record.endpoint)
    plots = [_plot(levels, served, record)] if levels else []
    words = " ".join(map(_sentence, levels))
    return drawn_at_once(
        plots,
        title=f"{served}: turns of {levels[-1].connections} loops at once" if levels else "No turn has ended",
        about=words,
        subtitle=_sentence(levels[-1]) if levels else "",
        conditions=" · ".join(
            (
                record.when[:10],
                processor(record.machine),
                record.mode,
                f"pauses of {duration(record.think_ms)}",
                "medians, and the range up to p95",
            )
        ),
    )


def _plot(levels: list[Level], served: str, record: LoadRecord) -> Plot:
    lines = {"a whole turn": (_TURN, "turn_ms"), "its first token": (_FIRST, "first_token_ms")}
    return Plot(
        heading=f"Time of a turn, {record.hold_s:g} s for each number of loops",
        caption="loops at once",
        amounts=[level.connections for level in levels],
        series=[
            Series(name, style, [_value(getattr(level, field)) for level in levels])
            for name, (style, field) in lines.items()
        ],
    )


def _value(percentiles: Percentiles | None) -> Value:
    assert percentiles is not None
    return Value(percentiles.p50, percentiles.p50, percentiles.p95)


def _sentence(level: Level) -> str:
    assert level.turn_ms is not None
    turn = level.turn_ms
    broken = f"; the service level was violated: {level.broken}" if level.broken else ""
    return (
        f"{level.connections:,} loops: a turn takes {duration(turn.p50)}, {duration(turn.p95)} at p95,"
        f" {level.turns_per_s:.1f} turns a second{broken}."
    )


# --- Loops at once ---------------------------------------------------------------------------------


def write_loops(record: LoopsRecord, path: Path) -> None:
    path.write_text(render_loops(record), encoding="utf-8")


def render_loops(record: LoopsRecord) -> str:
    style = styles(record.ways)
    amounts = sorted({run.at_once for run in record.runs if not run.faults})
    lines = [(way, [record.of(way.name, at_once) for at_once in amounts]) for way in record.ways]
    plot = Plot(
        heading=f"Time until all loops of {record.workload.turns} turns have ended",
        caption="loops at once",
        amounts=amounts,
        series=[
            Series(way.title, style[way.name], list(map(_ended, takewhile(len, runs))))
            for way, runs in lines
            if runs[:1] != [[]]
        ],
    )
    failed = [
        way.title for way in record.ways if any(run.faults for run in record.runs if run.way == way.name)
    ]
    return drawn_at_once(
        [plot] if amounts else [],
        title=f"{_served(record.endpoint)}: loops at once",
        about=f"{record.workload.about}. {sentence(record)}",
        subtitle=sentence(record) + (f" Failed with more: {'; '.join(failed)}" if failed else ""),
        conditions=" · ".join(
            (
                record.when[:10],
                processor(record.machine),
                f"pauses of {duration(record.think_ms)}" if record.think_ms else "no pauses",
            )
        ),
    )


def _ended(runs: Sequence[LoopsRun]) -> Value:
    walls = [run.wall_ms for run in runs]
    return Value(statistics.median(walls), min(walls), max(walls))
