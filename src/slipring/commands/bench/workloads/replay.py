"""Reads a recorded loop: a file of ``slipring serve --record``, or one that was written by hand.

The latter is a file of JSON lines, one line per turn:

    {"instructions": "…", "tools": […], "temperature": 0, "input": [items that the first turn sent]}
    {"input": [new items of the second turn]}

The first line may contain further fields of a ``response.create``, which are sent with every turn. Tool
outputs answer the calls of the measured model in order, regardless of their recorded ids. A turn followed by
tool outputs needs a call, any other turn needs text.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.commands.bench.results import Workload
from slipring.commands.bench.workloads.plan import Item, Plan, PlanStep, text_of
from slipring.commands.bench.workloads.recorded_turns import is_recording, read_turns
from slipring.commands.errors import UsageError

_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_IGNORED = frozenset(
    "type model stream stream_id store previous_response_id conversation tool_choice background".split()
)
"""Fields that the mode sets: ignored in a recording."""


class _Turn(Struct):
    """One line of the recording."""

    messages: list[Item]
    outputs: list[str]


def read_recording(path: Path) -> Plan:
    """Read the plan from a file. Raises ``UsageError``."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"--replay: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--replay: cannot read {path}: {error}") from None
    if is_recording(lines[0]):
        return read_turns(path, lines)
    documents = [_document(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not documents:
        raise UsageError(f"--replay: {path} contains no turn")
    head = {name: value for name, value in documents[0].items() if name not in _IGNORED and name != "input"}
    turns = _split_outputs(documents)
    tools = head.pop("tools", None) or []
    if not tools and any(turn.outputs for turn in turns):
        raise UsageError(f"--replay: {path} has tool outputs, but its first line has no tools")
    return Plan(
        workload=Workload(
            name="replay",
            title=f"A recorded loop, {path.name}",
            about=f"{len(turns)} turns, {sum(len(turn.outputs) for turn in turns)} tool outputs",
            turns=len(turns),
        ),
        instructions=head.pop("instructions", None) or "",
        tools=tools,
        settings=head,
        steps=[
            PlanStep(messages=turn.messages, outputs=turn.outputs, needs="call" if next_outputs else "text")
            for turn, next_outputs in zip(turns, [*(turn.outputs for turn in turns[1:]), []], strict=True)
        ],
        forces_tools=True,
    )


def _document(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"--replay: {path}, line {number}: {error}") from None
    items = document.get("input")
    if isinstance(items, str):
        document["input"] = items = [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UsageError(f"--replay: {path}, line {number}: 'input' must be a list of items or a string")
    return document


def _split_outputs(documents: list[dict[str, Any]]) -> list[_Turn]:
    """Split the items of each line into outputs for calls of the measured model and all other items. An
    output whose call is in the recording itself is sent as recorded."""
    recorded: set[str] = set()
    turns = []
    for document in documents:
        turn = _Turn([], [])
        for item in document["input"]:
            if item.get("type") in _OUTPUTS and item.get("call_id") not in recorded:
                turn.outputs.append(text_of(item.get("output")))
                continue
            if "call_id" in item:
                recorded.add(item["call_id"])
            turn.messages.append(item)
        turns.append(turn)
    return turns
