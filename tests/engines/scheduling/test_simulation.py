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


def test_a_tenant_that_opens_hundreds_of_loops_and_lies_about_its_tools_does_not_starve_another(
    loop_scheduling: Any,
) -> None:
    engine, _, make = loop_scheduling.TRACES["fits"]
    modest = make(1)
    alone = loop_scheduling.simulate(engine, modest, "slipring")["mean_s"]

    def greedy(number: int) -> Any:
        # It names a tool that usually returns at once, and then never answers its last call.
        quick = [(20_000, 30, "read", 0.05)] * 4
        return loop_scheduling.Program(1000 + number, 0.5 * number, quick, "greedy", vanishes=True)

    modest = make(1)
    loop_scheduling.simulate(engine, [*modest, *map(greedy, range(800))], "slipring")
    beside = sum(each.ended_at - each.begins_at for each in modest) / len(modest)
    crowd = make(1)
    loop_scheduling.simulate(engine, [*crowd, *map(greedy, range(800))], "engine")
    unscheduled = sum(each.ended_at - each.begins_at for each in crowd) / len(crowd)
    assert beside <= 2 * alone
    assert beside < unscheduled
