"""The charts of a workload: which figures of a record they show, the words that belong to them, and the
colours, dashes, markers and scripts with which they are drawn.

The charts are data. The script of the page draws them, with the modules of the live page and of the still
figure. Modes with faulty answers are left out.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.commands.bench.report import units
from slipring.commands.bench.report.markup import Markup, embedded, tag
from slipring.commands.bench.results import BenchRecord, LoopResult, ModeDescription, TurnResult, Workload
from slipring.commands.bench.statistics import Spread, Summary, by_turn, cumulative, finished
from slipring.observation.drawing_files import DRAWINGS

OUTSIDE = "outside the server"
REST = "other stages"
_SMALL = 0.01
"""Stages below this share of the longest bar are drawn as one."""
_LOG_FROM = 15.0
"""If the values differ by more than this factor, the scale may be logarithmic."""
HTTP = "http"
"""Prefix of the names of HTTP modes."""
LIGHT = ("#a62b00", "#c07c00", "#d6279b", "#0a3f8f", "#0a9a7a", "#7b3ff2")
DARK = ("#d9642c", "#ffe06b", "#f0459a", "#3f84ff", "#98f5e1", "#b9a4ff")
_PLOT_STYLE = """
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.mark{fill:var(--mode)}.band{fill:var(--mode);opacity:.16}
.line{fill:none;stroke:var(--mode);stroke-width:2;stroke-linejoin:round}
"""
_FAMILY = 3
_DASHES = ("7 3", "2 3", "1 4", None, "10 3 2 3", "5 2 1 2 1 2")
"""By colour: the first mode that is not HTTP has a solid line."""
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "bar")
REPORT = Path(__file__).with_name("report.js")
_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./([a-z_]+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.M)


# --- Colours, dashes and markers -------------------------------------------------------------------


class Style(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line style of a mode."""

    css: str
    """Class that sets the colour."""
    mark: str
    dash: str | None = None
    """None for a solid line."""


def styles(modes: Sequence[ModeDescription]) -> dict[str, Style]:
    """Styles by mode name. The same modes in the same order have the same styles in every report."""
    found: dict[str, Style] = {}
    used = [0, 0]
    for index, mode in enumerate(modes):
        family = 0 if mode.name.startswith(HTTP) else 1
        colour = family * _FAMILY + used[family] % _FAMILY
        used[family] += 1
        found[mode.name] = Style(css=f"m{colour}", dash=_DASHES[colour], mark=_MARKS[index % len(_MARKS)])
    return found


def css() -> str:
    """Colours of page and modes, light and dark, and the style of plots. Print is always light."""
    light, dark = _variables(LIGHT), _variables(DARK)
    classes = "".join(f".m{index}{{--mode:var(--m{index})}}" for index in range(len(LIGHT)))
    schemes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{colours()}{schemes}{classes}{_PLOT_STYLE}"


def _variables(modes: tuple[str, ...]) -> str:
    return "".join(f"--m{index}:{colour};" for index, colour in enumerate(modes))


# --- Charts ----------------------------------------------------------------------------------------


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


# --- Scripts and stylesheets -----------------------------------------------------------------------


def script(entry: Path) -> str:
    """A module and all that it imports as one without imports. Modules are looked up beside the entry, here,
    and among those that the live page draws with."""
    joined: dict[str, str] = {}
    body = _without_imports(entry, (entry.parent, Path(__file__).parent, DRAWINGS), joined)
    return "\n".join([*joined.values(), f"{{\n{body}}}"])


def still(entry: Path, data: dict[str, Any]) -> str:
    """What the function ``draw`` that a module defines makes of the data, without a browser. Raises
    ``ImportError`` without the extra ``svg``."""
    import quickjs

    engine = quickjs.Context()
    engine.eval(script(entry))
    engine.set("data", msgspec.json.encode(data).decode())
    # As JSON, because the engine cannot hand out strings that it has kept in pieces.
    drawn: str = engine.eval("JSON.stringify(draw(JSON.parse(data)))")
    return msgspec.json.decode(drawn, type=str)


def colours() -> str:
    """The stylesheet with the colours of pages and drawings."""
    return _stylesheet("colours.css")


def stage_colours() -> str:
    """The stylesheet with the colours of stages."""
    return _stylesheet("stages.css")


def _stylesheet(name: str) -> str:
    """A stylesheet without its comments."""
    return re.sub(r"/\*.*?\*/\s*", "", (DRAWINGS / name).read_text(encoding="utf-8"), flags=re.S)


def _without_imports(path: Path, folders: tuple[Path, ...], joined: dict[str, str]) -> str:
    """The code of a module, with what it imports taken from those that are joined before it."""
    text = path.read_text(encoding="utf-8")
    for _, name in _IMPORT.findall(text):
        if name not in joined:
            found = next(folder for folder in folders if (folder / f"{name}.js").is_file())
            body = _without_imports(found / f"{name}.js", folders, joined)
            exported = ", ".join(name for _, name in _EXPORT.findall(body))
            body = _EXPORT.sub(r"\1", body)
            joined[name] = f"const of_{name} = (() => {{\n{body}return {{ {exported} }};\n}})();"
    return _IMPORT.sub(r"const {\1} = of_\2;\n", text)
