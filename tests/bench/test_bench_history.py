"""A server that forgets is found out by its own counts of tokens, and else nothing is claimed for it."""

from typing import Any

import pytest

from slipring.bench.history import Floor, hold_together
from slipring.bench.results import Loop, Turn
from slipring.bench.statistics import summarise
from slipring.bench.workloads.catalogue import coding, short
from slipring.bench.workloads.plan import Plan, message
from tests.bench.faulty import Faulty, Json, running
from tests.bench.stage import measured, tiny, wrongs

PLANS = {"tiny": tiny, "coding": coding, "short": short}


class Uncounted(Faulty):
    """Says nothing of tokens."""

    def _response(self, made: Any) -> Json:
        return {**super()._response(made), "usage": None}


class HeadHeavy(Faulty):
    """Forgets everything, and counts a long head that hides what is missing."""

    def _response(self, made: Any) -> Json:
        response = super()._response(made)
        response["usage"]["input_tokens"] += 2600
        return response


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mode", ["http-chained", "websocket"])
@pytest.mark.parametrize("kind", [Faulty, HeadHeavy])
async def test_counts_give_away_a_server_that_forgets(kind: type[Faulty], mode: str, plan: str) -> None:
    made: Plan = PLANS[plan]()
    async with running(kind("forgets the chain", gives_digests=False)) as url:
        record = await measured(url, modes=(mode,), plan=made, tool_choice="forced")
    assert any("history was lost" in wrong for wrong in wrongs(record)), wrongs(record)
    assert {loop.history_checked for loop in record.loops} == {"tokens"}


@pytest.mark.parametrize("plan", PLANS)
async def test_a_server_that_remembers_is_not_blamed(plan: str) -> None:
    modes = ("http-full", "http-full-newconn", "http-chained", "websocket", "websocket-lanes")
    async with running(Faulty(gives_digests=False)) as url:
        record = await measured(url, modes=modes, plan=PLANS[plan](), tool_choice="forced")
    assert wrongs(record) == []
    assert {loop.history_checked for loop in record.loops} == {"tokens"}


async def test_it_is_kept_how_history_was_checked() -> None:
    async with running(Faulty()) as url:
        record = await measured(url)
        assert {summary.history_checked for summary in summarise(record)} == {"digest"}
    async with running(Faulty(gives_digests=False)) as url:
        checked = {each.mode: each.history_checked for each in summarise(await measured(url))}
        assert checked.pop("rollout") == "none"  # counted once for all turns
        assert set(checked.values()) == {"tokens"}
        (rollout,) = summarise(await measured(url, modes=("rollout",), plan=short()))
        assert rollout.history_checked == "tokens"  # without calls each turn is a response
    async with running(Uncounted("forgets the chain", gives_digests=False)) as url:
        record = await measured(url, modes=("http-full", "websocket"), plan=short())
        assert {each.history_checked for each in summarise(record)} == {"none"}
        assert [mode.sends_history for mode in record.modes] == [True, False]


class Beheaded(Faulty):
    """Reads, in a chain, less than was sent; and always the same, so that nothing shrinks."""

    def _response(self, made: Any) -> Json:
        response = super()._response(made)
        if made.create.get("store"):
            response["usage"]["input_tokens"] -= 2000
        return response


async def test_counts_of_other_modes_give_away_what_is_never_read() -> None:
    plan = tiny(task="".join(f"{number} " for number in range(3000)))
    async with running(Beheaded(gives_digests=False)) as url:
        record = await measured(url, modes=("http-full", "http-chained"), plan=plan)
    assert record.of("tiny", "http-full")[0].wrongs == []
    (wrong,) = record.of("tiny", "http-chained")[0].wrongs
    assert wrong.startswith("turn 1: the context was not what was sent: ")


def loop(mode: str, *turns: tuple[int, int, int | None]) -> Loop:
    return Loop(
        workload="w",
        mode=mode,
        repeat=0,
        history_checked="tokens",
        turns=[
            Turn(number=number, input_tokens=read, output_tokens=said, reasoning_tokens=reasoned)
            for number, (read, said, reasoned) in enumerate(turns, start=1)
        ],
    )


@pytest.mark.parametrize(
    ("chained", "is_wrong"),
    [
        ([(1000, 50, 0), (2050, 50, 0)], False),
        ([(1000, 400, 0), (2400, 50, 0)], False),  # the model has said more, and read it again
        ([(1000, 450, 400), (2450, 50, 0)], False),  # what was thought stays, or does not
        ([(1000, 450, None), (9999, 50, 0)], False),  # nobody says how much was thought
        ([(1000, 50, 0), (1900, 50, 0)], True),
        ([(1000, 50, 0), (2200, 50, 0)], True),
        ([(900, 50, 0), (1950, 50, 0)], True),
        ([(0, 0, 0), (0, 0, 0)], False),
    ],
)
def test_what_the_model_said_itself_may_differ(
    chained: list[tuple[int, int, int | None]], is_wrong: bool
) -> None:
    loops = [loop("http-full", (1000, 50, 0), (2050, 50, 0)), loop("websocket", *chained)]
    hold_together(loops)
    assert loops[0].wrongs == []
    assert bool(loops[1].wrongs) is is_wrong


def test_the_least_that_can_have_been_read() -> None:
    floor = Floor()
    assert floor.with_new([message("a word " * 1000)]) == 0  # nothing is known yet
    floor.take(Turn(number=1, input_tokens=1000, output_tokens=100, reasoning_tokens=20))
    assert floor.with_new([]) == 1000 + 60 - 8
    assert floor.with_new([message("abc" * 400)]) == 1000 + 60 + 100 - 8
    assert floor.with_new([message(" " * 9000)]) == 1000 + 60 - 8  # runs of one sign may be one token
    floor.take(Turn(number=2, input_tokens=2000, output_tokens=500, reasoning_tokens=None))
    assert floor.with_new([]) == 2000 - 8
