"""Order of modes, repeats after failures, and forced calls."""

from itertools import pairwise

import pytest

from slipring.commands.argument_parser import CommandFailed
from slipring.commands.bench.statistics import summarise
from tests.commands.bench.faulty import Faulty, Json, running
from tests.commands.bench.stage import Watching, faults, measured
from tests.harness import serve


@pytest.mark.parametrize("mode", ["http-full", "websocket"])
async def test_after_a_broken_connection_the_next_repeat_runs(mode: str) -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        original = faulty.events

        def events(frame: Json) -> list[Json]:
            faulty.fault = (
                "breaks off" if len(faulty.requests) == 4 else ""
            )  # after two of the probe and two of the loop
            return original(frame)

        faulty.events = events  # type: ignore[method-assign]
        record = await measured(url, modes=(mode,), repeats=3)
    first, *others = record.loops
    assert first.error is not None
    assert first.error.startswith("turn 3: ")
    assert [turn.number for turn in first.turns] == [1, 2]
    assert faults(record) == []
    assert [loop.error for loop in others] == [None, None]
    (summary,) = summarise(record)
    assert (summary.errors, summary.tried, summary.repeats) == ((first.error,), 3, 2)
    assert summary.wall_ms is not None
    assert summary.wall_ms.low == min(loop.wall_ms for loop in others)


async def test_a_mode_is_dropped_after_three_failures_in_a_row() -> None:
    faulty, observer = Faulty(), Watching()
    async with running(faulty) as url:
        original = faulty.events

        def events(frame: Json) -> list[Json]:
            faulty.fault = "breaks off" if len(faulty.requests) >= 2 else ""
            return original(frame)

        faulty.events = events  # type: ignore[method-assign]
        record = await measured(url, modes=("websocket",), repeats=20, observer=observer)
    assert len(observer.order) == len(record.loops) == 3
    (summary,) = summarise(record)
    assert (len(summary.errors), summary.faults, summary.wall_ms) == (3, (), None)


async def test_modes_are_shuffled_in_the_same_order_in_every_run() -> None:
    modes = ("http-full", "http-chained", "websocket")
    orders = []
    for _ in range(2):
        observer = Watching()
        async with running(Faulty()) as url:
            await measured(url, modes=modes, repeats=20, observer=observer)
        orders.append(observer.order)
    assert orders[0] == orders[1]
    by_repeat = [tuple(name for at, name in orders[0] if at == repeat) for repeat in range(20)]
    assert all(sorted(order) == sorted(modes) for order in by_repeat)
    followed = {(before, after) for order in by_repeat for before, after in pairwise(order)}
    assert len(followed) == 6  # every ordered pair occurs


async def test_tool_choice_forces_calls_by_default() -> None:
    faulty = Faulty(calls=0)
    async with running(faulty) as url:
        record = await measured(url, modes=("websocket", "rollout"), tool_choice=None)
        assert faults(record) == []  # calls are forced by default with --url
        choices = [create["tool_choice"] for create in faulty.requests[-3:]]
        assert choices == ["required", "required", "none"]
        assert "cannot force a call" in record.skipped["rollout"]
        assert faults(await measured(url, modes=("websocket",))) == [
            "turn 1: no call, though the loop needs one"
        ]


async def test_two_runs_share_no_prefix() -> None:
    seen: list[set[str]] = []
    nonces = set()
    for _ in range(2):
        faulty = Faulty()
        async with running(faulty) as url:
            record = await measured(url, modes=("http-full", "websocket"), repeats=2)
        assert faults(record) == []
        nonces.add(record.nonce)
        seen.append({text for request in faulty.requests if (text := request.get("instructions"))})
    assert len(nonces) == 2
    assert "" not in nonces
    assert len(seen[0]) == len(seen[1]) == 4
    assert not seen[0] & seen[1]
    assert {text.partition("\n")[2] for text in seen[0]} == {text.partition("\n")[2] for text in seen[1]}


@pytest.mark.parametrize("mode", ["http-full", "http-chained", "websocket"])
async def test_short_events_are_asked_for_in_every_turn(mode: str) -> None:
    received = []
    for short in (False, True):
        async with serve(api_key=()) as server:
            record = await measured(server.url, modes=(mode,), tool_choice="forced", short_events=short)
        assert faults(record) == []
        assert record.settings.short_events is short
        received.append([turn.received_bytes for loop in record.loops for turn in loop.turns])
    assert all(short + 200 < whole for whole, short in zip(*received, strict=True))


async def test_a_limit_of_answers_is_not_turned_into_one_of_rollouts() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, modes=("websocket", "rollout"), max_output_tokens=50)
        assert {loop.mode for loop in record.loops} == {"websocket"}
        assert "one limit for all of its answers" in record.skipped["rollout"]
        (summary,) = summarise(record)
        (loop,) = record.loops
        assert summary.output_tokens == sum(turn.output_tokens for turn in loop.turns) > 0
        with pytest.raises(CommandFailed, match="one limit for all of its answers"):
            await measured(url, modes=("rollout",), max_output_tokens=50)
