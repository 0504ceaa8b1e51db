"""Faulty answers are found in every mode, and correct ones are accepted."""

from typing import Any

import pytest

from slipring.commands.bench.measure.modes import MODES
from slipring.commands.bench.statistics import summarise
from slipring.commands.bench.verification import Expectation, find_faults
from tests.commands.bench.faulty import PART_FAULTS, Faulty, running
from tests.commands.bench.stage import faults, measured, tiny

FAULTS = {
    "answers instead of calling": "no call, though the loop needs one",
    "stops giving digests": "the answer has no digest",
    "is cut short": "the response is incomplete",
    "names another parent": "previous_response_id is 'resp_0'",
    "repeats a delta": "do not add up",
    "drops a delta": "do not add up",
    "swaps deltas": "do not add up",
    "speaks before the item": "before it is added",
    "ends twice": "2 terminal events",
    "sends events after the end": "comes after the terminal event",
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
AFTER_THE_END = ("ends twice", "sends events after the end")
"""Over a WebSocket, the client reads these events as the beginning of the next turn."""


async def test_a_correct_server_has_no_faults() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, repeats=2)
    assert faults(record) == []
    assert record.skipped == {}
    assert [mode.name for mode in record.modes] == list(MODES)
    assert all(len(loop.turns) == 3 for loop in record.loops)
    lanes = record.of("tiny", "websocket-lanes")
    assert [(loop.repeat, loop.lane) for loop in lanes] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", ["http-full", "websocket"])
async def test_each_fault_is_found(fault: str, mode: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=(mode,))
    expected = FAULTS[fault]
    if mode == "websocket" and fault in AFTER_THE_END:
        expected = "and not with response.created"
    assert any(expected in wrong for wrong in faults(record)), faults(record)
    (summary,) = summarise(record)
    assert summary.wall_ms is None


def summary_events(streamed: str, kept: str, order: tuple[str, ...]) -> list[dict[str, Any]]:
    """A response with a reasoning summary and an answer."""
    place = {"output_index": 0, "item_id": "rs_1", "summary_index": 0}
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": kept}]}
    answer = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    part = "response.reasoning_summary_part"
    pieces: dict[str, dict[str, Any]] = {
        "open": {"type": f"{part}.added", "part": {"type": "summary_text", "text": ""}, **place},
        "delta": {"type": "response.reasoning_summary_text.delta", "delta": streamed, **place},
        "text": {"type": "response.reasoning_summary_text.done", "text": streamed, **place},
        "close": {"type": f"{part}.done", "part": {"type": "summary_text", "text": streamed}, **place},
    }
    response = {"id": "resp_1", "status": "completed", "output": [item, answer]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "rs_1"}},
        *(pieces[name] for name in order),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_item.added", "output_index": 1, "item": {"id": "msg_1"}},
        {"type": "response.output_item.done", "output_index": 1, "item": answer},
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
def test_order_of_reasoning_summary_events(kept: str, order: tuple[str, ...], wrong: str | None) -> None:
    call = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    found = find_faults(summary_events("thought", kept, order), call, Expectation(needs="call"))
    assert found is None if wrong is None else wrong in (found or "")


@pytest.mark.parametrize("fault", ["forgets the chain", "forgets one output"])
@pytest.mark.parametrize("mode", ["http-chained", "websocket", "websocket-lanes"])
async def test_lost_history_is_found_by_digest(fault: str, mode: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=(mode,))
    assert any("the context was not what was sent" in wrong for wrong in faults(record))


async def test_lost_history_is_found_by_token_counts() -> None:
    async with running(Faulty("forgets the chain", has_digests=False)) as url:
        record = await measured(url, modes=("websocket",), plan=tiny(task="Mend it. " * 100))
    assert any("history was lost" in wrong for wrong in faults(record))


async def test_digests_are_optional() -> None:
    async with running(Faulty(has_digests=False)) as url:
        assert faults(await measured(url)) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("loses what is appended", "the context was not what was sent"),
        ("waits for another call", "waits for other calls than it has made"),
        ("drops a delta", "do not add up"),
        ("changes the item at the end", "other items than those that were done"),
        ("names another parent", "previous_response_id is 'resp_0'"),
        ("numbers events wrongly", "sequence_number 1 comes after 2"),
    ],
)
async def test_faults_of_rollouts_are_found(fault: str, reason: str) -> None:
    async with running(Faulty(fault)) as url:
        record = await measured(url, modes=("http-full", "rollout"))
    found = [wrong for loop in record.of("tiny", "rollout") for wrong in loop.faults]
    assert any(reason in wrong for wrong in found), found


async def test_answers_may_end_at_max_output_tokens() -> None:
    faulty = Faulty("is cut short")
    async with running(faulty) as url:
        assert faults(await measured(url, modes=("websocket",), max_output_tokens=5)) == []
        assert {request["max_output_tokens"] for request in faulty.requests} == {5}
        assert "turn 1: the response is incomplete" in faults(await measured(url, modes=("websocket",)))[0]


async def test_uncounted_turns_are_checked() -> None:
    async with running(Faulty()) as url:
        (loop,) = (await measured(url, modes=("websocket",), plan=tiny(uncounted=1))).loops
        assert [turn.number for turn in loop.turns] == [1, 2]
        assert loop.faults == []
    async with running(Faulty("swaps deltas")) as url:
        (loop,) = (await measured(url, modes=("websocket",), plan=tiny(uncounted=1))).loops
        assert loop.error is None
        assert loop.faults[0].startswith("before the first turn: ")
