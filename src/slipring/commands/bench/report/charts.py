"""The charts of a workload, as data: which figures of a record they show, and the words that belong to them.

The script of the page draws them, with the modules of the live page and of the still figure. Modes with
faulty answers are left out.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slipring.commands.bench.report import units
from slipring.commands.bench.report.drawing import Style, styles
from slipring.commands.bench.report.markup import Markup, embedded, tag
from slipring.commands.bench.results import BenchRecord, LoopResult, TurnResult, Workload
from slipring.commands.bench.statistics import Spread, Summary, by_turn, cumulative, finished

OUTSIDE = "outside the server"
REST = "other stages"
_SMALL = 0.01
"""Stages below this share of the longest bar are drawn as one."""
_LOG_FROM = 15.0
"""If the values differ by more than this factor, the scale may be logarithmic."""

Figures = Sequence[list[tuple[int, Spread]]]
"""For each mode, a spread for each turn number."""


class DrawnMode(Struct, frozen=True, kw_only=True):
    """A mode that has times."""

    name: str
    title: str
    style: Style
    loops: Sequence[LoopResult]
    summary: Summary


class Point(Struct, frozen=True):
    at: int
    value: float
    low: float
    high: float


class Series(Struct, frozen=True, kw_only=True):
    """One line of a plot."""

    name: str
    style: Style
    points: Sequence[Point]


class Column(Struct, frozen=True, kw_only=True):
    """One position on the horizontal axis: its labels below the axis, and its tooltip."""

    at: int
    labels: Sequence[str]
    tooltip: str


class Chart(Struct, frozen=True, kw_only=True):
    """A figure of the page, and what its script draws in it."""

    kind: str
    title: str
    note: str
    data: dict[str, object]


class Quantity(Struct, frozen=True, kw_only=True):
    """What the values of a chart are."""

    name: str
    """By which the script knows how to format them."""
    format: Callable[[float], str]
    may_be_log: bool = False


TIME = Quantity(name="time", format=units.duration)
SIZE = Quantity(name="size", format=units.size, may_be_log=True)


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


def charts(workload: Workload, modes: Sequence[DrawnMode], key: str) -> list[Chart]:
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
    points = [point for one in series for point in one.points]
    lowest, highest = min(point.low for point in points), max(point.high for point in points)
    is_log = quantity.may_be_log and lowest > 0 and highest / lowest > _LOG_FROM
    has_range = any(point.low != point.high for point in points)
    notes = [
        *(["Lines: medians. Bands: least to most over the repeats."] if has_range else []),
        *(["The scale is logarithmic."] if is_log else []),
    ]
    return Chart(
        kind=f"lines {kind}",
        title=title,
        note=" ".join(notes),
        data={
            "id": f"{of[1]}-{kind}",
            "title": f"{title}: {of[0].title}",
            "about": _description(series, quantity.format),
            "caption": "turn, and tokens of context" if len(columns[0].labels) > 1 else "turn",
            "quantity": quantity.name,
            "is_log": is_log,
            "series": series,
            "columns": columns,
        },
    )


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


def _stage_chart(of: tuple[Workload, str], modes: Sequence[DrawnMode]) -> Chart:
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
    return Chart(
        kind="stages",
        title=title,
        note="Means per turn, as the server reports them; the rest is time outside the server.",
        data={"id": f"{of[1]}-stages", "title": f"{title}: {of[0].title}", "bars": bars},
    )


def _timeline_chart(of: tuple[Workload, str], modes: Sequence[DrawnMode]) -> Chart:
    """One loop of each mode, the one with the median time, turn by turn."""
    lanes = []
    for mode in modes:
        loops = sorted((loop for loop in mode.loops if loop.turns), key=lambda loop: loop.wall_ms)
        if loops and mode.summary.stages_ms:
            turns = [_laid_out(turn) for turn in loops[len(loops) // 2].turns]
            lanes.append({"name": mode.title, "turns": turns})
    return Chart(
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


def figure(chart: Chart) -> Markup:
    """A chart as an HTML figure, in which the script draws."""
    caption = tag("figcaption", tag("h4", chart.title), tag("ul", class_="legend"))
    note = tag("p", chart.note, class_="note") if chart.note else Markup()
    data = tag("script", embedded(chart.data), type="application/json")
    return tag("figure", caption, tag("div", class_="drawn"), note, data, class_=chart.kind)
