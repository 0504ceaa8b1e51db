"""A record's main workload as one picture, for a README: cumulative time by turn, one line for each mode.

It brings its own ground, light or dark as the reader's system is: where it is shown is not known.
"""

from pathlib import Path

from slipring.bench.report import plots, scales, units
from slipring.bench.report.charts import Drawn, drawn
from slipring.bench.report.conditions import counted, decoding, is_without_model, processor
from slipring.bench.report.markup import Markup, join, number, tag
from slipring.bench.report.palette import DARK, LIGHT
from slipring.bench.report.plots import Column, Frame, Point, Series
from slipring.bench.report.verdict import verdict
from slipring.bench.results import Record, Workload
from slipring.bench.statistics import Summary, cumulative, summarise

WIDTH, HEIGHT = 880.0, 360.0
MAIN = "coding"
"""The workload that is shown, where it was run; otherwise the first."""
_FRAME = Frame(left=64, right=530, top=88, bottom=288)
_ROW = 38.0
_STYLE = """
svg{--paper:#fff;--ink:#16191d;--soft:#525a64;--rule:#d5dae0}
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--soft)}
.title{font-size:17px;font-weight:700;fill:var(--ink)}.figure{font-size:16px;font-weight:700;fill:var(--ink)}
.name{fill:var(--ink)}.small{font-size:12px}
.paper{fill:var(--paper);stroke:var(--rule)}.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}
.line{fill:none;stroke:var(--mode);stroke-width:2.5;stroke-linejoin:round}.mark{fill:var(--mode)}
.band{fill:var(--mode);opacity:.15}.lead{stroke:var(--rule);fill:none}
"""
_DARK_STYLE = "svg{--paper:#111418;--ink:#e8ebef;--soft:#a8b1bc;--rule:#343b44;"


def write(record: Record, path: Path) -> None:
    path.write_text(f"{render(record)}\n", encoding="utf-8")


def render(record: Record) -> Markup:
    summaries = summarise(record)
    workload = next(
        (each for each in record.workloads if each.name == MAIN), next(iter(record.workloads), None)
    )
    if workload is None:
        return _picture("Nothing was measured", "", "")
    told = verdict(record, summaries, workload)
    modes = drawn(record, summaries, workload)
    titles = {mode.name: mode.title for mode in record.modes}
    here = [each for each in summaries if each.workload == workload.name]
    wrong = [titles[each.mode] for each in here if each.wrongs]
    failed = [titles[each.mode] for each in here if each.wall_ms is None and not each.wrongs]
    below = f"Time in turns so far, in a loop of {_turns(workload)}"
    below += _repeats(here) if not wrong and not failed else ""  # there is no room for both
    below += f". Wrong answers, so not shown: {'; '.join(wrong)}" if wrong else ""
    below += f". Failed, so not shown: {'; '.join(failed)}" if failed else ""
    if not modes:
        below = told.sentence
    return _picture(told.title, told.sentence, below, *([_plot(modes)] if modes else []), _conditions(record))


def _turns(workload: Workload) -> str:
    return "one turn" if workload.turns == 1 else f"{workload.turns} turns"


def _repeats(here: list[Summary]) -> str:
    is_alone = all(each.repeats <= 1 for each in here)
    return "" if is_alone else f"; medians, and least to most over {counted(here)}"


def _picture(title: str, about: str, below: str, *content: str) -> Markup:
    paper = tag(
        "rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=10, class_="paper", stroke_width=1
    )
    return tag(
        "svg",
        tag("title", title, id="title"),
        tag("desc", about, id="about"),
        tag("style", Markup(_style())),
        paper,
        plots.label(24, 38, plots.shortened(title, WIDTH - 48, 18.5), css="title"),
        plots.label(24, 62, plots.shortened(below, WIDTH - 48, 13)),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=HEIGHT,
        viewBox=f"0 0 {number(WIDTH)} {number(HEIGHT)}",
        role="img",
        aria_labelledby="title about",
    )


def _style() -> str:
    light = "".join(f".m{index}{{--mode:{colour}}}" for index, colour in enumerate(LIGHT))
    dark = "".join(f".m{index}{{--mode:{colour}}}" for index, colour in enumerate(DARK))
    return f"{_STYLE}{light}@media (prefers-color-scheme:dark){{{_DARK_STYLE}}}{dark}}}"


def _plot(modes: list[Drawn]) -> Markup:
    series = [
        Series(
            name=mode.title,
            style=mode.style,
            points=[Point(turn, each.median, each.low, each.high) for turn, each in cumulative(mode.loops)],
        )
        for mode in modes
    ]
    turns = sorted({point.at for one in series for point in one.points})
    highest = max(point.high for one in series for point in one.points)
    factor, unit = units.time_unit(highest)
    scaled = scales.from_zero(highest / factor, _FRAME.bottom, _FRAME.top, about=4)
    ticks = tuple(tick * factor for tick in scaled.ticks)
    up = scales.Scale(low=0.0, high=ticks[-1], start=_FRAME.bottom, end=_FRAME.top, ticks=ticks)
    told = [f"{tick:g}{units.SPACE}{unit}" for tick in scaled.ticks]
    across = scales.whole(turns[0], turns[-1], _FRAME.left + 8, _FRAME.right - 8, about=8)
    columns = [Column(at=turn, below=(str(turn),), title="") for turn in turns]
    return join(
        plots.vertical_axis(_FRAME, up, told),
        plots.horizontal_axis(_FRAME, across, columns),
        plots.label((_FRAME.left + _FRAME.right) / 2, _FRAME.bottom + 33, "turn", anchor="middle"),
        *(plots.band(one, across, up) for one in series),
        *(plots.line(one, across, up) for one in reversed(series)),
        _ends(series, across, up),
    )


def _ends(series: list[Series], across: scales.Scale, up: scales.Scale) -> Markup:
    """The names of the lines at their ends, one below the other where the ends lie close together."""
    order = sorted(series, key=lambda one: up(one.points[-1].value))
    wanted = [up(one.points[-1].value) for one in order]
    parts = []
    for one, y, line in zip(order, spaced(wanted, _ROW, 94.0, 286.0), wanted, strict=True):
        x = across(one.points[-1].at) + 6
        lead = f"M{number(x)} {number(line)}L{number(_FRAME.right + 18)} {number(y)}"
        sample, start = _FRAME.right + 24, _FRAME.right + 60
        css, dash = f"line {one.style.css}", one.style.dash
        told = units.duration(one.points[-1].value)
        parts += [
            tag("path", d=lead, class_="lead"),
            tag("path", d=f"M{number(sample)} {number(y)}h30", class_=css, stroke_dasharray=dash),
            plots.marks([(sample + 15, y)], one.style),
            plots.label(start, y + 5, told, css="figure"),
            plots.label(start, y + 21, plots.shortened(one.name, WIDTH - start - 10, 13), css="name"),
        ]
    return join(*parts)


def spaced(wanted: list[float], gap: float, top: float, bottom: float) -> list[float]:
    """Places in the same order, as near to those wanted as a gap and the edges let them be."""
    gap = min(gap, (bottom - top) / max(1, len(wanted) - 1))
    places: list[float] = []
    for place in wanted:
        places.append(max(place, top if not places else places[-1] + gap))
    limit = bottom
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


def _conditions(record: Record) -> Markup:
    endpoint, versions = record.endpoint, record.versions
    said = [
        f"no model: decoding {decoding(record)}" if is_without_model(record) else endpoint.model,
        *([f"slipring {versions['slipring']}"] if "slipring" in versions else []),
        record.when[:10],
        processor(record),
    ]
    line = plots.shortened(" · ".join(said), WIDTH - 48, 12)
    return plots.label(24, HEIGHT - 14, line, css="small")
