"""Recordings of a server as workloads: every kind of client is recorded, replayed and compared."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.report import html, terminal
from slipring.commands.bench.workloads.plan import Head, Plan, PlanStep
from slipring.commands.bench.workloads.replay import read_recording
from tests.commands.bench.stage import TOOL, faults, measured, recording, tiny
from tests.harness import WEATHER, serve

pytestmark = pytest.mark.usefixtures("compiled_here")

CALLING = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=2"
REPLAYING = "simulated:tokens_per_s=0,output_tokens=5,digest=true"
TASK = "Mend the roof."
HEADER = '{"slipring_recording":1,"notice":"","begun_at":"","server":"","engines":[],"tenant":""}'


def recordings(directory: Path) -> list[Path]:
    """The recordings of loops, without those of the bench's probes."""
    return sorted(path for path in directory.iterdir() if TASK in path.read_text())


def sent(step: PlanStep) -> tuple[list[str], list[str], str]:
    return [message["content"] for message in step.messages], step.outputs, step.needs


@pytest.mark.parametrize(
    ("mode", "loops"), [("http-full", 1), ("http-chained", 1), ("websocket-lanes", 3), ("rollout", 1)]
)
async def test_a_loop_of_each_kind_is_recorded_and_replayed(tmp_path: Path, mode: str, loops: int) -> None:
    directory = tmp_path / "recordings"
    plan = tiny(task=TASK)
    async with serve(CALLING, record=str(directory)) as running:
        original = await measured(running.url, modes=(mode,), plan=plan)
    assert faults(original) == []
    (path,) = recordings(directory)
    replayed = read_recording(path)
    expected = [sent(step) for step in plan.steps]
    assert sorted(map(sent, replayed.steps)) == sorted(expected * loops)
    assert replayed.instructions.endswith("Be brief.")
    assert [times.number for times in replayed.workload.recorded] == list(range(1, len(expected) * loops + 1))
    async with serve(REPLAYING) as running:
        record = await measured(running.url, modes=("http-full", "websocket"), plan=replayed)
    assert faults(record) == []
    assert [loop.error for loop in record.loops] == [None, None]
    assert {loop.history_checked for loop in record.loops} == {"digest"}
    assert_compared(record, len(expected) * loops)


def assert_compared(record: Any, turns: int) -> None:
    """Both reports compare every turn with the recorded one."""
    page = html.render(record)
    assert "Recorded against replayed" in page
    shown = io.StringIO()
    Console(file=shown, width=150).print(terminal.render(record, is_wide=True))
    table = shown.getvalue().partition("Recorded against replayed")[2].splitlines()
    assert [line.split()[0] for line in table[2 : 3 + turns]] == [*map(str, range(1, turns + 1)), "all"]


async def test_forks_side_conversations_and_changed_instructions(tmp_path: Path) -> None:
    directory = tmp_path / "recordings"
    head: dict[str, Any] = {"tools": [WEATHER], "instructions": "Be brief.", "store": False}
    engine = "simulated:tokens_per_s=0,output_tokens=5,tool_calls=1"
    async with serve(engine, record=str(directory)) as running, running.connect() as socket:
        warm = await socket.response(input="Rules.", generate=False, **head)
        trunk = await socket.response(input=TASK, previous_response_id=warm["id"], **head)
        (call,) = trunk["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        for lane in (None, "fork"):
            last = await socket.response(
                input=[output], previous_response_id=trunk["id"], stream_id=lane, **head
            )
        await socket.response(input="A title?", instructions="Titles.", store=False)
        await socket.response(
            input="Go on.",
            previous_response_id=last["id"],
            stream_id="fork",
            instructions="New.",
            store=False,
        )
    (path,) = recordings(directory)
    plan = read_recording(path)
    assert [(sent(step), step.continues, step.begins) for step in plan.steps] == [
        ((["Rules.", TASK], [], "call"), None, True),
        (([], ["sunny"], "text"), 0, False),
        (([], ["sunny"], "text"), 0, False),
        ((["A title?"], [], "text"), None, True),
        ((["Go on."], [], "text"), 2, False),
    ]
    brief = Head(instructions="Be brief.", tools=[WEATHER])
    titles, new = Head(instructions="Titles."), Head(instructions="New.")
    assert [step.head for step in plan.steps] == [brief, brief, brief, titles, new]
    assert plan.workload.about == ("5 turns, 2 tool outputs, 2 conversations; 1 recorded turns are left out")
    assert all(step.pause_ms > 0 for step in plan.steps if step.outputs)
    async with serve(REPLAYING) as running:
        record = await measured(running.url, plan=plan, replays_pauses=True)
    assert faults(record) == []
    assert {loop.error for loop in record.loops} == {None}
    assert {loop.mode for loop in record.loops} == {
        *("http-full", "http-full-newconn", "http-chained", "websocket", "websocket-lanes"),
    }
    assert [turn.after for turn in record.loops[0].turns] == [0, None, 1, 0, 3]
    assert record.settings.replays_pauses
    assert "Time of tools: as recorded" in rendered(record)
    assert_compared(record, 5)


def rendered(record: Any) -> str:
    shown = io.StringIO()
    Console(file=shown, width=200).print(terminal.render(record))
    return shown.getvalue()


async def test_token_counts_of_branches_are_checked_along_their_own_branch(tmp_path: Path) -> None:
    step = PlanStep(messages=[{"role": "user", "content": "Say something about the weather."}])
    plan = tiny()
    branches = [
        structs.replace(step, begins=number == 0, continues=None if number == 0 else 0) for number in range(6)
    ]
    plan = structs.replace(plan, tools=[], steps=branches)
    async with serve("simulated:tokens_per_s=0,output_tokens=60") as running:
        record = await measured(running.url, modes=("http-full", "websocket"), plan=plan)
    assert {loop.history_checked for loop in record.loops} == {"tokens"}
    assert faults(record) == []


def turn(number: int, **fields: Any) -> str:
    base = {
        "turn": number,
        "at_ms": number,
        "connection": 0,
        "transport": "sse",
        "request": {},
        "input": [{"type": "message", "role": "user", "content": f"Message {number}."}],
        "answer": {"status": "completed", "total_ms": 3.0, "output": [{"type": "message", "content": []}]},
    }
    return json.dumps({**base, **fields})


def answer(status: str, *output: dict[str, Any]) -> dict[str, Any]:
    return {"status": status, "total_ms": 3.0, "output": list(output)}


def read(tmp_path: Path, *lines: str) -> Plan:
    return read_recording(recording(tmp_path / "loop.jsonl", HEADER, *lines, ""))


def test_what_cannot_be_repeated_is_left_out(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        turn(0),
        turn(1, continues=0, answer=answer("failed")),
        turn(2, answer=answer("cancelled", {"type": "message"})),
        turn(3, is_detached=True),
        turn(4, continues=3),
        turn(5, continues=0, answer=answer("completed", {"type": "compaction", "encrypted_content": "x"})),
        turn(6, continues=5),
        turn(
            7,
            continues=0,
            input=[{"type": "reasoning", "id": "rs_1"}, {"role": "user", "content": "7", "id": "i"}],
        ),
    )
    assert [sent(step)[0] for step in plan.steps] == [
        ["Message 0."],
        ["Message 5.", "Message 6."],
        ["7"],
    ]
    assert [step.continues for step in plan.steps] == [None, 0, 0]
    assert plan.workload.about.endswith("5 recorded turns are left out")


def test_fields_are_inherited_along_a_chain(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        turn(0, request={"instructions": "A.", "tools": [TOOL], "store": False, "temperature": 0, "seed": 1}),
        turn(1, continues=0, request={"temperature": None, "seed": 2}),
        turn(2, continues=1),
    )
    assert [step.head for step in plan.steps] == [
        Head(instructions="A.", tools=[TOOL], settings={"temperature": 0, "seed": 1}),
        *[Head(instructions="A.", tools=[TOOL], settings={"seed": 2})] * 2,
    ]


def test_an_unfinished_last_line_is_ignored(tmp_path: Path) -> None:
    path = recording(tmp_path / "loop.jsonl", HEADER, turn(0), '{"turn": 1, "at')
    assert len(read_recording(path).steps) == 1


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((HEADER.replace("1", "7", 1), turn(0), ""), "format 7 of recordings, expected 1"),
        ((HEADER, ""), "no turn that can be replayed"),
        ((HEADER, turn(0, answer=answer("failed")), ""), "no turn that can be replayed"),
        ((HEADER, '{"turn": 0}', ""), "line 2"),
    ],
)
def test_invalid_recordings(tmp_path: Path, lines: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_recording(recording(tmp_path / "loop.jsonl", *lines))
