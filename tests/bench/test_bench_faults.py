"""A server that is wrong is found out, whatever mode it is wrong in; one that is right is not blamed."""

from itertools import pairwise
from typing import Any

import pytest

from slipring.bench.checks import Expectation, complaint
from slipring.bench.modes import MODES
from slipring.bench.statistics import summarise
from tests.bench.faulty import PART_FAULTS, Faulty, running
from tests.bench.stage import Watching, measured, tiny, wrongs

FAULTS = {
    "answers instead of calling": "no call, though the loop needs one",
    "stops giving digests": "does not say what was read",
    "is cut short": "the response is incomplete",
    "names another parent": "previous_response_id is 'resp_0'",
    "repeats a delta": "do not add up",
    "drops a delta": "do not add up",
    "swaps deltas": "do not add up",
    "speaks before the item": "before it is added",
    "ends twice": "2 terminal events",
    "goes on after the end": "comes after the terminal event",
    "begins in the middle": "begins with response.in_progress",
    "changes its id": "the response changes its id",
    "changes the item at the end": "other items than those that were done",
    "numbers events wrongly": "sequence_number 1 comes after 2",
    "sends no numbers": "events without a sequence_number",
    "is in progress twice": "response.in_progress comes more than once",
    "skips numbers": "sequence_number 7 comes after 0",
    **PART_FAULTS,
    "reorders events": "sequence_number 4 comes after 2",
}
AFTER_THE_END = ("ends twice", "goes on after the end")
"""Over a WebSocket these are told from the next turn's events, as that turn's beginning."""


async def test_a_server_that_is_right_is_not_blamed() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, repeats=2)
    assert wrongs(record) == []
    assert record.skipped == {}
    assert [mode.name for mode in record.modes] == list(MODES)
    assert all(len(loop.turns) == 3 for loop in record.loops)
    lanes = record.of("tiny", "websocket-lanes")
    assert [(loop.repeat, loop.lane) for loop in lanes] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", ["http-full", "websocket"])
async def test_what_is_wrong_is_found(fault: str, mode: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=(mode,))
    expected = FAULTS[fault]
    if mode == "websocket" and fault in AFTER_THE_END:
        expected = "and not with response.created"
    assert any(expected in wrong for wrong in wrongs(record)), wrongs(record)
    (summary,) = summarise(record)
    assert summary.wall_ms is None


def summary_events(told: str, kept: str, order: tuple[str, ...]) -> list[dict[str, Any]]:
    """A response that reasons in a summary, and answers."""
    place = {"output_index": 0, "item_id": "rs_1", "summary_index": 0}
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": kept}]}
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    part = "response.reasoning_summary_part"
    pieces: dict[str, dict[str, Any]] = {
        "open": {"type": f"{part}.added", "part": {"type": "summary_text", "text": ""}, **place},
        "delta": {"type": "response.reasoning_summary_text.delta", "delta": told, **place},
        "text": {"type": "response.reasoning_summary_text.done", "text": told, **place},
        "close": {"type": f"{part}.done", "part": {"type": "summary_text", "text": told}, **place},
    }
    response = {"id": "resp_1", "status": "completed", "output": [item, said]}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "rs_1"}},
        *(pieces[name] for name in order),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_item.added", "output_index": 1, "item": {"id": "msg_1"}},
        {"type": "response.output_item.done", "output_index": 1, "item": said},
        {"type": "response.completed", "response": response},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


@pytest.mark.parametrize(
    ("kept", "order", "wrong"),
    [
        ("thought", ("open", "delta", "text", "close"), None),
        ("another", ("open", "delta", "text", "close"), "part 0 of item 0 has another text than the item"),
        ("thought", ("delta", "text", "close"), "before its part is added"),
        ("thought", ("open", "delta", "close", "text"), "before the end of its text"),
        ("thought", ("open", "delta", "text"), "part 0 of item 0 never ends"),
        ("thought", ("delta", "open", "text", "close"), "after the text that is in it"),
    ],
)
def test_parts_of_a_summary_come_in_order(kept: str, order: tuple[str, ...], wrong: str | None) -> None:
    call = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    found = complaint(summary_events("thought", kept, order), call, Expectation(needs="call"))
    assert found is None if wrong is None else wrong in (found or "")


@pytest.mark.parametrize("fault", ["forgets the chain", "forgets one output"])
@pytest.mark.parametrize("mode", ["http-chained", "websocket", "websocket-lanes"])
async def test_lost_history_is_found_by_the_digest(fault: str, mode: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=(mode,))
    assert any("the context was not what was sent" in wrong for wrong in wrongs(record))


async def test_lost_history_is_found_without_digests_too() -> None:
    async with running(Faulty("forgets the chain", gives_digests=False)) as url:
        record = await measured(url, modes=("websocket",), plan=tiny(task="Mend it. " * 100))
    assert any("history was lost" in wrong for wrong in wrongs(record))


async def test_a_server_without_digests_is_not_blamed_for_that() -> None:
    async with running(Faulty(gives_digests=False)) as url:
        assert wrongs(await measured(url)) == []


async def test_lanes_that_are_mixed_up_are_not_measured() -> None:
    async with running(Faulty("names no lane")) as url:
        record = await measured(url)
    assert record.skipped == {"websocket-lanes": "the answer to a stream_id names none"}


@pytest.mark.parametrize(
    ("fault", "skipped"),
    [
        ("has no websocket", {"websocket": "404", "websocket-lanes": "404", "rollout": "404"}),
        ("knows no rollouts", {"rollout": "ended where it should have waited"}),
        ("refuses lanes", {"websocket-lanes": "Unknown parameter: 'stream_id'."}),
        ("stores nothing", {"http-chained": "400: There is no store."}),
    ],
)
async def test_modes_that_are_not_supported_are_skipped_with_the_reason(
    fault: str, skipped: dict[str, str]
) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url)
    assert wrongs(record) == []
    assert record.skipped.keys() == skipped.keys()
    for mode, reason in skipped.items():
        assert reason in record.skipped[mode]
        assert record.of("tiny", mode) == []


async def test_a_server_that_refuses_what_it_does_not_know_is_not_asked_for_it() -> None:
    async with running(Faulty("refuses unknown betas")) as url:
        record = await measured(url)
    assert wrongs(record) == []
    assert record.skipped.keys() == {"rollout"}  # which cannot be had without


@pytest.mark.parametrize("mode", ["http-full", "websocket"])
async def test_a_connection_that_breaks_is_an_error_and_the_next_repeat_is_run(mode: str) -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        original = faulty.events

        def events(create: dict[str, object]) -> list[dict[str, object]]:
            faulty.fault = "breaks off" if len(faulty.requests) == 4 else ""  # two of the probe, two before
            return original(create)

        faulty.events = events  # type: ignore[method-assign,assignment]
        record = await measured(url, modes=(mode,), repeats=3)
    first, *others = record.loops
    assert first.error is not None
    assert first.error.startswith("turn 3: ")
    assert [turn.number for turn in first.turns] == [1, 2]
    assert wrongs(record) == []
    assert [loop.error for loop in others] == [None, None]
    (summary,) = summarise(record)
    assert (summary.errors, summary.tried, summary.repeats) == ((first.error,), 3, 2)
    assert summary.wall_ms is not None
    assert summary.wall_ms.low == min(loop.wall_ms for loop in others)


async def test_a_mode_that_always_fails_is_given_up() -> None:
    faulty, audience = Faulty(), Watching()
    async with running(faulty) as url:
        original = faulty.events

        def events(create: dict[str, object]) -> list[dict[str, object]]:
            faulty.fault = "breaks off" if len(faulty.requests) >= 2 else ""
            return original(create)

        faulty.events = events  # type: ignore[method-assign,assignment]
        record = await measured(url, modes=("websocket",), repeats=20, audience=audience)
    assert len(audience.order) == len(record.loops) == 3
    (summary,) = summarise(record)
    assert (len(summary.errors), summary.wrongs, summary.wall_ms) == (3, (), None)


async def test_the_order_of_modes_is_shuffled_the_same_in_every_run() -> None:
    modes = ("http-full", "http-chained", "websocket")
    orders = []
    for _ in range(2):
        audience = Watching()
        async with running(Faulty()) as url:
            await measured(url, modes=modes, repeats=20, audience=audience)
        orders.append(audience.order)
    assert orders[0] == orders[1]
    by_repeat = [tuple(name for at, name in orders[0] if at == repeat) for repeat in range(20)]
    assert all(sorted(order) == sorted(modes) for order in by_repeat)
    followed = {(before, after) for order in by_repeat for before, after in pairwise(order)}
    assert len(followed) == 6  # each comes after each other one


async def test_all_modes_send_the_same_in_their_own_way() -> None:
    sent = {}
    for mode in MODES:
        faulty = Faulty()
        async with running(faulty) as url:
            await measured(url, modes=(mode,), lanes=1)
        requests = faulty.requests[-3:]
        sent[mode] = [len(request["input"]) for request in requests]
        creates = [request for request in requests if request.get("type") != "response.append"]
        assert len(creates) == (1 if mode == "rollout" else 3)
        assert all(create["tools"] == tiny().tools for create in creates)
        assert all(create["store"] is (mode == "http-chained") for create in creates)
        assert faulty.connections == (0 if mode.startswith("http") else 2)  # the probe's and the loop's
    assert sent["http-full"] == sent["http-full-newconn"] == [1, 3, 5]
    for mode in ("http-chained", "websocket", "websocket-lanes", "rollout"):
        assert sent[mode] == [1, 1, 1]


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("loses what is appended", "the context was not what was sent"),
        ("waits for another call", "waits for other calls than it has made"),
        ("drops a delta", "do not add up"),
        ("changes the item at the end", "other items than those that were done"),
        ("names another parent", "previous_response_id is 'resp_0'"),
        ("numbers events wrongly", "sequence_number 1 comes after 2"),
    ],
)
async def test_what_is_wrong_with_a_rollout_is_found(fault: str, complaint: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=("http-full", "rollout"))
    found = [wrong for loop in record.of("tiny", "rollout") for wrong in loop.wrongs]
    assert any(complaint in wrong for wrong in found), found


async def test_tools_can_be_forced_for_models_that_would_not_call_them() -> None:
    faulty = Faulty(calls=0)
    async with running(faulty) as url:
        record = await measured(url, modes=("websocket", "rollout"), tool_choice=None)
        assert wrongs(record) == []  # what is named by a URL is forced by itself
        choices = [create["tool_choice"] for create in faulty.requests[-3:]]
        assert choices == ["required", "required", "none"]
        assert "cannot be told" in record.skipped["rollout"]
        assert wrongs(await measured(url, modes=("websocket",))) == [
            "turn 1: no call, though the loop needs one"
        ]


async def test_answers_may_end_where_they_were_told_to() -> None:
    faulty = Faulty("is cut short")
    async with running(faulty) as url:
        assert wrongs(await measured(url, modes=("websocket",), max_output_tokens=5)) == []
        assert {request["max_output_tokens"] for request in faulty.requests} == {5}
        assert "turn 1: the response is incomplete" in wrongs(await measured(url, modes=("websocket",)))[0]


async def test_turns_that_only_bring_history_are_checked_but_not_counted() -> None:
    async with running(Faulty()) as url:
        (loop,) = (await measured(url, modes=("websocket",), plan=tiny(uncounted=1))).loops
        assert [turn.number for turn in loop.turns] == [1, 2]
        assert loop.wrongs == []
    async with running(Faulty("swaps deltas")) as url:
        (loop,) = (await measured(url, modes=("websocket",), plan=tiny(uncounted=1))).loops
        assert loop.error is None
        assert loop.wrongs[0].startswith("before the first turn: ")
