"""Figures about figures, on inputs whose answers are known; and records as they are kept."""

from pathlib import Path

import pytest

from slipring.bench import results
from slipring.bench.load.results import Level, Percentiles, ServiceLevel, percentiles
from slipring.bench.results import Endpoint, Loop, Machine, Mode, Record, Settings, Turn, Unreadable, Workload
from slipring.bench.statistics import by_turn, compare, spread, summarise


def record(*loops: Loop) -> Record:
    return Record(
        when="2026-01-02T03:04:05Z",
        versions={"slipring": "0"},
        machine=Machine(cpu="abacus", cores=1, memory_gib=1, system="none"),
        endpoint=Endpoint(model="m"),
        settings=Settings(repeats=1),
        workloads=[Workload(name="w", title="W", about="", turns=2)],
        modes=[Mode(name="slow", title="S", about=""), Mode(name="fast", title="F", about="")],
        loops=list(loops),
    )


def loop(mode: str, *turns: Turn, cpu_ms: float | None = None, error: str | None = None) -> Loop:
    wall_ms = sum(turn.total_ms for turn in turns)
    return Loop(
        workload="w", mode=mode, repeat=0, wall_ms=wall_ms, turns=list(turns), cpu_ms=cpu_ms, error=error
    )


def test_spreads() -> None:
    assert spread([]) is None
    found = spread(range(1, 101))
    assert found is not None
    assert (found.median, found.p95, found.low, found.high, found.count) == (50.5, 95, 1, 100, 100)
    alone = spread([7])
    assert alone is not None
    assert (alone.median, alone.p95, alone.low, alone.high) == (7, 7, 7, 7)


def test_percentiles_are_figures_that_were_measured() -> None:
    assert percentiles([]) is None
    assert percentiles(range(100, 0, -1)) == Percentiles(p50=50, p95=95, p99=99, high=100, count=100)
    assert percentiles([3.0]) == Percentiles(p50=3, p95=3, p99=3, high=3, count=1)


def test_a_summary_of_two_modes() -> None:
    slow = loop(
        "slow",
        Turn(
            number=1,
            total_ms=100,
            first_token_ms=10,
            sent_bytes=5,
            input_tokens=10,
            stages_ms={"a": 1, "b": 2},
        ),
        Turn(number=2, total_ms=300, first_token_ms=30, sent_bytes=7, input_tokens=30, stages_ms={"a": 3}),
        cpu_ms=8,
    )
    fast = loop("fast", Turn(number=1, total_ms=100, input_tokens=10, cached_tokens=5))
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


def test_what_is_wrong_has_no_times() -> None:
    wrong = loop("slow", Turn(number=1, total_ms=1, wrong="no call"))
    broken = loop("slow", Turn(number=1, total_ms=1), error="turn 2: no answer in time")
    (summary,) = summarise(record(wrong, broken))
    assert summary.wrongs == ("turn 1: no call",)
    assert summary.errors == ("turn 2: no answer in time",)
    assert summary.wall_ms is None
    assert summary.turn_ms is None


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept = record(loop("slow", Turn(number=1, total_ms=1.25, stages_ms={"a": 1.5}), cpu_ms=2))
    results.write(kept, tmp_path / "record.json")
    assert results.read(tmp_path / "record.json") == kept


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}'])
def test_what_is_no_record_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(Unreadable, match=r"record\.json"):
        results.read(tmp_path / "record.json")


def test_records_of_another_format_are_not_read(tmp_path: Path) -> None:
    kept = record()
    kept.format = 99
    results.write(kept, tmp_path / "record.json")
    with pytest.raises(Unreadable, match="format 99"):
        results.read(tmp_path / "record.json")


def test_when_a_service_level_breaks() -> None:
    service = ServiceLevel(first_token_ms=100, errors=0.1)

    def level(turns: int, p95: float | None, **errors: int) -> Level:
        found = Percentiles(p50=1, p95=p95, p99=p95, high=p95, count=turns) if p95 is not None else None
        return Level(
            connections=1, seconds=1, turns=turns, turns_per_s=1, first_token_ms=found, errors=dict(errors)
        )

    assert service.broken_by(level(9, 100, lost=1)) is None
    assert service.broken_by(level(8, 1, lost=1, late=1)) == "20.0% of turns failed (allowed: 10.0%)"
    assert service.broken_by(level(9, 101)) == "first token after 101 ms at p95 (allowed: 100 ms)"
    assert service.broken_by(level(0, None)) == "no turn came to its end"
