"""A record as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from slipring.bench.report import units
from slipring.bench.report.charts import Drawn, charts, drawn, figure, history, stage_table, tell_spread
from slipring.bench.report.conditions import conditions, repeats, simulation, subject
from slipring.bench.report.markup import Markup, join, tag
from slipring.bench.report.palette import DARK, LIGHT, styles
from slipring.bench.report.plots import swatch
from slipring.bench.report.verdict import (
    MEASURE,
    NO_DIFFERENCE,
    amount,
    failures,
    held_against,
    is_doubtful,
    measure,
    range_of,
    verdict,
)
from slipring.bench.results import Record, Workload
from slipring.bench.statistics import ENOUGH, Spread, Summary, by_turn, summarise

_STYLE = Path(__file__).with_name("page.css")
_MOST_WRONGS = 5
_NONE = "–"


def write(record: Record, path: Path) -> None:
    path.write_text(render(record), encoding="utf-8")


def render(record: Record) -> str:
    summaries = summarise(record)
    title = f"slipring bench: {record.endpoint.model}, {record.when[:10]}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_colours() + _STYLE.read_text(encoding="utf-8"))),
    )
    sections = [
        _workload(record, summaries, workload, f"w{index}") for index, workload in enumerate(record.workloads)
    ]
    body = tag(
        "body",
        _header(record),
        tag(
            "main", _results(record, summaries), *sections, _skipped(record), _conditions(record), _reading()
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _colours() -> str:
    """The classes that give modes their colours, light and dark."""
    light = "".join(f"--m{index}:{colour};" for index, colour in enumerate(LIGHT))
    dark = "".join(f"--m{index}:{colour};" for index, colour in enumerate(DARK))
    classes = "".join(f".m{index}{{--mode:var(--m{index})}}" for index in range(len(LIGHT)))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{@media screen{{:root{{{dark}}}}}}}{classes}"


def _header(record: Record) -> Markup:
    said = simulation(record)
    return tag(
        "header",
        tag("p", "slipring bench", class_="kicker"),
        tag("h1", "Where an agent loop’s time goes"),
        tag("p", subject(record)),
        tag("p", tag("strong", "Simulated. "), said, class_="notice") if said else Markup(),
    )


def _results(record: Record, summaries: Sequence[Summary]) -> Markup:
    """One headline for each workload."""
    if not record.workloads:
        return tag("p", "Nothing was measured.")
    cards = []
    for index, workload in enumerate(record.workloads):
        told = verdict(record, summaries, workload)
        cards.append(
            tag(
                "li",
                tag("h3", tag("a", workload.title, href=f"#w{index}")),
                tag("p", told.figure, class_="headline"),
                tag("p", told.sentence),
            )
        )
    return tag("section", tag("h2", "In short"), tag("ul", *cards, class_="cards"))


def _workload(record: Record, summaries: Sequence[Summary], workload: Workload, key: str) -> Markup:
    here = [summary for summary in summaries if summary.workload == workload.name]
    modes = drawn(record, summaries, workload)
    plots = tag("div", *map(figure, charts(workload, modes, key)), class_="plots") if modes else Markup()
    return tag(
        "section",
        tag("h2", workload.title),
        tag("p", f"{workload.about}."),
        _modes(record, here, workload) if here else tag("p", "No mode was run in this workload."),
        plots,
        _details(modes) if modes else Markup(),
        id=key,
        class_="workload",
    )


_COLUMNS = (
    ("Mode", ""),
    ("Loop", "median"),
    (f"Against {MEASURE}", "wall time"),
    ("Turn", "median"),
    ("To created", "median"),
    ("To first token", "median"),
    ("Sent", "per loop"),
    ("Server CPU", "per turn"),
    ("Cached", "of input"),
)
_CLASSES = {"Loop": "main", f"Against {MEASURE}": "words"}


def _modes(record: Record, here: Sequence[Summary], workload: Workload) -> Markup:
    against = measure(here, workload)
    style, titles = styles(record.modes), {mode.name: mode for mode in record.modes}
    names = (tag("th", name, *_small(below), scope="col", role="columnheader") for name, below in _COLUMNS)
    head, rows = tag("tr", *names, role="row"), []
    for summary in here:
        mode = titles[summary.mode]
        how = f"{mode.name}; history: {summary.history_checked}" if summary.history_checked else mode.name
        said = (swatch(style[summary.mode]), mode.title, *_small(how))
        name = tag("th", *said, scope="row", role="rowheader", title=mode.about)
        is_told = summary.wall_ms is not None
        cells = _figures(record, summary, against) if is_told else _complaints(summary)
        rows.append(tag("tr", name, *cells, role="row", class_=None if is_told else "wrong"))
    caption = f"{workload.title}: the modes, over {repeats(record, here)}"
    missing = [mode.title for mode in record.modes if mode.name not in {one.mode for one in here}]
    note = (
        tag("p", f"Not run in this workload: {'; '.join(missing)}.", class_="note") if missing else Markup()
    )
    failed = [
        tag("p", f"{titles[one.mode].title} {failures(one)} repeats: {one.errors[0]}", class_="note")
        for one in here
        if one.errors and one.wall_ms is not None
    ]
    return join(_scrolled(caption, head, rows, css="modes"), note, *failed)


def _complaints(summary: Summary) -> list[Markup]:
    """What was wrong, or has failed, where the times would be."""
    times = Counter(summary.wrongs or summary.errors)
    listed = [
        tag("li", wrong if count == 1 else f"{wrong} ({count} times)")
        for wrong, count in list(times.items())[:_MOST_WRONGS]
    ]
    if (more := len(times) - _MOST_WRONGS) > 0:
        listed.append(tag("li", f"and {more} more"))
    said = tag("strong", "Wrong answers, so no times" if summary.wrongs else "Failed, so no times")
    told = tag("div", said, tag("ul", *listed))
    return [tag("td", told, role="cell", colspan=str(len(_COLUMNS) - 1))]


def _figures(record: Record, summary: Summary, against: Summary | None) -> list[Markup]:
    assert summary.wall_ms is not None
    wall = summary.wall_ms
    compared = held_against(record, summary, against)
    if compared is not None:
        held = (amount(compared), range_of(compared))
    elif summary is not against and is_doubtful(record, summary):
        held = ("not claimed", "history not checked")
    else:
        held = (_NONE, "the measure" if summary is against else "")
    told = [
        (
            units.duration(wall.median),
            units.span(wall.low, wall.high, units.duration) if wall.count > 1 else "",
        ),
        held,
        _typical(summary.turn_ms),
        _typical(summary.created_ms),
        _typical(summary.first_token_ms),
        (units.size(summary.sent_bytes), f"{units.size(summary.received_bytes)} received"),
        (_NONE if summary.cpu_ms is None else units.duration(summary.cpu_ms.median), ""),
        (_NONE if summary.cached_share is None else units.percent(summary.cached_share), ""),
    ]
    return [
        tag(
            "td", tag("span", figure), *_small(below), role="cell", data_label=name, class_=_CLASSES.get(name)
        )
        for (figure, below), (name, _) in zip(told, _COLUMNS[1:], strict=True)
    ]


def _typical(figures: Spread | None) -> tuple[str, str]:
    if figures is None:
        return _NONE, ""
    return units.duration(figures.median), f"p95 {units.duration(figures.p95)}"


def _small(content: str) -> list[Markup]:
    return [tag("small", content)] if content else []


def _details(modes: Sequence[Drawn]) -> Markup:
    """Every figure that is drawn, for those who want to read it."""
    head = tag("tr", *(tag("th", name, scope="col") for name in ("Stage", *(mode.title for mode in modes))))
    tables = [
        _by_turn("Time of each turn", modes, "total_ms", units.duration),
        _by_turn("Bytes sent in each turn", modes, "sent_bytes", units.size),
    ]
    rows = []
    for name, spent in stage_table(modes):
        cells = [tag("td", _NONE if ms is None else units.duration(ms)) for ms in spent]
        rows.append(tag("tr", tag("th", name, scope="row"), *cells))
    if rows:
        tables.append(_scrolled("Server stages, mean per turn", head, rows))
    return tag("details", tag("summary", "All figures by turn and by stage"), *tables)


def _by_turn(caption: str, modes: Sequence[Drawn], of: str, tell: Callable[[float], str]) -> Markup:
    context = history(modes)
    figures = [dict(by_turn(mode.loops, of)) for mode in modes]
    names = ("Turn", "Context", *(mode.title for mode in modes))
    rows = []
    for turn in sorted({turn for each in figures for turn in each}):
        tokens = f"{context[turn]:,.0f}{units.SPACE}tokens" if context.get(turn) else _NONE
        cells = [tell_spread(each[turn], tell) if turn in each else _NONE for each in figures]
        rows.append(
            tag("tr", tag("th", str(turn), scope="row"), *(tag("td", cell) for cell in (tokens, *cells)))
        )
    return _scrolled(caption, tag("tr", *(tag("th", name, scope="col") for name in names)), rows)


def _scrolled(caption: str, head: Markup, rows: Sequence[Markup], css: str = "scroll") -> Markup:
    """A table in a box of its own: where it is too wide, the box scrolls and the page does not."""
    groups = tag("thead", head, role="rowgroup"), tag("tbody", *rows, role="rowgroup")
    table = tag("table", tag("caption", caption), *groups, role="table")
    return tag("div", table, class_=css, role="region", aria_label=caption, tabindex="0")


def _skipped(record: Record) -> Markup:
    if not record.skipped:
        return Markup()
    parts = [join(tag("dt", mode), tag("dd", why)) for mode, why in record.skipped.items()]
    return tag("section", tag("h2", "Not measured"), tag("dl", *parts))


def _conditions(record: Record) -> Markup:
    parts = [join(tag("dt", name), tag("dd", told)) for name, told in conditions(record)]
    modes = [join(tag("dt", f"{mode.title} ({mode.name})"), tag("dd", mode.about)) for mode in record.modes]
    return tag(
        "section",
        tag("h2", "What was measured, and on what"),
        tag("dl", *parts),
        *([tag("h3", "Modes"), tag("dl", *modes)] if modes else []),
    )


def _reading() -> Markup:
    lines = (
        "Times are the client’s: from sending a request to its terminal event, over HTTP to the end of the"
        " body. A loop’s time is without the time that tools were said to take.",
        "Every mode is run once in each repeat, one after the other. Two modes are compared repeat by repeat."
        f" Only if all agree on which is faster, and there are at least {ENOUGH}, is a difference named;"
        f" otherwise there is {NO_DIFFERENCE}, or they are too few (≈).",
        "p95 is the figure that 95 % of turns do not exceed. A mode with a wrong answer has no times; of one"
        " that fails at times, figures are of the repeats that ran to their end.",
        "History says how it was checked that the whole conversation was read. Where it was not, nothing is"
        " claimed for modes that do not send it: forgetting is fast.",
        "1 kB is 1000 bytes. Bytes are those of the payload: frames, or bodies with their headers.",
    )
    return tag("section", tag("h2", "How to read this"), tag("ul", *(tag("li", line) for line in lines)))
