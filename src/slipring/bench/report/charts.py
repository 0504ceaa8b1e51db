"""The plots of a workload: which figures of a record are drawn, and what is said beside them.

Modes with wrong answers are not drawn. Knows records and what can be drawn; how it is drawn is for ``plots``.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slipring.bench.report import plots, scales, units
from slipring.bench.report.markup import Markup, tag
from slipring.bench.report.palette import NO_STAGE, REST_OF_STAGES, Style, stage_colours, styles
from slipring.bench.report.plots import Bar, Column, Frame, Point, Segment, Series
from slipring.bench.results import Loop, Record, Workload
from slipring.bench.statistics import Spread, Summary, by_turn, cumulative, finished

OUTSIDE = "outside the server"
REST = "other stages"
_SMALL = 0.01
"""Stages that are a smaller share of the longest bar are drawn as one."""
_LOG_FROM = 15.0
"""Where figures differ by more than this factor, a linear scale shows only the largest."""
_HEIGHT = 240.0
_TOP = 10.0


class Drawn(Struct, frozen=True, kw_only=True):
    """A mode that has times."""

    name: str
    title: str
    style: Style
    loops: Sequence[Loop]
    summary: Summary


class Chart(Struct, frozen=True, kw_only=True):
    kind: str
    title: str
    note: str
    legend: Sequence[tuple[Markup, str]]
    svg: Markup


def drawn(record: Record, summaries: Sequence[Summary], workload: Workload) -> list[Drawn]:
    """The modes of a workload that can be drawn, in the record's order."""
    style = styles(record.modes)
    titles = {mode.name: mode.title for mode in record.modes}
    return [
        Drawn(
            name=summary.mode,
            title=titles[summary.mode],
            style=style[summary.mode],
            loops=finished(record.of(workload.name, summary.mode)),
            summary=summary,
        )
        for summary in summaries
        if summary.workload == workload.name and summary.turn_ms is not None
    ]


def charts(workload: Workload, modes: Sequence[Drawn], key: str) -> list[Chart]:
    """``key`` is what their ids on the page begin with."""
    if not modes:
        return []
    found = [
        _lines(
            (workload, key),
            modes,
            kind="turns",
            title="Time per turn",
            figures=[by_turn(mode.loops, "total_ms") for mode in modes],
            tell=units.duration,
            unit=units.time_unit,
        ),
        _lines(
            (workload, key),
            modes,
            kind="loop",
            title="Time in turns so far",
            figures=[cumulative(mode.loops) for mode in modes],
            tell=units.duration,
            unit=units.time_unit,
        ),
        _lines(
            (workload, key),
            modes,
            kind="sent",
            title="Bytes sent per turn",
            figures=[by_turn(mode.loops, "sent_bytes") for mode in modes],
            tell=units.size,
            unit=units.size_unit,
            may_be_log=True,
        ),
    ]
    if any(mode.summary.stages_ms for mode in modes):
        found.insert(2, _stages((workload, key), modes))
    return found


def history(modes: Sequence[Drawn]) -> dict[int, float]:
    """Tokens of input by turn: the most that any mode was billed for, which is the whole context."""
    found: dict[int, float] = {}
    for mode in modes:
        for turn, tokens in by_turn(mode.loops, "input_tokens"):
            found[turn] = max(found.get(turn, 0.0), tokens.median)
    return found


def tell_spread(figure: Spread, tell: Callable[[float], str]) -> str:
    """The median, and between which figures it lies, where there are several."""
    told = tell(figure.median)
    return told if figure.count == 1 else f"{told} ({units.span(figure.low, figure.high, tell)})"


def _lines(
    of: tuple[Workload, str],
    modes: Sequence[Drawn],
    *,
    kind: str,
    title: str,
    figures: Sequence[list[tuple[int, Spread]]],
    tell: Callable[[float], str],
    unit: Callable[[float], units.Unit],
    may_be_log: bool = False,
) -> Chart:
    series = [
        Series(
            name=mode.title,
            style=mode.style,
            points=[Point(turn, figure.median, figure.low, figure.high) for turn, figure in each],
        )
        for mode, each in zip(modes, figures, strict=True)
    ]
    points = [point for one in series for point in one.points]
    lowest, highest = min(point.low for point in points), max(point.high for point in points)
    is_log = may_be_log and lowest > 0 and highest / lowest > _LOG_FROM
    columns = _columns(modes, figures, tell)
    is_deep = len(columns[0].below) > 1
    bottom = _HEIGHT - plots.LINE * (3 if is_deep else 2) - 8
    told, up = _upwards(lowest, highest, bottom, tell, unit, is_log=is_log)
    beyond = max(12.0, max(map(plots.text_width, columns[-1].below)) / 2)
    left, right = max(map(plots.text_width, told)) + 10, plots.WIDTH - beyond
    frame = Frame(left=left, right=right, top=_TOP, bottom=bottom)
    inset = min(12.0, (frame.right - frame.left) / 2 / len(columns))
    across = scales.whole(columns[0].at, columns[-1].at, frame.left + inset, frame.right - inset)
    below = "turn, and tokens of context" if is_deep else "turn"
    svg = plots.drawing(
        f"{of[1]}-{kind}",
        f"{title}: {of[0].title}",
        _about(series, tell),
        _HEIGHT,
        plots.vertical_axis(frame, up, told),
        plots.horizontal_axis(frame, across, columns),
        plots.label((frame.left + frame.right) / 2, _HEIGHT - 5, below, anchor="middle", css="caption"),
        *(plots.band(one, across, up) for one in series),
        *(plots.line(one, across, up) for one in reversed(series)),
        plots.pointed(frame, across, columns),
    )
    scale_note = " The scale is logarithmic." if is_log else ""
    return Chart(
        kind=kind,
        title=title,
        note=f"{_band_note(series)}{scale_note}".strip(),
        legend=[(plots.swatch(one.style), one.name) for one in series],
        svg=svg,
    )


def _upwards(
    lowest: float,
    highest: float,
    bottom: float,
    tell: Callable[[float], str],
    unit: Callable[[float], units.Unit],
    *,
    is_log: bool,
) -> tuple[list[str], scales.Scale]:
    """The upright scale, and what is written at its ticks."""
    if is_log:
        up = scales.logarithmic(lowest, highest, bottom, _TOP)
        return [_plain(tell(tick)) for tick in up.ticks], up
    factor, name = unit(highest)
    scaled = scales.from_zero(highest / factor, bottom, _TOP)
    ticks = tuple(tick * factor for tick in scaled.ticks)
    told = [f"{tick:g}" for tick in scaled.ticks]
    told[-1] += f"{units.SPACE}{name}"
    return told, scales.Scale(low=0.0, high=ticks[-1], start=bottom, end=_TOP, ticks=ticks)


def _plain(told: str) -> str:
    """1.00 kB is 1 kB on an axis."""
    number, _, unit = told.partition(units.SPACE)
    return f"{float(number):g}{units.SPACE}{unit}"


def _columns(
    modes: Sequence[Drawn], figures: Sequence[list[tuple[int, Spread]]], tell: Callable[[float], str]
) -> list[Column]:
    context = history(modes)
    is_deep = any(context.values())
    by_mode = [(mode, dict(each)) for mode, each in zip(modes, figures, strict=True)]
    found = []
    for turn in sorted({turn for each in figures for turn, _ in each}):
        tokens = units.tokens(context.get(turn, 0.0))
        told = [f"{mode.title}: {tell_spread(each[turn], tell)}" for mode, each in by_mode if turn in each]
        heading = f"Turn {turn}, {tokens} tokens" if is_deep else f"Turn {turn}"
        below = (str(turn), tokens) if is_deep else (str(turn),)
        found.append(Column(at=turn, below=below, title="\n".join([heading, *told])))
    return found


def _about(series: Sequence[Series], tell: Callable[[float], str]) -> str:
    """The plot in words: where each line begins and ends."""
    return " ".join(
        f"{one.name}: {tell(one.points[0].value)} in turn {one.points[0].at},"
        f" {tell(one.points[-1].value)} in turn {one.points[-1].at}."
        for one in series
    )


def _band_note(series: Sequence[Series]) -> str:
    is_spread = any(point.low != point.high for one in series for point in one.points)
    return "Lines: medians. Bands: least to most over the repeats." if is_spread else ""


def _stages(of: tuple[Workload, str], modes: Sequence[Drawn]) -> Chart:
    """Mean per turn, one bar for each mode."""
    told = [mode for mode in modes if mode.summary.stages_ms]
    wholes = [sum(ms for _, ms in mode.summary.stages_ms) + (mode.summary.outside_ms or 0.0) for mode in told]
    longest = max(wholes) or 1.0
    names = _stage_names(told)
    large = [
        name
        for name in names
        if max(dict(mode.summary.stages_ms).get(name, 0.0) for mode in told) >= _SMALL * longest
    ]
    colours = stage_colours(names)
    bars = []
    for mode, whole in zip(told, wholes, strict=True):
        spent = dict(mode.summary.stages_ms)
        parts = [(name, spent.get(name, 0.0), colours[name]) for name in large]
        parts.append((REST, sum(ms for name, ms in spent.items() if name not in large), REST_OF_STAGES))
        parts.append((OUTSIDE, mode.summary.outside_ms or 0.0, NO_STAGE))
        segments = [
            Segment(name=name, value=ms, told=units.duration(ms), colour=colour)
            for name, ms, colour in parts
            if ms > 0
        ]
        bars.append(Bar(name=mode.title, told=units.duration(whole), segments=segments))
    pitch = 46.0
    height = 8 + pitch * len(bars)
    across = scales.Scale(low=0.0, high=longest, start=2.0, end=plots.WIDTH - 2, ticks=())
    about = " ".join(
        f"{bar.name}: {', '.join(f'{one.name} {one.told}' for one in bar.segments)}." for bar in bars
    )
    used = {segment.name: segment.colour for bar in bars for segment in bar.segments}
    order = [name for name in (*names, REST, OUTSIDE) if name in used]
    return Chart(
        kind="stages",
        title="Where a turn's time goes",
        note="Means per turn, as the server tells them; the rest of the client's time is outside the server.",
        legend=[(plots.patch(used[name]), name) for name in order],
        svg=plots.drawing(
            f"{of[1]}-stages",
            f"Where a turn's time goes: {of[0].title}",
            about,
            height,
            plots.stacked(bars, across, 2.0, pitch, 20.0),
        ),
    )


def _stage_names(modes: Sequence[Drawn]) -> list[str]:
    """In the server's order: a stage that only some modes have comes after the one that it followed there."""
    names: list[str] = []
    for mode in modes:
        before = 0
        for name, _ in mode.summary.stages_ms:
            if name not in names:
                names.insert(before, name)
            before = names.index(name) + 1
    return names


def stage_table(modes: Sequence[Drawn]) -> list[tuple[str, list[float | None]]]:
    """Each stage by its mean in each mode; None for a mode that tells no stages."""
    spent = [dict(mode.summary.stages_ms) for mode in modes]
    rows: list[tuple[str, list[float | None]]] = [
        (name, [each.get(name, 0.0) if each else None for each in spent]) for name in _stage_names(modes)
    ]
    return [*rows, (OUTSIDE, [mode.summary.outside_ms for mode in modes])] if rows else []


def figure(chart: Chart) -> Markup:
    """A chart with its heading and its legend."""
    legend = tag("ul", *(tag("li", sign, name) for sign, name in chart.legend), class_="legend")
    note = tag("p", chart.note, class_="note") if chart.note else Markup()
    return tag(
        "figure", tag("figcaption", tag("h4", chart.title), legend), chart.svg, note, class_=chart.kind
    )
