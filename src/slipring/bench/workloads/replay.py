"""A loop that was recorded: a file of JSON lines, one for each turn.

    {"instructions": "…", "tools": […], "temperature": 0, "input": [items that the first turn sent]}
    {"input": [items that were new in the second turn]}

The first line may hold further fields of a create, which are sent with every turn. Outputs of tools answer
the calls that the measured model makes, in order, whatever ids they had in the recording. A turn whose
successor brings such outputs needs a call, any other needs text.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.bench.digests import text_of
from slipring.bench.results import Workload
from slipring.bench.workloads.plan import Item, Plan, Step

_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_OURS = frozenset(
    "type model stream stream_id store previous_response_id conversation tool_choice background".split()
)
"""Fields that the bench decides about: they are passed over in a recording."""


class BadRecording(Exception):
    """A file that cannot be replayed, and why."""


class _Turn(Struct):
    """A line, told apart."""

    messages: list[Item]
    outputs: list[str]


def read_recording(path: Path) -> Plan:
    """The plan that a file holds, or ``BadRecording``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecording(f"--replay: cannot read {path}: {error}") from None
    documents = [_document(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not documents:
        raise BadRecording(f"--replay: {path} holds no turn")
    head = {name: value for name, value in documents[0].items() if name not in _OURS and name != "input"}
    turns = _told_apart(documents)
    tools = head.pop("tools", None) or []
    if not tools and any(turn.outputs for turn in turns):
        raise BadRecording(f"--replay: {path} has outputs of tools, but no tools in its first line")
    return Plan(
        workload=Workload(
            name="replay",
            title=f"A recorded loop, {path.name}",
            about=f"{len(turns)} turns, {sum(len(turn.outputs) for turn in turns)} outputs of tools",
            turns=len(turns),
        ),
        instructions=head.pop("instructions", None) or "",
        tools=tools,
        settings=head,
        steps=[
            Step(messages=turn.messages, outputs=turn.outputs, needs="call" if next_outputs else "text")
            for turn, next_outputs in zip(turns, [*(turn.outputs for turn in turns[1:]), []], strict=True)
        ],
        forces_tools=True,
    )


def _document(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadRecording(f"--replay: {path}, line {number}: {error}") from None
    items = document.get("input")
    if isinstance(items, str):
        document["input"] = items = [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadRecording(f"--replay: {path}, line {number}: 'input' must be a list of items, or text")
    return document


def _told_apart(documents: list[dict[str, Any]]) -> list[_Turn]:
    """Outputs whose calls are in the recording itself stay with them."""
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
