"""The schedule in the benchmark's simulation of an engine: what it is for, as ratios to the engine alone."""

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def loop_scheduling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import loop_scheduling

    return loop_scheduling


@pytest.mark.parametrize("rule", ["slipring", "sessions"])
def test_loops_that_do_not_fit_the_cache_prefill_less_and_end_earlier(
    loop_scheduling: Any, rule: str
) -> None:
    engine, replicas, make = loop_scheduling.TRACES["large"]
    alone = loop_scheduling.simulate(engine, make(1), "engine", replicas)
    scheduled = loop_scheduling.simulate(engine, make(1), rule, replicas)
    assert scheduled["hits"] >= 0.7 > alone["hits"]
    assert scheduled["mean_s"] <= 0.5 * alone["mean_s"]
    assert scheduled["p95_s"] <= alone["mean_s"]


def test_loops_that_fit_are_left_alone(loop_scheduling: Any) -> None:
    engine, replicas, make = loop_scheduling.TRACES["fits"]
    alone = loop_scheduling.simulate(engine, make(1), "engine", replicas)
    assert loop_scheduling.simulate(engine, make(1), "slipring", replicas) == alone
