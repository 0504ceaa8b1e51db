"""Statistics on inputs with known results."""

import pytest

from slipring.commands.bench.report import units
from slipring.commands.bench.report.verdict import amount, compare
from slipring.commands.bench.results import (
    BenchRecord,
    BenchSettings,
    Endpoint,
    LoopResult,
    Machine,
    ModeDescription,
    TurnResult,
    Workload,
)
from slipring.commands.bench.statistics import by_turn, cumulative, spread, summarise
from tests.commands.bench.records import CODING, MODES, RECORDS, SHORT, loops
from tests.commands.bench.records import record as made_up_record


def record(*loops: LoopResult) -> BenchRecord:
    return BenchRecord(
        when="2026-01-02T03:04:05Z",
        versions={"slipring": "0"},
        machine=Machine(cpu="abacus", cores=1, memory_gib=1, system="none"),
        endpoint=Endpoint(model="m"),
        settings=BenchSettings(repeats=1),
        workloads=[Workload(name="w", title="W", about="", turns=2)],
        modes=[
            ModeDescription(name="slow", title="S", about=""),
            ModeDescription(name="fast", title="F", about=""),
        ],
        loops=list(loops),
    )


def loop(mode: str, *turns: TurnResult, cpu_ms: float | None = None, error: str | None = None) -> LoopResult:
    wall_ms = sum(turn.total_ms for turn in turns)
    return LoopResult(
        workload="w", mode=mode, repeat=0, wall_ms=wall_ms, turns=list(turns), cpu_ms=cpu_ms, error=error
    )


def test_spread() -> None:
    assert spread([]) is None
    found = spread(range(1, 101))
    assert found is not None
    assert (found.median, found.p95, found.low, found.high, found.count) == (50.5, 95, 1, 100, 100)
    alone = spread([7])
    assert alone is not None
    assert (alone.median, alone.p95, alone.low, alone.high) == (7, 7, 7, 7)


def test_summary_of_two_modes() -> None:
    slow = loop(
        "slow",
        TurnResult(
            number=1,
            total_ms=100,
            first_token_ms=10,
            sent_bytes=5,
            input_tokens=10,
            stages_ms={"a": 1, "b": 2},
        ),
        TurnResult(
            number=2, total_ms=300, first_token_ms=30, sent_bytes=7, input_tokens=30, stages_ms={"a": 3}
        ),
        cpu_ms=8,
    )
    fast = loop("fast", TurnResult(number=1, total_ms=100, input_tokens=10, cached_tokens=5))
    first, second = summarise(record(slow, fast))
    assert first.wall_ms is not None
    assert second.wall_ms is not None
    assert (first.wall_ms.median, second.wall_ms.median) == (400, 100)
    found = compare([slow], [fast])
    assert found is not None
    assert (found.saved, found.repeats) == (0.75, 1)
    assert first.turn_ms is not None
    assert (first.turn_ms.median, first.turn_ms.p95) == (200, 300)
    assert first.cpu_ms is not None
    assert first.cpu_ms.median == 4
    assert (first.sent_bytes, first.cached_share, second.cached_share) == (12, 0, 0.5)
    assert first.stages_ms == (("a", 2.0), ("b", 1.0))
    assert [(number, found.median) for number, found in by_turn([slow, slow], "total_ms")] == [
        (1, 100),
        (2, 300),
    ]


def test_faulty_modes_have_no_times() -> None:
    wrong = loop("slow", TurnResult(number=1, total_ms=1, wrong="no call"))
    broken = loop("slow", TurnResult(number=1, total_ms=1), error="turn 2: no answer in time")
    (summary,) = summarise(record(wrong, broken))
    assert summary.faults == ("turn 1: no call",)
    assert summary.errors == ("turn 2: no answer in time",)
    assert summary.wall_ms is None
    assert summary.turn_ms is None


def test_comparison_of_repeats_with_lanes() -> None:
    slow, fast = loops("a", [100, 200]), loops("b", [80, 80]) + loops("b", [100, 120])
    found = compare(slow, fast)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.1, 0.5))
    assert found.repeats == 2
    assert compare(slow, []) is None
    assert compare(loops("a", [0]), loops("b", [1])) is None
    assert compare(slow[:1], fast[1:2]) is None


def test_the_saving_is_within_its_range() -> None:
    """A slow lane among fast ones: the median lane would be faster, and the mean of a repeat is not."""
    lanes = [lane for ms in (900, 900, 900, 2000) for lane in loops("websocket-lanes", [ms] * 5)]
    found = compare(loops("http-full", [1000] * 5), lanes)
    assert found is not None
    assert found.low <= found.saved <= found.high < 0
    assert amount(found).replace(units.SPACE, " ") == "18 % more"
    made = made_up_record([SHORT], [MODES[0], MODES[3]], repeats=0)
    made.loops = loops("http-full", [1000] * 5) + lanes
    lanes_summary = summarise(made)[1]
    assert lanes_summary.wall_ms is not None
    assert (lanes_summary.wall_ms.median, lanes_summary.repeats) == (1175, 5)


def test_cumulative_times_end_with_the_loop_time() -> None:
    made = made_up_record([CODING], MODES[:1], repeats=3)
    found = cumulative(made.loops)
    whole = sorted(sum(turn.total_ms for turn in loop.turns) for loop in made.loops)
    assert [number for number, _ in found] == list(range(1, 27))
    assert (found[-1][1].low, found[-1][1].median, found[-1][1].high) == pytest.approx(tuple(whole))


def test_stages_and_outside_add_up_to_a_turn() -> None:
    for summary in summarise(made_up_record([CODING])):
        assert summary.turn_ms is not None
        assert summary.outside_ms is not None
        mean = sum(ms for _, ms in summary.stages_ms) + summary.outside_ms
        assert summary.turn_ms.low < mean < summary.turn_ms.high
    assert summarise(RECORDS["bare"]())[0].outside_ms is None
