"""Recorded loops."""

import json
from pathlib import Path

import pytest

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.workloads.plan import PlanStep, output_items
from slipring.commands.bench.workloads.replay import read_recording
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.stage import TOOL, faults, measured, recording


def output(call_id: str, text: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def lines(*documents: dict[str, object]) -> list[str]:
    return [json.dumps(document) for document in documents]


FIRST: dict[str, object] = {
    "model": "other",
    "instructions": "Be brief.",
    "tools": [TOOL],
    "temperature": 0.5,
}
USER = {"role": "user", "content": "And now?"}


def test_reading_a_recording(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "loop.jsonl",
        *lines({**FIRST, "input": "Mend it."}, {"input": [output("call_9", "done")]}, {"input": [USER]}),
    )
    plan = read_recording(path)
    assert plan.steps == [
        PlanStep(messages=[{"type": "message", "role": "user", "content": "Mend it."}], needs="call"),
        PlanStep(outputs=["done"], needs="text"),
        PlanStep(messages=[USER], needs="text"),
    ]
    assert (plan.instructions, plan.tools, plan.settings) == ("Be brief.", [TOOL], {"temperature": 0.5})
    assert plan.workload.turns == 3


def test_outputs_of_recorded_calls_are_sent_unchanged(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": "{}"}
    history = [USER, call, output("call_1", "old"), USER]
    path = recording(
        tmp_path / "loop.jsonl", *lines({**FIRST, "input": history}, {"input": [output("call_2", "new")]})
    )
    first, second = read_recording(path).steps
    assert first.messages == history
    assert (second.messages, second.outputs) == ([], ["new"])


def test_outputs_answer_calls_in_order() -> None:
    calls = [{"type": "function_call", "call_id": name} for name in ("a", "b")]
    assert output_items(calls, ["one", "two"]) == [output("a", "one"), output("b", "two")]
    assert output_items(calls[:1], ["one", "two", "three"]) == [output("a", "one\ntwo\nthree")]
    assert output_items(calls, ["one"]) == [
        output("a", "one"),
        output("b", "There is no output for this call."),
    ]
    assert output_items([], ["one"]) == []


async def test_running_a_recording(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "loop.jsonl",
        *lines(
            {**FIRST, "input": "Mend it."},
            {"input": [output("call_9", "one"), output("call_10", "two")]},
            {"input": [USER]},
        ),
    )
    faulty = Faulty()
    async with running(faulty) as url:
        record = await measured(url, modes=("http-full", "websocket"), plan=read_recording(path))
    assert faults(record) == []
    assert {loop.workload for loop in record.loops} == {"replay"}
    frames = [request for request in faulty.requests if request.get("type") == "response.create"]
    _, second, third = frames[-3:]
    assert [item["output"] for item in second["input"]] == ["one\ntwo"]
    assert third["input"] == [USER]
    assert (third["temperature"], third["model"]) == (0.5, "faulty")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "contains no turn"),
        ("{", "line 1: "),
        ("[]", "line 1: "),
        ('{"input": 3}', "line 1: 'input' must be a list of items or a string"),
        ('{"input": "x"}\n{"input": ["y"]}', "line 2: 'input'"),
        ('{"input": "x"}\n{"input": [{"type": "function_call_output", "call_id": "c"}]}', "has no tools"),
    ],
)
def test_invalid_recordings(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_recording(recording(tmp_path / "loop.jsonl", text))


def test_a_missing_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read \S+: No such file or directory$"):
        read_recording(tmp_path / "nothing.jsonl")
