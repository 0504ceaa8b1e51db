"""A record as one self-contained HTML page, which loads nothing and runs only its own script."""

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from slipring.commands.bench.report import units
from slipring.commands.bench.report.charts import (
    REPORT,
    DrawnMode,
    charts,
    context_tokens,
    css,
    drawn_modes,
    figure,
    script,
    spread_text,
    stage_colours,
    stage_table,
    styles,
)
from slipring.commands.bench.report.conditions import busy_warning, conditions, repeats, simulation, subject
from slipring.commands.bench.report.markup import Markup, join, tag
from slipring.commands.bench.report.replay_comparison import NOTE, TITLE, replay_table
from slipring.commands.bench.report.verdict import (
    ENOUGH,
    NO_DIFFERENCE,
    amount,
    baseline_note,
    baseline_of,
    compare_with,
    failures,
    is_unverified,
    range_of,
    verdict,
)
from slipring.commands.bench.results import BenchRecord, Workload
from slipring.commands.bench.statistics import Spread, Summary, by_turn, summarise

_STYLE = Path(__file__).with_name("page.css")
_MOST_FAULTS = 5
_NONE = "–"
_NO_SCRIPT = (
    "The charts are missing: a script draws them, and it was not run. Their figures are in the tables."
)


def write(record: BenchRecord, path: Path) -> None:
    path.write_text(render(record), encoding="utf-8")


def render(record: BenchRecord) -> str:
    summaries = summarise(record)
    title = f"slipring bench: {record.endpoint.model}, {record.when[:10]}"
    style = css() + stage_colours() + _STYLE.read_text(encoding="utf-8")
    # Read as HTML, the first and the last line are comments of the script; as XML they let it contain "<".
    code = f"//<![CDATA[\n{script(REPORT)}\n//]]>"
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(code)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    sections = [
        _workload(record, summaries, workload, f"w{index}") for index, workload in enumerate(record.workloads)
    ]
    body = tag(
        "body",
        _header(record),
        tag("noscript", tag("p", _NO_SCRIPT, class_="notice")),
        tag(
            "main", _results(record, summaries), *sections, _skipped(record), _conditions(record), _reading()
        ),
        tag("script", Markup(code), type="module"),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _digest(content: str) -> str:
    """The source of a policy that allows an element with this content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _header(record: BenchRecord) -> Markup:
    simulated = simulation(record.endpoint)
    busy = busy_warning(record.others_cores, record.machine)
    return tag(
        "header",
        tag("p", "slipring bench", class_="kicker"),
        tag("h1", "Where an agent loop’s time goes"),
        tag("p", subject(record)),
        tag("p", tag("strong", "Simulated. "), simulated, class_="notice") if simulated else Markup(),
        tag("p", tag("strong", "Busy machine. "), busy, class_="notice") if busy else Markup(),
    )


def _results(record: BenchRecord, summaries: Sequence[Summary]) -> Markup:
    """One headline for each workload."""
    if not record.workloads:
        return tag("p", "Nothing was measured.")
    cards = []
    for index, workload in enumerate(record.workloads):
        result = verdict(record, summaries, workload)
        cards.append(
            tag(
                "li",
                tag("h3", tag("a", workload.title, href=f"#w{index}")),
                tag("p", result.figure, class_="headline"),
                tag("p", result.sentence),
            )
        )
    return tag("section", tag("h2", "In short"), tag("ul", *cards, class_="cards"))


def _workload(record: BenchRecord, summaries: Sequence[Summary], workload: Workload, key: str) -> Markup:
    here = [summary for summary in summaries if summary.workload == workload.name]
    modes = drawn_modes(record, summaries, workload)
    plots = tag("div", *map(figure, charts(workload, modes, key)), class_="plots") if modes else Markup()
    return tag(
        "section",
        tag("h2", workload.title),
        tag("p", f"{workload.about}."),
        _modes(record, here, workload) if here else tag("p", "No mode was run in this workload."),
        plots,
        _replay(record, here, workload),
        _details(modes) if modes else Markup(),
        id=key,
        class_="workload",
    )


def _replay(record: BenchRecord, here: Sequence[Summary], workload: Workload) -> Markup:
    """The comparison with a recording, if the workload is one."""
    compared = replay_table(record, here, workload)
    if compared is None:
        return Markup()
    titles = {mode.name: mode.title for mode in record.modes}
    names = [titles.get(name, name) for name in compared.columns]
    shown = _plain_table(TITLE, names, (*compared.rows, compared.total))
    return join(shown, tag("p", f"{NOTE}.", class_="note"))


_COLUMNS = (
    ("Mode", ""),
    ("Loop", "median"),
    ("Loop, compared", "with the baseline"),
    ("Turn", "median"),
    ("To created", "median"),
    ("To first token", "median"),
    ("Sent", "per loop"),
    ("Server CPU", "per turn"),
    ("Output tokens", "per loop"),
    ("Cached", "of input"),
)
_CLASSES = {"Loop": "main", "Loop, compared": "words"}


def _modes(record: BenchRecord, here: Sequence[Summary], workload: Workload) -> Markup:
    baseline = baseline_of(here, workload)
    style, titles = styles(record.modes), {mode.name: mode for mode in record.modes}
    names = (tag("th", name, *_small(below), scope="col", role="columnheader") for name, below in _COLUMNS)
    head, rows = tag("tr", *names, role="row"), []
    for summary in here:
        mode = titles[summary.mode]
        how = f"{mode.name}; history: {summary.history_checked}" if summary.history_checked else mode.name
        sign = tag("span", class_="sign", data_style=msgspec.json.encode(style[summary.mode]).decode())
        heading = (sign, mode.title, *_small(how))
        name = tag("th", *heading, scope="row", role="rowheader", title=mode.about)
        has_times = summary.wall_ms is not None
        cells = _figures(record, summary, baseline) if has_times else _reasons(summary)
        rows.append(tag("tr", name, *cells, role="row", class_=None if has_times else "wrong"))
    note = baseline_note(record, baseline)
    caption = f"{workload.title}: the modes, over {repeats(record, here)}; {note}"
    missing = [mode.title for mode in record.modes if mode.name not in {one.mode for one in here}]
    not_run = (
        tag("p", f"Not run in this workload: {'; '.join(missing)}.", class_="note") if missing else Markup()
    )
    failed = [
        tag("p", f"{titles[one.mode].title} {failures(one)} repeats: {one.errors[0]}", class_="note")
        for one in here
        if one.errors and one.wall_ms is not None
    ]
    return join(_scrolled(caption, head, rows, css="modes"), not_run, *failed)


def _reasons(summary: Summary) -> list[Markup]:
    """The faults or errors of a mode without times, in place of its figures."""
    times = Counter(summary.faults or summary.errors)
    listed = [
        tag("li", reason if count == 1 else f"{reason} ({count} times)")
        for reason, count in list(times.items())[:_MOST_FAULTS]
    ]
    if (more := len(times) - _MOST_FAULTS) > 0:
        listed.append(tag("li", f"and {more} more"))
    heading = tag("strong", "Wrong answers, so no times" if summary.faults else "Failed, so no times")
    cell = tag("div", heading, tag("ul", *listed))
    return [tag("td", cell, role="cell", colspan=str(len(_COLUMNS) - 1))]


def _figures(record: BenchRecord, summary: Summary, baseline: Summary | None) -> list[Markup]:
    assert summary.wall_ms is not None
    wall = summary.wall_ms
    compared = compare_with(record, summary, baseline)
    if compared is not None:
        comparison = (amount(compared), range_of(compared))
    elif summary is not baseline and is_unverified(record, summary):
        comparison = ("not claimed", "history not verified")
    else:
        comparison = ("baseline" if summary is baseline else _NONE, "")
    columns = [
        (
            units.duration(wall.median),
            units.span(wall.low, wall.high, units.duration) if wall.count > 1 else "",
        ),
        comparison,
        _typical(summary.turn_ms),
        _typical(summary.created_ms),
        _typical(summary.first_token_ms),
        (units.size(summary.sent_bytes), f"{units.size(summary.received_bytes)} received"),
        (_NONE if summary.cpu_ms is None else units.duration(summary.cpu_ms.median), ""),
        (_NONE if summary.output_tokens is None else f"{summary.output_tokens:,.0f}", ""),
        (_NONE if summary.cached_share is None else units.percent(summary.cached_share), ""),
    ]
    return [
        tag(
            "td", tag("span", figure), *_small(below), role="cell", data_label=name, class_=_CLASSES.get(name)
        )
        for (figure, below), (name, _) in zip(columns, _COLUMNS[1:], strict=True)
    ]


def _typical(figures: Spread | None) -> tuple[str, str]:
    if figures is None:
        return _NONE, ""
    return units.duration(figures.median), f"p95 {units.duration(figures.p95)}"


def _small(content: str) -> list[Markup]:
    return [tag("small", content)] if content else []


def _details(modes: Sequence[DrawnMode]) -> Markup:
    """Every figure of the charts as tables."""
    tables = [
        _by_turn("Time of each turn", modes, "total_ms", units.duration),
        _by_turn("Bytes sent in each turn", modes, "sent_bytes", units.size),
    ]
    rows = [
        [name, *(_NONE if ms is None else units.duration(ms) for ms in spent)]
        for name, spent in stage_table(modes)
    ]
    if rows:
        names = ["Stage", *(mode.title for mode in modes)]
        tables.append(_plain_table("Server stages, mean per turn", names, rows))
    return tag("details", tag("summary", "All figures by turn and by stage"), *tables)


def _by_turn(caption: str, modes: Sequence[DrawnMode], of: str, format: Callable[[float], str]) -> Markup:
    context = context_tokens(modes)
    figures = [dict(by_turn(mode.loops, of)) for mode in modes]
    rows = []
    for turn in sorted({turn for each in figures for turn in each}):
        tokens = f"{context[turn]:,.0f}{units.SPACE}tokens" if context.get(turn) else _NONE
        cells = [spread_text(each[turn], format) if turn in each else _NONE for each in figures]
        rows.append([str(turn), tokens, *cells])
    return _plain_table(caption, ["Turn", "Context", *(mode.title for mode in modes)], rows)


def _plain_table(caption: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table of texts; the first cell of each row is its heading."""
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    body = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    return _scrolled(caption, head, body)


def _scrolled(caption: str, head: Markup, rows: Sequence[Markup], css: str = "scroll") -> Markup:
    """A table in a box that scrolls by itself if the table is too wide for the page."""
    groups = tag("thead", head, role="rowgroup"), tag("tbody", *rows, role="rowgroup")
    table = tag("table", tag("caption", caption), *groups, role="table")
    return tag("div", table, class_=css, role="region", aria_label=caption, tabindex="0")


def _skipped(record: BenchRecord) -> Markup:
    if not record.skipped:
        return Markup()
    parts = [join(tag("dt", mode), tag("dd", why)) for mode, why in record.skipped.items()]
    return tag("section", tag("h2", "Not measured"), tag("dl", *parts))


def _conditions(record: BenchRecord) -> Markup:
    parts = [join(tag("dt", name), tag("dd", value)) for name, value in conditions(record)]
    modes = [join(tag("dt", f"{mode.title} ({mode.name})"), tag("dd", mode.about)) for mode in record.modes]
    return tag(
        "section",
        tag("h2", "What was measured, and on what"),
        tag("dl", *parts),
        *([tag("h3", "Modes"), tag("dl", *modes)] if modes else []),
    )


def _reading() -> Markup:
    lines = (
        "Times are measured by the client, from encoding a request to its terminal event; over HTTP to the"
        " end of the body. A loop’s time is the sum of its turns, without the time of tools.",
        "Every repeat runs all modes, one after the other. Percentages follow from the medians that are"
        " shown; the range is that of the repeats. A difference is claimed only if all repeats agree on which"
        f" mode is faster and there are at least {ENOUGH}. Otherwise there is {NO_DIFFERENCE}, or there are"
        " too few repeats (≈).",
        "95 % of turns do not exceed p95. A mode with a wrong answer has no times. If some repeats of a mode"
        " failed, its figures cover the others.",
        "History: how the bench verified that the server read the whole conversation. If it could not,"
        " nothing is claimed for modes that do not send the conversation, because losing it is fast.",
        "1 kB is 1000 bytes. Bytes are those of the payload: frames, or bodies with their headers.",
    )
    return tag("section", tag("h2", "How to read this"), tag("ul", *(tag("li", line) for line in lines)))
