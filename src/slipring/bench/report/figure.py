"""A record's main workload as one SVG file, for a README: cumulative time by turn, one line for each mode.

Drawn with the same plot as on the HTML page, with the names of the modes at the ends of their lines. It has
its own background, and follows the reader's light or dark setting.
"""

from pathlib import Path

from slipring.bench.report import palette, plots, scales, units
from slipring.bench.report.charts import TIME, DrawnMode, drawn_modes, series_of, value_axis
from slipring.bench.report.conditions import busy_warning, counted, decoding, is_without_model, processor
from slipring.bench.report.markup import Markup, join, number, tag
from slipring.bench.report.plots import Column, Frame, Series
from slipring.bench.report.verdict import verdict
from slipring.bench.results import BenchRecord, Workload
from slipring.bench.statistics import Summary, cumulative, summarise

WIDTH, HEIGHT = 880.0, 360.0
MAIN = "coding"
"""The workload that is shown if the record has it; otherwise the first one."""
_FRAME = Frame(left=64, right=530, top=88, bottom=288)
_ROW = 38.0
_STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft)}
.title{font-size:17px;font-weight:700;fill:var(--ink)}.figure{font-size:16px;font-weight:700;fill:var(--ink)}
.name{fill:var(--ink)}.small{font-size:12px}.paper{fill:var(--paper);stroke:var(--rule)}
.lead{stroke:var(--rule);fill:none}
"""


def write(record: BenchRecord, path: Path) -> None:
    path.write_text(f"{render(record)}\n", encoding="utf-8")


def render(record: BenchRecord) -> Markup:
    summaries = summarise(record)
    workload = next(
        (each for each in record.workloads if each.name == MAIN), next(iter(record.workloads), None)
    )
    if workload is None:
        return _picture("Nothing was measured", "", "")
    result = verdict(record, summaries, workload)
    modes = drawn_modes(record, summaries, workload)
    subtitle = _subtitle(record, summaries, workload) if modes else result.sentence
    plot = [_plot(modes)] if modes else []
    return _picture(result.title, result.sentence, subtitle, *plot, _conditions(record))


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


def _picture(title: str, description: str, subtitle: str, *content: str) -> Markup:
    paper = tag(
        "rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=10, class_="paper", stroke_width=1
    )
    return tag(
        "svg",
        tag("title", title, id="title"),
        tag("desc", description, id="about"),
        tag("style", Markup(palette.css() + _STYLE)),
        paper,
        plots.label(24, 38, plots.shortened(title, WIDTH - 48, 18.5), css="title"),
        plots.label(24, 62, plots.shortened(subtitle, WIDTH - 48, 13)),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=HEIGHT,
        viewBox=f"0 0 {number(WIDTH)} {number(HEIGHT)}",
        role="img",
        aria_labelledby="title about",
    )


def _plot(modes: list[DrawnMode]) -> Markup:
    series = series_of(modes, [cumulative(mode.loops) for mode in modes])
    columns = [
        Column(at=turn, labels=(str(turn),))
        for turn in sorted({point.at for one in series for point in one.points})
    ]
    up, labels = value_axis(series, TIME, _FRAME.bottom, _FRAME.top, ticks=4)
    across = plots.turn_axis(_FRAME, columns, ticks=8)
    return join(
        plots.line_plot(_FRAME, series, columns, across, up, labels, "turn"), _line_ends(series, across, up)
    )


def _line_ends(series: list[Series], across: scales.Scale, up: scales.Scale) -> Markup:
    """Name and last value of each line on the right, in the order of the values, connected to its end."""
    rows = sorted(series, key=lambda one: up(one.points[-1].value))
    parts = []
    for row, one in enumerate(rows):
        end, y = one.points[-1], _FRAME.top + 6 + _ROW * row
        lead = (
            f"M{number(across(end.at) + 6)} {number(up(end.value))}L{number(_FRAME.right + 18)} {number(y)}"
        )
        start, value = _FRAME.right + 60, units.duration(end.value)
        parts += [
            tag("path", d=lead, class_="lead"),
            plots.swatch(one.style, _FRAME.right + 24, y - 6),
            plots.label(start, y + 5, value, css="figure"),
            plots.label(start, y + 21, plots.shortened(one.name, WIDTH - start - 10, 13), css="name"),
        ]
    return join(*parts)


def _conditions(record: BenchRecord) -> Markup:
    endpoint, versions = record.endpoint, record.versions
    parts = [
        *(["busy machine"] if busy_warning(record.others_cores, record.machine) else []),
        f"no model: decoding {decoding(endpoint)}" if is_without_model(endpoint) else endpoint.model,
        *([f"slipring {versions['slipring']}"] if "slipring" in versions else []),
        record.when[:10],
        processor(record.machine),
    ]
    line = plots.shortened(" · ".join(parts), WIDTH - 48, 12)
    return plots.label(24, HEIGHT - 14, line, css="small")
