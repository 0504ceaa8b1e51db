"""The HTML page."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from slipring.commands.bench.report import figure, html, terminal, units
from slipring.commands.bench.report.markup import Markup, tag
from slipring.commands.bench.report.verdict import verdict
from slipring.commands.bench.results import Checked, Endpoint, read, write
from slipring.commands.bench.statistics import summarise
from tests.commands.bench.records import CODING, MODES, RECORDS, SHORT, checked_by, compared, record
from tests.commands.bench.report.pages import NAMES, page, plots, printed, scripted, sections, text


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_self_contained(name: str) -> None:
    made = RECORDS[name]()
    markup, parsed = html.render(made), page(made)
    for element in parsed.iter():
        assert element.tag not in ("link", "img", "iframe", "object", "embed")
        assert element.tag != "script" or element.get("type") in ("module", "application/json")
        assert "src" not in element.attrib
        assert element.get("href", "#").startswith("#")
        assert not [key for key in element.attrib if key.startswith("on") or key == "style"]
    style = text(next(parsed.iter("style")))
    assert "url(" not in style
    assert "@import" not in style
    (script,) = [element for element in parsed.iter("script") if element.get("type") == "module"]
    assert not re.search(r"^(import|export)\b", text(script), re.M)
    shown = re.sub(r"<script type=\"module\">.*</script>", "", markup, flags=re.S)
    assert not re.search(r"\b(nan|NaN|None|inf|null|undefined)\b", shown)
    ids = [element.get("id") for element in parsed.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_has_every_turn(name: str) -> None:
    made = RECORDS[name]()
    summaries = summarise(made)
    for workload, section in zip(made.workloads, sections(page(made)), strict=True):
        right = [each for each in summaries if each.workload == workload.name and each.wall_ms is not None]
        drawn = plots(section)
        assert set(drawn) == ({"turns", "loop", "sent"} if right else set())
        has_stages = any(one.stages_ms for one in right)
        assert set(scripted(section)) - {f"lines {kind}" for kind in drawn} == (
            {"stages", "timeline"} if has_stages else set()
        )
        for drawing in drawn.values():
            assert text(next(drawing.iter("title")))
            assert text(next(drawing.iter("desc")))
            strips = [group for group in drawing.iter("g") if group.get("class") == "turn"]
            assert len(strips) == workload.turns
            lines = [path for path in drawing.iter("path") if (path.get("class") or "").startswith("line")]
            assert [len(re.findall("[ML]", path.get("d", ""))) for path in lines] == [workload.turns] * len(
                right
            )
            marks = [path for path in drawing.iter("path") if (path.get("class") or "").startswith("mark")]
            assert len(marks) == len(right)


@pytest.mark.parametrize("name", ["all", "bare", "one_mode", "one_repeat", "wrong"])
def test_the_table_shows_the_summaries(name: str) -> None:
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
                assert summary.faults[0] in text(row)
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
                median = "–" if figures is None else units.duration(figures.median)
                assert cells[label].startswith(median)
            assert cells["Server CPU"] == (
                "–" if summary.cpu_ms is None else units.duration(summary.cpu_ms.median)
            )
            assert cells["Output tokens"] == (
                "–" if summary.output_tokens is None else f"{summary.output_tokens:,.0f}"
            )
            assert cells["Cached"] == (
                "–" if summary.cached_share is None else units.percent(summary.cached_share)
            )


def test_texts_are_escaped() -> None:
    parsed = page(RECORDS["hostile"]())
    assert len([element for element in parsed.iter("script") if element.get("type") == "module"]) == 1
    assert not list(parsed.iter("b"))
    assert text(parsed).count("<script>alert(1)</script>") > 50
    assert tag("p", "<i>", title='"><i>') == '<p title="&quot;&gt;&lt;i&gt;">&lt;i&gt;</p>'
    assert tag("p", Markup("<i></i>"), hidden=True, lang=None) == '<p hidden="hidden"><i></i></p>'


def test_the_page_states_the_conditions() -> None:
    shown = text(page(RECORDS["all"]()))
    assert "simulated at 100 tokens per second" in shown
    assert "No model was run: tokens come at 100 per second" in shown
    for part in ("Intel(R) Xeon(R) Processor, 2 cores", "aiohttp 3.14.5", "2026-11-15, 12:00 UTC"):
        assert part in shown
    unlimited = record([CODING], MODES[:1], repeats=1)
    unlimited.endpoint.tokens_per_s = 0
    assert "tokens come without delay" in text(page(unlimited))
    assert "simulated, at unlimited speed" in figure.render_bench(unlimited)
    real = text(page(RECORDS["bare"]()))
    assert "https://models.example/v1" in real
    assert "imulated" not in real


def test_skipped_modes_are_named() -> None:
    made = RECORDS["wrong"]()
    assert "the endpoint refused the header" in text(page(made))
    assert "rollout was not measured: the endpoint refused" in " ".join(printed(made).split())
    made.loops = [loop for loop in made.loops if (loop.workload, loop.mode) != ("short", "http-full")]
    assert "Not run in this workload: HTTP, full history." in text(page(made))


def test_an_empty_record() -> None:
    empty = record([], [])
    assert "Nothing was measured." in text(page(empty))
    assert "Nothing was measured" in figure.render_bench(empty)
    unrun = record([CODING], MODES, repeats=0)
    assert "No mode was run in this workload." in text(page(unrun))
    assert "No mode was run" in figure.render_bench(unrun)


def test_a_stored_record_gives_the_same_page(tmp_path: Path) -> None:
    made = RECORDS["wrong"]()
    write(made, tmp_path / "record.json")
    html.write(read(tmp_path / "record.json"), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html.render(made)


def test_stage_bars_show_the_summaries() -> None:
    made = record([CODING])
    drawn = scripted(sections(page(made))[0])
    for summary, mode, bar in zip(summarise(made), made.modes, drawn["stages"]["bars"], strict=True):
        stages_ms = dict(summary.stages_ms)
        assert bar["name"] == mode.title
        labels = {segment["name"]: segment["label"] for segment in bar["segments"]}
        assert labels["generate"] == units.duration(stages_ms["generate"])
        assert labels["prefill"] == units.duration(stages_ms["prefill"])
    for mode, lane in zip(made.modes, drawn["timeline"]["modes"], strict=True):
        assert (lane["name"], len(lane["turns"])) == (mode.title, CODING.turns)
        for turn in lane["turns"]:
            assert sum(ms for _, ms in turn["stages"]) == pytest.approx(turn["total_ms"])
    details = next(sections(page(made))[0].iter("details"))
    for row in details.iter("tr"):
        if text(row.findall("th")[0]) in ("decode", "terminal"):
            spent = [dict(each.stages_ms)[text(row.findall("th")[0])] for each in summarise(made)]
            assert [text(cell) for cell in row.findall("td")] == [units.duration(ms) for ms in spent]


@pytest.mark.parametrize(
    ("engine", "speed", "notice", "decoding"),
    [
        ("simulated:vocabulary=x", 50, "tokens come at 50 per second", "simulated at 50 tokens per second"),
        (
            "simulated:ttft_ms=100",
            None,
            "more than decoding was simulated",
            "as configured in simulated:ttft_ms=100",
        ),
        ("llama:model=x", None, None, "by the engine"),
        (None, None, None, "not known"),
    ],
)
def test_reports_state_what_was_simulated(
    engine: str | None, speed: float | None, notice: str | None, decoding: str
) -> None:
    made = record([CODING], MODES[:1])
    made.endpoint = Endpoint(
        model="m", url=None if engine else "http://h/v1", engine=engine, tokens_per_s=speed
    )
    shown = text(page(made))
    assert decoding in shown
    assert ("Simulated. " in shown) is (notice is not None)
    assert notice is None or notice in shown
    assert ("Nothing was tokenized" in shown) is (notice is not None and "vocabulary" not in (engine or ""))
    assert ("no model" in figure.render_bench(made)) is (notice is not None)


def test_reports_show_the_finished_repeats() -> None:
    made = compared([100] * 3, [50] * 2)
    made.settings.repeats = 200
    assert "2 to 3 repeats of 200 requested" in text(page(made))
    assert "over 2 to 3 repeats" in figure.render_bench(made)
    assert "200 repeats" not in figure.render_bench(made)


@pytest.mark.parametrize(
    ("checked", "words"),
    [("digest", "verified by digest"), ("tokens", "verified by token counts"), (None, "")],
)
def test_reports_show_how_history_was_verified(checked: Checked | None, words: str) -> None:
    made = checked_by(checked)
    result = verdict(made, summarise(made), SHORT)
    assert result.figure.replace(units.SPACE, " ") == "50 % less time"
    assert ("History was" in result.sentence) is (checked is not None)
    assert words in result.sentence
    wide = StringIO()
    Console(file=wide, width=140).print(terminal.render(made, is_wide=True))
    if checked is not None:
        assert f"history: {checked}" in text(page(made))
        assert checked in wide.getvalue()
    made.loops[-1].history_checked = "none"
    assert summarise(made)[1].history_checked == ("none" if checked else None)
