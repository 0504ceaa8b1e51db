"""The report: what a record says is told as it is, drawn whole, and cannot become markup."""

import itertools
import math
import re
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from slipring.bench.report import html, scales, svg, table, units
from slipring.bench.report.markup import Markup, tag
from slipring.bench.report.palette import DARK, LIGHT, luminance, styles
from slipring.bench.report.svg import spaced
from slipring.bench.report.verdict import NO_DIFFERENCE, TOO_FEW, amount, range_of, verdict
from slipring.bench.results import Checked, Endpoint, Loop, Mode, Record, Turn, read, write
from slipring.bench.statistics import compare, cumulative, summarise
from tests.bench.records import CODING, MODES, RECORDS, SHORT, record

SVG = "{http://www.w3.org/2000/svg}"
NAMES = tuple(RECORDS)


def page(made: Record) -> ET.Element:
    """Parsed as XML, which is stricter than what browsers do."""
    return ET.fromstring(html.render(made).removeprefix("<!DOCTYPE html>"))


def text(element: ET.Element) -> str:
    return "".join(element.itertext())


def terminal(made: Record, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width).print(table.render(made))
    return out.getvalue()


def plots(section: ET.Element) -> dict[str, ET.Element]:
    found = {figure.get("class", ""): figure.find("svg") for figure in section.iter("figure")}
    return {kind: drawing for kind, drawing in found.items() if drawing is not None}


def sections(parsed: ET.Element) -> list[ET.Element]:
    return [section for section in parsed.iter("section") if section.get("class") == "workload"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole_by_itself(name: str) -> None:
    made = RECORDS[name]()
    markup, parsed = html.render(made), page(made)
    for element in parsed.iter():
        assert element.tag not in ("script", "link", "img", "iframe", "object", "embed")
        assert "src" not in element.attrib
        assert element.get("href", "#").startswith("#")
        assert not [key for key in element.attrib if key.startswith("on")]
    style = text(next(parsed.iter("style")))
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"\b(nan|NaN|None|inf|null|undefined)\b", markup)
    ids = [element.get("id") for element in parsed.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_whole_by_itself(name: str, tmp_path: Path) -> None:
    made = RECORDS[name]()
    svg.write(made, tmp_path / "figure.svg")
    written = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    parsed = ET.fromstring(written)
    assert parsed.tag == f"{SVG}svg"
    assert (parsed.get("width"), parsed.get("height")) == ("880", "360")
    assert "prefers-color-scheme" in written
    assert "href" not in written
    assert "url(" not in written
    assert not list(parsed.iter(f"{SVG}script"))
    assert not re.search(r"\b(nan|None|inf)\b", written)


@pytest.mark.parametrize("name", NAMES)
def test_every_plot_has_every_turn(name: str) -> None:
    made = RECORDS[name]()
    summaries = summarise(made)
    for workload, section in zip(made.workloads, sections(page(made)), strict=True):
        right = [each for each in summaries if each.workload == workload.name and each.wall_ms is not None]
        drawn = plots(section)
        kinds = {"turns", "loop", "sent"} | ({"stages"} if any(one.stages_ms for one in right) else set())
        assert set(drawn) == (kinds if right else set())
        for kind, drawing in drawn.items():
            assert text(next(drawing.iter("title")))
            assert text(next(drawing.iter("desc")))
            if kind == "stages":
                continue
            strips = [group for group in drawing.iter("g") if group.get("class") == "turn"]
            assert len(strips) == workload.turns
            lines = [path for path in drawing.iter("path") if (path.get("class") or "").startswith("line")]
            assert [len(re.findall("[ML]", path.get("d", ""))) for path in lines] == [workload.turns] * len(
                right
            )
            marks = [path for path in drawing.iter("path") if (path.get("class") or "").startswith("mark")]
            assert len(marks) == len(right)


@pytest.mark.parametrize("name", ["all", "bare", "one_mode", "one_repeat", "wrong"])
def test_the_table_has_the_figures_of_the_summaries(name: str) -> None:
    made = RECORDS[name]()
    summaries = summarise(made)
    for workload, section in zip(made.workloads, sections(page(made)), strict=True):
        rows = next(section.iter("tbody")).findall("tr")
        here = [each for each in summaries if each.workload == workload.name]
        for summary, row in zip(here, rows, strict=True):
            cells = {cell.get("data-label"): text(cell) for cell in row.findall("td")}
            if summary.wall_ms is None:
                assert row.get("class") == "wrong"
                assert set(cells) == {None}
                assert summary.wrongs[0] in text(row)
                assert " ms" not in text(row).replace(units.SPACE, " ")
                continue
            assert summary.wall_ms is not None
            assert summary.turn_ms is not None
            assert cells["Loop"].startswith(units.duration(summary.wall_ms.median))
            assert cells["Turn"] == (
                f"{units.duration(summary.turn_ms.median)}p95 {units.duration(summary.turn_ms.p95)}"
            )
            assert cells["Sent"] == (
                f"{units.size(summary.sent_bytes)}{units.size(summary.received_bytes)} received"
            )
            for label, figures in (
                ("To created", summary.created_ms),
                ("To first token", summary.first_token_ms),
            ):
                told = "–" if figures is None else units.duration(figures.median)
                assert cells[label].startswith(told)
            assert cells["Server CPU"] == (
                "–" if summary.cpu_ms is None else units.duration(summary.cpu_ms.median)
            )
            assert cells["Cached"] == (
                "–" if summary.cached_share is None else units.percent(summary.cached_share)
            )


def test_texts_cannot_become_markup() -> None:
    parsed = page(RECORDS["hostile"]())
    assert not list(parsed.iter("script"))
    assert not list(parsed.iter("b"))
    assert text(parsed).count("<script>alert(1)</script>") > 50
    assert tag("p", "<i>", title='"><i>') == '<p title="&quot;&gt;&lt;i&gt;">&lt;i&gt;</p>'
    assert tag("p", Markup("<i></i>"), hidden=True, lang=None) == '<p hidden="hidden"><i></i></p>'
    with pytest.raises(ValueError, match="cannot be drawn"):
        tag("rect", x=float("nan"))


def test_what_was_measured_on_what_is_said() -> None:
    said = text(page(RECORDS["all"]()))
    assert "simulated at 100 tokens per second" in said
    assert "No model was run: tokens come at 100 per second" in said
    for part in ("Intel(R) Xeon(R) Processor, 2 cores", "aiohttp 3.14.5", "2026-11-15, 12:00 UTC"):
        assert part in said
    unlimited = record([CODING], MODES[:1], repeats=1)
    unlimited.endpoint.tokens_per_s = 0
    assert "tokens come as fast as they can be sent" in text(page(unlimited))
    assert "simulated, at unlimited speed" in svg.render(unlimited)
    real = text(page(RECORDS["bare"]()))
    assert "https://models.example/v1" in real
    assert "imulated" not in real


def test_modes_that_were_skipped_or_not_run_are_named() -> None:
    made = RECORDS["wrong"]()
    assert "the endpoint refused the header" in text(page(made))
    assert "rollout was not measured: the endpoint refused" in " ".join(terminal(made).split())
    made.loops = [loop for loop in made.loops if (loop.workload, loop.mode) != ("short", "http-full")]
    assert "Not run in this workload: HTTP, full history." in text(page(made))


def test_an_empty_record_is_told_as_such() -> None:
    empty = record([], [])
    assert "Nothing was measured." in text(page(empty))
    assert "Nothing was measured" in svg.render(empty)
    unrun = record([CODING], MODES, repeats=0)
    assert "No mode was run in this workload." in text(page(unrun))
    assert "No mode was run" in svg.render(unrun)


def loops(mode: str, walls: list[float]) -> list[Loop]:
    return [
        Loop(
            workload="short",
            mode=mode,
            repeat=repeat,
            wall_ms=wall,
            turns=[Turn(number=1, total_ms=wall)],
        )
        for repeat, wall in enumerate(walls)
    ]


def compared(full: list[float], socket: list[float]) -> Record:
    made = record([SHORT], [MODES[0], MODES[2]], repeats=0)
    made.loops = loops("http-full", full) + loops("websocket", socket)
    return made


@pytest.mark.parametrize(
    ("full", "socket", "figure", "said"),
    [
        ([100, 110, 120] * 2, [50, 55, 66] * 2, "50 % less time", "45–50 % over 6 repeats"),
        ([100, 110, 120] * 2, [120, 132, 180] * 2, "20 % more time", "20–50 % over 6 repeats"),
        ([100, 110, 120] * 2, [99, 111, 119] * 2, NO_DIFFERENCE, "0.9 % more to 1 % less over 6 repeats"),
        (
            [100] * 4,
            [60] * 4,
            TOO_FEW,
            "≈60.0 ms instead of 100 ms over HTTP, full history (4 repeats).",
        ),
        (
            [100],
            [60],
            TOO_FEW,
            "instead of 100 ms over HTTP, full history (one repeat). Too few",
        ),
    ],
)
def test_words_follow_the_figures(full: list[float], socket: list[float], figure: str, said: str) -> None:
    made = compared(full, socket)
    told = verdict(made, summarise(made), SHORT)
    assert told.figure.replace(units.SPACE, " ") == figure
    assert said in told.sentence.replace(units.SPACE, " ")
    assert told.figure in text(page(made))
    assert told.sentence in text(page(made))
    assert told.sentence.split(" (")[0].split()[-1] in terminal(made)


def test_what_is_wrong_is_not_compared() -> None:
    made = compared([100, 110], [50, 55])
    made.loops[0].turns[0].wrong = "no call"
    told = verdict(made, summarise(made), SHORT)
    assert "nothing to hold it against" in told.sentence
    assert "Wrong answers, so no times: HTTP, full history." in told.sentence
    made.loops[-1].turns[0].wrong = "no answer"
    assert verdict(made, summarise(made), SHORT).figure == "no figure"


def test_what_fails_at_times_is_compared_without_the_repeats_that_failed() -> None:
    made = compared([100, 110, 90, 100, 100, 100], [50, 55, 1, 50, 50, 50])
    made.loops[8].error = "turn 1: 429: Too many requests"
    told = verdict(made, summarise(made), SHORT)
    assert told.figure.replace(units.SPACE, " ") == "50 % less time"
    assert "Not all repeats ran to their end: WebSocket (failed in 1 of 6)." in told.sentence
    assert "Wrong" not in told.sentence
    for said in (" ".join(terminal(made, 120).split()), text(page(made))):
        assert "failed in 1 of 6 repeats: turn 1: 429: Too many requests" in said
    assert "5 to 6 repeats" in text(page(made))
    for loop in made.loops[6:]:
        loop.error = "turn 1: 429: Too many requests"
    assert "FAILED" in terminal(made)
    assert "WRONG" not in terminal(made)
    assert "Failed, so no times" in text(page(made))
    assert "Failed, so not shown: WebSocket" in svg.render(made)
    for loop in made.loops:
        loop.error = "gone"
    assert verdict(made, summarise(made), SHORT).sentence.startswith("No mode ran to its end.")


def test_repeats_are_compared_one_by_one_and_lanes_by_their_mean() -> None:
    slow, fast = loops("a", [100, 200]), loops("b", [80, 80]) + loops("b", [100, 120])
    found = compare(slow, fast)
    assert found is not None
    assert (found.low, found.high, found.repeats) == (pytest.approx(0.1), pytest.approx(0.5), 2)
    assert compare(slow, []) is None
    assert compare(loops("a", [0]), loops("b", [1])) is None
    assert compare(slow[:1], fast[1:2]) is None


def test_what_is_saved_lies_between_the_least_and_the_most() -> None:
    """A slow lane among fast ones: the median lane would be faster, and the mean of a repeat is not."""
    lanes = [lane for ms in (900, 900, 900, 2000) for lane in loops("websocket-lanes", [ms] * 5)]
    found = compare(loops("http-full", [1000] * 5), lanes)
    assert found is not None
    assert found.low <= found.saved <= found.high < 0
    assert amount(found).replace(units.SPACE, " ") == "18 % more"
    made = record([SHORT], [MODES[0], MODES[3]], repeats=0)
    made.loops = loops("http-full", [1000] * 5) + lanes
    lanes_summary = summarise(made)[1]
    assert lanes_summary.wall_ms is not None
    assert (lanes_summary.wall_ms.median, lanes_summary.repeats) == (1175, 5)


@pytest.mark.parametrize(("repeats", "is_clear"), [(1, False), (2, False), (4, False), (5, True)])
def test_a_difference_needs_repeats_enough(repeats: int, is_clear: bool) -> None:
    found = compare(loops("a", [100] * repeats), loops("b", [50] * repeats))
    assert found is not None
    assert found.is_clear is is_clear
    assert amount(found).startswith("≈") is not is_clear
    assert (TOO_FEW in range_of(found)) is not is_clear


def test_repeats_are_counted_and_not_taken_from_what_was_asked_for() -> None:
    made = compared([100] * 3, [50] * 2)
    made.settings.repeats = 200
    assert "2 to 3 repeats of 200 that were asked for" in text(page(made))
    assert "over 2 to 3 repeats" in svg.render(made)
    assert "200 repeats" not in svg.render(made)


def unchecked(checked: Checked | None) -> Record:
    made = compared([100] * 5, [50] * 5)
    made.modes[0] = Mode(name="http-full", title="HTTP, full history", about="", sends_history=True)
    for loop in made.loops:
        loop.history_checked = checked
    return made


def test_nothing_is_claimed_where_history_may_have_been_forgotten() -> None:
    made = unchecked("none")
    told = verdict(made, summarise(made), SHORT)
    assert "no saving is claimed" in told.sentence
    assert "less" not in told.sentence + told.title + told.figure
    assert "History was checked not at all." in told.sentence
    assert "not claimedhistory not checked" in text(page(made))
    assert "0.50×" not in terminal(made, 140)


@pytest.mark.parametrize(
    ("checked", "said"), [("digest", "by a digest"), ("tokens", "by counts of tokens"), (None, "")]
)
def test_it_is_said_how_history_was_checked(checked: Checked | None, said: str) -> None:
    made = unchecked(checked)
    told = verdict(made, summarise(made), SHORT)
    assert told.figure.replace(units.SPACE, " ") == "50 % less time"
    assert ("History was checked" in told.sentence) is (checked is not None)
    assert said in told.sentence
    wide = StringIO()
    Console(file=wide, width=140).print(table.render(made, is_wide=True))
    if checked is not None:
        assert f"history: {checked}" in text(page(made))
        assert checked in wide.getvalue()
    made.loops[-1].history_checked = "none"
    assert summarise(made)[1].history_checked == ("none" if checked else None)


def test_a_wide_terminal_has_more_columns_and_the_stages() -> None:
    wide = StringIO()
    Console(file=wide, width=140).print(table.render(record([CODING]), is_wide=True))
    shown = wide.getvalue()
    assert max(map(len, shown.splitlines())) <= 140
    assert "created" in shown
    for mode in MODES:
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{mode.name}, a turn: "))
        assert "prefill" in line


def test_texts_of_servers_cannot_move_the_cursor() -> None:
    made = RECORDS["wrong"]()
    made.skipped["rollout"] = "\x1b]0;owned\x07\x1b[2Jboo\x9b1m"
    made.loops[0].error = "\x1b[2Jbad"
    out = StringIO()
    Console(file=out, width=120, force_terminal=True).print(table.render(made))
    assert "boo" in out.getvalue()
    assert "bad" in out.getvalue()
    for escape in ("\x1b]0;", "\x1b[2J", "\x07", "\x9b"):
        assert escape not in out.getvalue()


@pytest.mark.parametrize(
    ("engine", "speed", "said", "decoding"),
    [
        ("simulated:vocabulary=x", 50, "tokens come at 50 per second", "simulated at 50 tokens per second"),
        ("simulated:ttft_ms=100", None, "more than the decoding is made up", "as simulated:ttft_ms=100 says"),
        ("llama:model=x", None, None, "by the engine"),
        (None, None, None, "not known"),
    ],
)
def test_what_is_simulated_is_said(
    engine: str | None, speed: float | None, said: str | None, decoding: str
) -> None:
    made = record([CODING], MODES[:1])
    made.endpoint = Endpoint(
        model="m", url=None if engine else "http://h/v1", engine=engine, tokens_per_s=speed
    )
    shown = text(page(made))
    assert decoding in shown
    assert ("Simulated. " in shown) is (said is not None)
    assert said is None or said in shown
    assert ("Nothing was tokenized" in shown) is (said is not None and "vocabulary" not in (engine or ""))
    assert ("no model" in svg.render(made)) is (said is not None)


def test_cumulative_times_end_with_the_whole() -> None:
    made = record([CODING], MODES[:1], repeats=3)
    found = cumulative(made.loops)
    whole = sorted(sum(turn.total_ms for turn in loop.turns) for loop in made.loops)
    assert [number for number, _ in found] == list(range(1, 27))
    assert (found[-1][1].low, found[-1][1].median, found[-1][1].high) == pytest.approx(tuple(whole))


def test_stages_and_the_rest_are_the_whole_turn() -> None:
    for summary in summarise(record([CODING])):
        assert summary.turn_ms is not None
        assert summary.outside_ms is not None
        mean = sum(ms for _, ms in summary.stages_ms) + summary.outside_ms
        assert summary.turn_ms.low < mean < summary.turn_ms.high
    assert summarise(RECORDS["bare"]())[0].outside_ms is None


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_mode(width: int) -> None:
    made = RECORDS["wrong"]()
    shown = terminal(made, width)
    for mode in made.modes:
        assert shown.count(f"\n{mode.name} ") >= 2
    assert shown.count("WRONG") == 1
    assert "websocket failed in 1 of 3 repeats: the socket was closed" in " ".join(shown.split())
    against = next(each for each in summarise(made) if (each.workload, each.mode) == ("coding", "http-full"))
    socket = next(each for each in summarise(made) if (each.workload, each.mode) == ("coding", "websocket"))
    assert against.wall_ms is not None
    assert socket.wall_ms is not None
    held = compare(made.of("coding", "http-full"), made.of("coding", "websocket"))
    assert held is not None
    row = next(line for line in shown.splitlines() if line.startswith("websocket "))
    assert f"≈{units.ratio(1 - held.saved)}" in row
    assert units.ratio(socket.sent_bytes / against.sent_bytes) in row
    assert max(map(len, shown.splitlines())) <= width


def test_texts_are_no_markup_in_the_terminal_either() -> None:
    made = RECORDS["one_mode"]()
    made.modes = [Mode(name="websocket", title="[red]x[/red]", about="")]
    assert "[red]x[/red]" in terminal(made)


def test_a_record_that_was_read_is_told_the_same(tmp_path: Path) -> None:
    made = RECORDS["wrong"]()
    write(made, tmp_path / "record.json")
    html.write(read(tmp_path / "record.json"), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html.render(made)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (units.duration(0), "0 ms"),
        (units.duration(0.0423), "0.04 ms"),
        (units.duration(9.996), "10.0 ms"),
        (units.duration(99.96), "100 ms"),
        (units.duration(999.6), "1.00 s"),
        (units.duration(59_990), "60.0 s"),
        (units.duration(754_000), "12.6 min"),
        (units.size(999), "999 B"),
        (units.size(1000), "1.00 kB"),
        (units.size(20_123_000), "20.1 MB"),
        (units.percent(0.434), "43 %"),
        (units.percent(0.004), "0.4 %"),
        (units.percent(-0.03), "−3 %"),
        (units.percent(0), "0 %"),
        (units.tokens(930), "930"),
        (units.tokens(116_000), "116k"),
        (units.ratio(0.0731), "0.073×"),
        (units.ratio(0.851), "0.85×"),
        (units.span(4100, 4400, units.duration), "4.10–4.40 s"),
        (units.span(990, 1010, units.duration), "990 ms–1.01 s"),
        (units.span(4100, 4101, units.duration), "4.10 s"),
    ],
)
def test_figures_as_people_read_them(told: str, expected: str) -> None:
    assert told.replace(units.SPACE, " ") == expected


@pytest.mark.parametrize("highest", [0, 0.003, 1, 7.2, 99, 100, 12_345.6])
def test_ticks_are_round_and_hold_every_value(highest: float) -> None:
    scale = scales.from_zero(highest, 100, 0)
    assert 2 <= len(scale.ticks) <= 7
    assert scale.ticks[0] == 0
    assert scale.ticks[-1] >= highest
    assert scale(0) == 100
    assert scale(scale.ticks[-1]) == 0


@pytest.mark.parametrize(("low", "high"), [(1, 1), (120, 4_000), (900, 110_000), (3, 9_000_000)])
def test_logarithmic_scales_hold_every_value(low: float, high: float) -> None:
    scale = scales.logarithmic(low, high, 100, 0)
    assert 100 >= scale(low) >= scale(high) >= 0
    assert 2 <= len(scale.ticks) <= 12


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2), (1, 6), (2, 6), (1, 26), (1, 100), (1, 1000)])
def test_turns_have_whole_ticks(first: int, last: int) -> None:
    scale = scales.whole(first, last, 0, 100)
    assert scale.ticks[0] == first
    assert scale.ticks[-1] <= last
    assert all(tick == int(tick) for tick in scale.ticks)
    assert len(scale.ticks) <= 8


def test_labels_keep_their_distance() -> None:
    places = spaced([10.0, 11.0, 12.0, 99.0, 100.0], 20.0, 0.0, 100.0)
    assert all(after - before >= 20 - 1e-9 for before, after in itertools.pairwise(places))
    assert min(places) >= 0
    assert max(places) <= 100


def test_modes_are_told_apart_by_colour_and_without() -> None:
    assert len({style.css for style in styles(MODES).values()}) == len(MODES)
    assert len({(style.dash, style.mark) for style in styles(MODES).values()}) == len(MODES)
    for colours, ground in ((LIGHT, "#ffffff"), (DARK, "#111418")):
        for colour in colours:
            dark, light = sorted((luminance(colour), luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) >= 3, colour


# As what a colour is seen where cones of one kind do not work, in linear RGB (Machado et al. 2009).
BLINDNESSES = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)


def seen(colour: str, blindness: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """In CIELAB, where distances are about those that people see."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    red, green, blue = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in blindness)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_colours_are_told_apart_with_any_colour_vision(colours: tuple[str, ...]) -> None:
    for blindness in BLINDNESSES:
        for one, other in itertools.combinations(colours, 2):
            distance = math.dist(seen(one, blindness), seen(other, blindness))
            assert distance > 12, (one, other)


def test_bars_have_the_figures_of_the_summaries() -> None:
    made = record([CODING])
    titles = [text(title) for title in plots(sections(page(made))[0])["stages"].iter("title")]
    for summary, mode in zip(summarise(made), made.modes, strict=True):
        told = dict(summary.stages_ms)
        assert f"{mode.title}, generate: {units.duration(told['generate'])}" in titles
        assert f"{mode.title}, prefill: {units.duration(told['prefill'])}" in titles
    details = next(sections(page(made))[0].iter("details"))
    for row in details.iter("tr"):
        if text(row.findall("th")[0]) in ("decode", "terminal"):
            spent = [dict(each.stages_ms)[text(row.findall("th")[0])] for each in summarise(made)]
            assert [text(cell) for cell in row.findall("td")] == [units.duration(ms) for ms in spent]
