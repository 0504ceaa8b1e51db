"""Verification of the history by token counts."""

from typing import Any

import pytest

from slipring.commands.bench.results import LoopResult, TurnResult
from slipring.commands.bench.statistics import summarise
from slipring.commands.bench.verification import TokenFloor, compare_with_full_history
from slipring.commands.bench.workloads.catalogue import coding, short
from slipring.commands.bench.workloads.plan import Plan, message
from tests.commands.bench.faulty import Faulty, Json, running
from tests.commands.bench.stage import faults, measured, tiny

PLANS = {"tiny": tiny, "coding": coding, "short": short}


class Uncounted(Faulty):
    """Reports no token counts."""

    def _response(self, made: Any) -> Json:
        return {**super()._response(made), "usage": None}


class HeadHeavy(Faulty):
    """Loses the history, but counts a large constant number of tokens on top."""

    def _response(self, made: Any) -> Json:
        response = super()._response(made)
        response["usage"]["input_tokens"] += 2600
        return response


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mode", ["http-chained", "websocket"])
@pytest.mark.parametrize("kind", [Faulty, HeadHeavy])
async def test_lost_history_is_found_in_every_workload(kind: type[Faulty], mode: str, plan: str) -> None:
    made: Plan = PLANS[plan]()
    async with running(kind("forgets the chain", has_digests=False)) as url:
        record = await measured(url, modes=(mode,), plan=made, tool_choice="forced")
    assert any("history was lost" in wrong for wrong in faults(record)), faults(record)
    assert {loop.history_checked for loop in record.loops} == {"tokens"}


@pytest.mark.parametrize("plan", PLANS)
async def test_kept_history_is_accepted_in_every_workload(plan: str) -> None:
    modes = ("http-full", "http-full-newconn", "http-chained", "websocket", "websocket-lanes")
    async with running(Faulty(has_digests=False)) as url:
        record = await measured(url, modes=modes, plan=PLANS[plan](), tool_choice="forced")
    assert faults(record) == []
    assert {loop.history_checked for loop in record.loops} == {"tokens"}


async def test_loops_record_how_history_was_checked() -> None:
    async with running(Faulty()) as url:
        record = await measured(url)
        assert {summary.history_checked for summary in summarise(record)} == {"digest"}
    async with running(Faulty(has_digests=False)) as url:
        checked = {each.mode: each.history_checked for each in summarise(await measured(url))}
        assert checked.pop("rollout") == "none"  # tokens are reported once for all turns
        assert set(checked.values()) == {"tokens"}
        (rollout,) = summarise(await measured(url, modes=("rollout",), plan=short()))
        assert rollout.history_checked == "tokens"  # without calls each turn is a response
    async with running(Uncounted("forgets the chain", has_digests=False)) as url:
        record = await measured(url, modes=("http-full", "websocket"), plan=short())
        assert {each.history_checked for each in summarise(record)} == {"none"}
        assert [mode.sends_history for mode in record.modes] == [True, False]


class Beheaded(Faulty):
    """Counts 2000 tokens too few in stored chains: the counts still grow from turn to turn."""

    def _response(self, made: Any) -> Json:
        response = super()._response(made)
        if made.create.get("store"):
            response["usage"]["input_tokens"] -= 2000
        return response


async def test_contexts_smaller_than_in_http_full_are_found() -> None:
    plan = tiny(task="".join(f"{number} " for number in range(3000)))
    async with running(Beheaded(has_digests=False)) as url:
        record = await measured(url, modes=("http-full", "http-chained"), plan=plan)
    assert record.of("tiny", "http-full")[0].faults == []
    (wrong,) = record.of("tiny", "http-chained")[0].faults
    assert wrong.startswith("turn 1: the context was not what was sent: ")


def loop(mode: str, *turns: tuple[int, int, int | None]) -> LoopResult:
    return LoopResult(
        workload="w",
        mode=mode,
        repeat=0,
        history_checked="tokens",
        turns=[
            TurnResult(number=number, input_tokens=read, output_tokens=written, reasoning_tokens=reasoned)
            for number, (read, written, reasoned) in enumerate(turns, start=1)
        ],
    )


@pytest.mark.parametrize(
    ("chained", "is_wrong"),
    [
        ([(1000, 50, 0), (2050, 50, 0)], False),
        ([(1000, 400, 0), (2400, 50, 0)], False),  # the model wrote more, which is input later
        ([(1000, 450, 400), (2450, 50, 0)], False),  # reasoning may be kept or dropped
        ([(1000, 450, None), (9999, 50, 0)], False),  # reasoning tokens are not counted
        ([(1000, 50, 0), (1900, 50, 0)], True),
        ([(1000, 50, 0), (2200, 50, 0)], True),
        ([(900, 50, 0), (1950, 50, 0)], True),
        ([(0, 0, 0), (0, 0, 0)], False),
    ],
)
def test_contexts_may_differ_by_the_output_of_the_model(
    chained: list[tuple[int, int, int | None]], is_wrong: bool
) -> None:
    loops = [loop("http-full", (1000, 50, 0), (2050, 50, 0)), loop("websocket", *chained)]
    compare_with_full_history(loops)
    assert loops[0].faults == []
    assert bool(loops[1].faults) is is_wrong


def test_token_floor() -> None:
    floor = TokenFloor()
    assert floor.with_items([message("a word " * 1000)]) == 0  # no turn was added yet
    floor.add(TurnResult(number=1, input_tokens=1000, output_tokens=100, reasoning_tokens=20))
    assert floor.with_items([]) == 1000 + 60 - 8
    assert floor.with_items([message("abc" * 400)]) == 1000 + 60 + 100 - 8
    assert floor.with_items([message(" " * 9000)]) == 1000 + 60 - 8  # a run of one character may be one token
    floor.add(TurnResult(number=2, input_tokens=2000, output_tokens=500, reasoning_tokens=None))
    assert floor.with_items([]) == 2000 - 8
