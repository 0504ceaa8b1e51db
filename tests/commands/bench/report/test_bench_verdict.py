"""The result of a workload in words."""

import random
import re

import pytest

from slipring.commands.bench.report import figure, units
from slipring.commands.bench.report.verdict import NO_DIFFERENCE, TOO_FEW, amount, compare, range_of, verdict
from slipring.commands.bench.results import BenchRecord
from slipring.commands.bench.statistics import summarise
from tests.commands.bench.records import SHORT, checked_by, compared, loops
from tests.commands.bench.report.pages import page, printed, sections, text


@pytest.mark.parametrize(
    ("full", "socket", "figure", "words"),
    [
        ([100, 110, 120] * 2, [50, 55, 66] * 2, "50 % less time", "45–50 % less over 6 repeats"),
        ([100, 110, 120] * 2, [120, 132, 180] * 2, "20 % more time", "20–50 % more over 6 repeats"),
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
def test_the_verdict_follows_the_figures(
    full: list[float], socket: list[float], figure: str, words: str
) -> None:
    made = compared(full, socket)
    result = verdict(made, summarise(made), SHORT)
    assert result.figure.replace(units.SPACE, " ") == figure
    assert words in result.sentence.replace(units.SPACE, " ")
    assert result.figure in text(page(made))
    assert result.sentence in text(page(made))
    assert result.sentence.split(" (")[0].split()[-1] in printed(made)


def test_faulty_modes_are_not_compared() -> None:
    made = compared([100, 110], [50, 55])
    made.loops[0].turns[0].wrong = "no call"
    result = verdict(made, summarise(made), SHORT)
    assert "nothing to compare it with" in result.sentence
    assert "Wrong answers, so no times: HTTP, full history." in result.sentence
    made.loops[-1].turns[0].wrong = "no answer"
    assert verdict(made, summarise(made), SHORT).figure == "no figure"


def test_failed_repeats_are_left_out_of_comparisons() -> None:
    made = compared([100, 110, 90, 100, 100, 100], [50, 55, 1, 50, 50, 50])
    made.loops[8].error = "turn 1: 429: Too many requests"
    result = verdict(made, summarise(made), SHORT)
    assert result.figure.replace(units.SPACE, " ") == "50 % less time"
    assert "Some repeats failed: WebSocket (failed in 1 of 6)." in result.sentence
    assert "Wrong" not in result.sentence
    for report in (" ".join(printed(made, 120).split()), text(page(made))):
        assert "failed in 1 of 6 repeats: turn 1: 429: Too many requests" in report
    assert "5 to 6 repeats" in text(page(made))
    for loop in made.loops[6:]:
        loop.error = "turn 1: 429: Too many requests"
    assert "FAILED" in printed(made)
    assert "WRONG" not in printed(made)
    assert "Failed, so no times" in text(page(made))
    assert "Failed, so not shown: WebSocket" in figure.render_bench(made)
    for loop in made.loops:
        loop.error = "connection closed"
    assert verdict(made, summarise(made), SHORT).sentence.startswith("No mode finished.")


@pytest.mark.parametrize(("repeats", "is_clear"), [(1, False), (2, False), (4, False), (5, True)])
def test_a_difference_needs_five_repeats(repeats: int, is_clear: bool) -> None:
    found = compare(loops("a", [100] * repeats), loops("b", [50] * repeats))
    assert found is not None
    assert found.is_clear is is_clear
    assert amount(found).startswith("≈") is not is_clear
    assert (TOO_FEW in range_of(found)) is not is_clear


def test_no_saving_is_claimed_without_verified_history() -> None:
    made = checked_by("none")
    result = verdict(made, summarise(made), SHORT)
    assert "no saving is claimed" in result.sentence
    assert "less" not in result.sentence + result.title + result.figure
    assert "History was not verified." in result.sentence
    assert "not claimedhistory not verified" in text(page(made))
    assert "0.50×" not in printed(made, 140)


def shown(text: str) -> float:
    """The value of a figure as a reader reads it, in ms or bytes."""
    number, unit = text.replace(units.SPACE, " ").split(" ")
    return float(number) * {"ms": 1, "s": 1e3, "min": 6e4, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def random_record(dice: random.Random) -> BenchRecord:
    """Two modes with wall times and sizes of any order of magnitude, in one to nine repeats."""
    repeats = dice.randint(1, 9)
    base, factor = 10 ** dice.uniform(-1, 7), 10 ** dice.uniform(-1.5, 0.5)
    full = [base * dice.uniform(0.9, 1.1) for _ in range(repeats)]
    made = compared(full, [wall * factor * dice.uniform(0.97, 1.03) for wall in full])
    for loop in made.loops:
        loop.turns[0].sent_bytes = int(10 ** dice.uniform(2, 5))
    return made


@pytest.mark.parametrize("seed", range(60))
def test_ratios_follow_from_the_figures_that_are_shown(seed: int) -> None:
    made = random_record(random.Random(seed))
    (workload,) = sections(page(made))
    base_row, row = next(workload.iter("tbody")).findall("tr")
    cells = {cell.get("data-label"): cell for cell in row.findall("td")}
    base_cells = {cell.get("data-label"): cell for cell in base_row.findall("td")}
    assert text(base_cells["Loop, compared"]) == "baseline"

    loop, base_loop = (shown(text(each["Loop"].findall("span")[0])) for each in (cells, base_cells))
    percent = text(cells["Loop, compared"].findall("span")[0]).replace(units.SPACE, " ")
    if percent != NO_DIFFERENCE:
        number, words = re.fullmatch(r"≈?([\d.]+) % (less|more)", percent).groups()
        rounding = 0.05 if "." in number else 0.5
        saved = float(number) * (1 if words == "less" else -1)
        assert saved == pytest.approx(100 * (1 - loop / base_loop), abs=rounding + 1e-6)

    line = next(line for line in printed(made, 120).splitlines() if line.startswith("websocket "))
    time, sent = re.findall(r"≈?([\d.]+)×", line)
    assert float(time) == pytest.approx(loop / base_loop, abs=0.005 + 1e-9)
    sizes = [shown(text(each["Sent"].findall("span")[0])) for each in (cells, base_cells)]
    ratio = sizes[0] / sizes[1]
    assert float(sent) == pytest.approx(ratio, abs=0.005 + 1e-9 if ratio >= 0.095 else 0.05 * ratio)


def test_the_baseline_is_named() -> None:
    made = compared([100] * 5, [50] * 5)
    note = "ratios are to the baseline: HTTP, full history (http-full)"
    assert note in text(page(made))
    assert note in " ".join(printed(made, 200).split())
    made.loops = [loop for loop in made.loops if loop.mode != "http-full"]
    for report in (text(page(made)), " ".join(printed(made, 200).split())):
        assert "no ratios: the baseline, http-full, has no figures here" in report


@pytest.mark.parametrize(
    ("others_cores", "is_busy"), [(None, False), (0.19, False), (0.2, True), (1.5, True)]
)
def test_a_busy_machine_is_reported(others_cores: float | None, is_busy: bool) -> None:
    made = compared([100] * 5, [50] * 5)
    made.others_cores = others_cores
    warning = "Busy machine. Other processes used"
    for report in (text(page(made)), printed(made, 200)):
        assert (warning in report) is is_busy
    assert ("busy machine" in figure.render_bench(made)) is is_busy
    if others_cores is None:
        assert "Other processesnot measured" in text(page(made))
    else:
        used = f"used {others_cores:.2f} of 2 cores ({units.percent(others_cores / 2)})"
        assert f"Other processes{used}" in text(page(made))
