"""The workloads."""

from slipring.commands.bench.workloads.catalogue import CODING_CALLS, coding, deep, long, short


def test_workloads_are_deterministic_and_without_repetition() -> None:
    assert coding() == coding()
    texts = [text for step in coding().steps for text in step.outputs]
    assert {len(text) for text in texts} == {3500}
    assert len({text[:200] for text in texts}) == len(texts) == CODING_CALLS
    assert (coding().workload.turns, long().workload.turns, short().workload.turns) == (26, 100, 6)
    assert 3_900 < len(coding().instructions.encode()) < 4_200
    assert len(coding().tools) == 10
    plan = deep(20_000)
    assert plan.uncounted == 1
    assert plan.calls == plan.workload.turns == 5
    assert plan.outputs_before == sum(
        item.get("type") == "function_call_output" for item in plan.steps[0].messages
    )
