"""Percentiles and service levels."""

from slipring.commands.bench.load.results import percentiles
from slipring.commands.bench.load.service_level import Level, Percentiles, ServiceLevel


def test_percentiles_by_nearest_rank() -> None:
    assert percentiles([]) is None
    assert percentiles(range(100, 0, -1)) == Percentiles(p50=50, p95=95, p99=99, high=100, count=100)
    assert percentiles([3.0]) == Percentiles(p50=3, p95=3, p99=3, high=3, count=1)


def test_violations_of_a_service_level() -> None:
    service = ServiceLevel(first_token_ms=100, errors=0.1)

    def level(turns: int, p95: float | None, **errors: int) -> Level:
        found = Percentiles(p50=1, p95=p95, p99=p95, high=p95, count=turns) if p95 is not None else None
        return Level(
            connections=1, seconds=1, turns=turns, turns_per_s=1, first_token_ms=found, errors=dict(errors)
        )

    assert service.broken_by(level(9, 100, lost=1)) is None
    assert service.broken_by(level(8, 1, lost=1, late=1)) == "20.0% of turns failed (allowed: 10.0%)"
    assert service.broken_by(level(9, 101)) == "first token after 101 ms at p95 (allowed: 100 ms)"
    assert service.broken_by(level(0, None)) == "no turn finished"


def test_a_level_must_keep_the_pace_of_its_answers_where_it_is_known() -> None:
    service = ServiceLevel(first_token_ms=100, errors=0.0, pace=0.95)

    def level(pace: float | None) -> Level:
        first = Percentiles(p50=1, p95=1, p99=1, high=1, count=9)
        return Level(connections=1, seconds=1, turns=9, turns_per_s=9, first_token_ms=first, pace=pace)

    assert service.broken_by(level(None)) is None
    assert service.broken_by(level(0.95)) is None
    assert service.broken_by(level(0.949)) == "answers came at 94.9% of their pace (allowed: 95.0%)"
