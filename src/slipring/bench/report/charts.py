"""The charts of a workload: chooses the figures of a record, and draws lines with ``plots``.

What shows stages is drawn by the page's script, with the code of the live page. Lines are drawn here, because
the still figure has them too.

Modes with faulty answers are left out.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slipring.bench.report import plots, scales, units
from slipring.bench.report.markup import Markup, embedded, tag
from slipring.bench.report.palette import Style, styles
from slipring.bench.report.plots import Column, Frame, Point, Series
from slipring.bench.results import BenchRecord, LoopResult, TurnResult, Workload
from slipring.bench.statistics import Spread, Summary, by_turn, cumulative, finished

OUTSIDE = "outside the server"
REST = "other stages"
_SMALL = 0.01
"""Stages below this share of the longest bar are drawn as one."""
_LOG_FROM = 15.0
"""If the values differ by more than this factor, the scale may be logarithmic."""
_HEIGHT = 240.0
_TOP = 10.0

Figures = Sequence[list[tuple[int, Spread]]]
"""For each mode, a spread for each turn number."""


class DrawnMode(Struct, frozen=True, kw_only=True):
    """A mode that has times."""

    name: str
    title: str
    style: Style
    loops: Sequence[LoopResult]
    summary: Summary


class Chart(Struct, frozen=True, kw_only=True):
    kind: str
    title: str
    note: str
    legend: Sequence[tuple[Markup, str]]
    svg: Markup


class ScriptedChart(Struct, frozen=True, kw_only=True):
    """A chart that the script of the page draws, with the code of the live page."""

    kind: str
    title: str
    note: str
    data: dict[str, object]


class Quantity(Struct, frozen=True, kw_only=True):
    """How the values of a chart are formatted."""

    format: Callable[[float], str]
    unit: Callable[[float], units.Unit]
    may_be_log: bool = False


TIME = Quantity(format=units.duration, unit=units.time_unit)
SIZE = Quantity(format=units.size, unit=units.size_unit, may_be_log=True)


def drawn_modes(record: BenchRecord, summaries: Sequence[Summary], workload: Workload) -> list[DrawnMode]:
    """The modes of a workload that can be drawn, in the order of the record."""
    style = styles(record.modes)
    titles = {mode.name: mode.title for mode in record.modes}
    return [
        DrawnMode(
            name=summary.mode,
            title=titles[summary.mode],
            style=style[summary.mode],
            loops=finished(record.of(workload.name, summary.mode)),
            summary=summary,
        )
        for summary in summaries
        if summary.workload == workload.name and summary.turn_ms is not None
    ]


def charts(workload: Workload, modes: Sequence[DrawnMode], key: str) -> list[Chart | ScriptedChart]:
    """All charts of a workload. ``key`` is the prefix of their element ids."""
    if not modes:
        return []
    turns = [by_turn(mode.loops, "total_ms") for mode in modes]
    loop = [cumulative(mode.loops) for mode in modes]
    sent = [by_turn(mode.loops, "sent_bytes") for mode in modes]
    has_stages = any(mode.summary.stages_ms for mode in modes)
    return [
        _line_chart((workload, key), modes, turns, TIME, kind="turns", title="Time per turn"),
        _line_chart((workload, key), modes, loop, TIME, kind="loop", title="Time in turns so far"),
        *([_stage_chart((workload, key), modes)] if has_stages else []),
        _line_chart((workload, key), modes, sent, SIZE, kind="sent", title="Bytes sent per turn"),
        *([_timeline_chart((workload, key), modes)] if has_stages else []),
    ]


def context_tokens(modes: Sequence[DrawnMode]) -> dict[int, float]:
    """Tokens of context by turn number: the highest input count of any mode."""
    found: dict[int, float] = {}
    for mode in modes:
        for turn, tokens in by_turn(mode.loops, "input_tokens"):
            found[turn] = max(found.get(turn, 0.0), tokens.median)
    return found


def spread_text(figure: Spread, format: Callable[[float], str]) -> str:
    """The median, and the range if there are several values."""
    text = format(figure.median)
    return text if figure.count == 1 else f"{text} ({units.span(figure.low, figure.high, format)})"


def series_of(modes: Sequence[DrawnMode], figures: Figures) -> list[Series]:
    return [
        Series(
            name=mode.title,
            style=mode.style,
            points=[Point(turn, figure.median, figure.low, figure.high) for turn, figure in each],
        )
        for mode, each in zip(modes, figures, strict=True)
    ]


def value_axis(
    series: Sequence[Series], quantity: Quantity, bottom: float, top: float, ticks: int = 5
) -> tuple[scales.Scale, list[str]]:
    """The vertical scale of a line plot, and the labels of its ticks; the highest one shows the unit."""
    points = [point for one in series for point in one.points]
    lowest, highest = min(point.low for point in points), max(point.high for point in points)
    if quantity.may_be_log and lowest > 0 and highest / lowest > _LOG_FROM:
        scale = scales.logarithmic(lowest, highest, bottom, top)
        return scale, [_without_zeros(quantity.format(tick)) for tick in scale.ticks]
    factor, unit = quantity.unit(highest)
    scaled = scales.from_zero(highest / factor, bottom, top, ticks)
    labels = [f"{tick:g}" for tick in scaled.ticks]
    labels[-1] += f"{units.SPACE}{unit}"
    values = tuple(tick * factor for tick in scaled.ticks)
    return scales.Scale(low=0.0, high=values[-1], start=bottom, end=top, ticks=values), labels


def _line_chart(
    of: tuple[Workload, str],
    modes: Sequence[DrawnMode],
    figures: Figures,
    quantity: Quantity,
    *,
    kind: str,
    title: str,
) -> Chart:
    series = series_of(modes, figures)
    columns = _columns(modes, figures, quantity.format)
    has_tokens = len(columns[0].labels) > 1
    bottom = _HEIGHT - plots.LINE * (3 if has_tokens else 2) - 8
    up, labels = value_axis(series, quantity, bottom, _TOP)
    margin = max(12.0, max(map(plots.text_width, columns[-1].labels)) / 2)
    left, right = max(map(plots.text_width, labels)) + 10, plots.WIDTH - margin
    frame = Frame(left=left, right=right, top=_TOP, bottom=bottom)
    caption = "turn, and tokens of context" if has_tokens else "turn"
    across = plots.turn_axis(frame, columns)
    has_range = any(point.low != point.high for one in series for point in one.points)
    note = "Lines: medians. Bands: least to most over the repeats." if has_range else ""
    return Chart(
        kind=kind,
        title=title,
        note=f"{note}{' The scale is logarithmic.' if up.is_log else ''}".strip(),
        legend=[(plots.swatch(one.style), one.name) for one in series],
        svg=plots.drawing(
            f"{of[1]}-{kind}",
            f"{title}: {of[0].title}",
            _description(series, quantity.format),
            _HEIGHT,
            plots.line_plot(frame, series, columns, across, up, labels, caption),
        ),
    )


def _without_zeros(text: str) -> str:
    """1.00 kB becomes 1 kB."""
    number, _, unit = text.partition(units.SPACE)
    return f"{float(number):g}{units.SPACE}{unit}"


def _columns(modes: Sequence[DrawnMode], figures: Figures, format: Callable[[float], str]) -> list[Column]:
    context = context_tokens(modes)
    has_tokens = any(context.values())
    by_mode = [(mode, dict(each)) for mode, each in zip(modes, figures, strict=True)]
    columns = []
    for turn in sorted({turn for each in figures for turn, _ in each}):
        tokens = units.tokens(context.get(turn, 0.0))
        lines = [f"{mode.title}: {spread_text(each[turn], format)}" for mode, each in by_mode if turn in each]
        heading = f"Turn {turn}, {tokens} tokens" if has_tokens else f"Turn {turn}"
        labels = (str(turn), tokens) if has_tokens else (str(turn),)
        columns.append(Column(at=turn, labels=labels, tooltip="\n".join([heading, *lines])))
    return columns


def _description(series: Sequence[Series], format: Callable[[float], str]) -> str:
    """The first and the last value of each line, for screen readers."""
    return " ".join(
        f"{one.name}: {format(one.points[0].value)} in turn {one.points[0].at},"
        f" {format(one.points[-1].value)} in turn {one.points[-1].at}."
        for one in series
    )


def _stage_chart(of: tuple[Workload, str], modes: Sequence[DrawnMode]) -> ScriptedChart:
    """Mean time per turn by stage, one bar for each mode."""
    timed = [mode for mode in modes if mode.summary.stages_ms]
    totals = [
        sum(ms for _, ms in mode.summary.stages_ms) + (mode.summary.outside_ms or 0.0) for mode in timed
    ]
    longest = max(totals) or 1.0
    names = _stage_names(timed)
    large = [
        name
        for name in names
        if max(dict(mode.summary.stages_ms).get(name, 0.0) for mode in timed) >= _SMALL * longest
    ]
    bars = []
    for mode, total in zip(timed, totals, strict=True):
        spent = dict(mode.summary.stages_ms)
        parts = [(name, spent.get(name, 0.0)) for name in large]
        parts.append((REST, sum(ms for name, ms in spent.items() if name not in large)))
        parts.append((OUTSIDE, mode.summary.outside_ms or 0.0))
        segments = [{"name": name, "value": ms, "label": units.duration(ms)} for name, ms in parts if ms > 0]
        bars.append({"name": mode.title, "label": units.duration(total), "segments": segments})
    title = "Where a turn's time goes"
    return ScriptedChart(
        kind="stages",
        title=title,
        note="Means per turn, as the server reports them; the rest is time outside the server.",
        data={"id": f"{of[1]}-stages", "title": f"{title}: {of[0].title}", "bars": bars},
    )


def _timeline_chart(of: tuple[Workload, str], modes: Sequence[DrawnMode]) -> ScriptedChart:
    """One loop of each mode, the one with the median time, turn by turn."""
    lanes = []
    for mode in modes:
        loops = sorted((loop for loop in mode.loops if loop.turns), key=lambda loop: loop.wall_ms)
        if loops and mode.summary.stages_ms:
            turns = [_laid_out(turn) for turn in loops[len(loops) // 2].turns]
            lanes.append({"name": mode.title, "turns": turns})
    return ScriptedChart(
        kind="timeline",
        title="A loop, turn by turn",
        note="Of each mode the loop with the median time, without the time of tools. Choose a turn to see its"
        " stages.",
        data={"id": f"{of[1]}-timeline", "modes": lanes},
    )


def _laid_out(turn: TurnResult) -> dict[str, object]:
    stages = [(name, round(ms, 3)) for name, ms in turn.stages_ms.items() if ms > 0]
    outside = round(turn.total_ms - sum(ms for _, ms in stages), 3)
    return {
        "number": turn.number,
        "total_ms": round(turn.total_ms, 3),
        "stages": [*stages, *([(OUTSIDE, outside)] if outside > 0 else [])],
    }


def _stage_names(modes: Sequence[DrawnMode]) -> list[str]:
    """All stages in the server's order; one that only some modes have follows its predecessor there."""
    names: list[str] = []
    for mode in modes:
        before = 0
        for name, _ in mode.summary.stages_ms:
            if name not in names:
                names.insert(before, name)
            before = names.index(name) + 1
    return names


def stage_table(modes: Sequence[DrawnMode]) -> list[tuple[str, list[float | None]]]:
    """Mean time of each stage in each mode; None for a mode without stages."""
    spent = [dict(mode.summary.stages_ms) for mode in modes]
    rows: list[tuple[str, list[float | None]]] = [
        (name, [each.get(name, 0.0) if each else None for each in spent]) for name in _stage_names(modes)
    ]
    return [*rows, (OUTSIDE, [mode.summary.outside_ms for mode in modes])] if rows else []


def figure(chart: Chart | ScriptedChart) -> Markup:
    """A chart as an HTML figure with heading and legend."""
    note = tag("p", chart.note, class_="note") if chart.note else Markup()
    heading = tag("h4", chart.title)
    if isinstance(chart, ScriptedChart):
        caption = tag("figcaption", heading, tag("ul", class_="legend"))
        data = tag("script", embedded(chart.data), type="application/json")
        return tag("figure", caption, tag("div", class_="drawn"), note, data, class_=chart.kind)
    legend = tag("ul", *(tag("li", sign, name) for sign, name in chart.legend), class_="legend")
    return tag("figure", tag("figcaption", heading, legend), chart.svg, note, class_=chart.kind)
