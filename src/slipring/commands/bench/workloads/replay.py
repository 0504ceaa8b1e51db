"""Reads a recorded loop: a file of ``slipring serve --record``, or one that was written by hand.

The latter is a file of JSON lines, one line per turn:

    {"instructions": "…", "tools": […], "temperature": 0, "input": [items that the first turn sent]}
    {"input": [new items of the second turn]}

The first line may contain further fields of a ``response.create``, which are sent with every turn. Tool
outputs answer the calls of the measured model in order, regardless of their recorded ids. A turn followed by
tool outputs needs a call, any other turn needs text.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from slipring.base.recording_format import FORMAT, Header, RecordedTurn
from slipring.commands.argument_parser import UsageError
from slipring.commands.bench.results import RecordedTimes, Workload
from slipring.commands.bench.workloads.plan import Head, Item, Need, Plan, PlanStep, text_of

_ANSWERED = ("completed", "incomplete")
_SERVER_ONLY = ("reasoning", "compaction", "compaction_summary", "compaction_trigger")
"""Items that only the server that made them can read, or that ask for a compaction."""
_CALLS = frozenset(
    "function_call custom_tool_call local_shell_call shell_call apply_patch_call computer_call"
    " tool_search_call".split()
)
"""Calls that the client answers."""
_NOT_SENT = frozenset("store generate rollout tool_choice".split())
"""Fields of a recorded request that the mode sets, or that no replay repeats."""
_CLIENT_STAGE = "client"

_turn = msgspec.json.Decoder(RecordedTurn)
_header = msgspec.json.Decoder(Header)
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_IGNORED = frozenset(
    "type model stream stream_id store previous_response_id conversation tool_choice background".split()
)
"""Fields that the mode sets: ignored in a recording."""


class _Part(Struct, frozen=True, kw_only=True):
    """A turn, or one step of a rollout: what is sent, and what came back."""

    items: list[Item]
    output: list[Item]
    times: RecordedTimes
    """Without its number."""


class _Replayed(Struct, frozen=True):
    """A turn of the recording that has been put into the plan."""

    step: int | None
    """Index of its last step; None if no step precedes what continues it."""
    fields: dict[str, Any]
    """All fields of its request."""
    calls: frozenset[str]
    """Ids of all calls that models made in its context, whose outputs answer the replay's own calls."""
    unsent: list[Item]
    """Items that the next turn has to send, because this one is not replayed."""


def _recorded_plan(path: Path, lines: Sequence[str]) -> Plan:
    """Make a plan of the lines of a recording. What follows the last line break is ignored: the server may
    have been killed while it wrote. Raises ``UsageError``."""
    header = _read(path, 1, _header, lines[0])
    if header.slipring_recording != FORMAT:
        raise UsageError(
            f"--replay: {path} has format {header.slipring_recording} of recordings, expected {FORMAT}"
        )
    turns = [_read(path, number, _turn, line) for number, line in enumerate(lines[1:-1], start=2)]
    building = _Building()
    for turn in sorted(turns, key=lambda turn: turn.at_ms):
        building.add(turn)
    if not building.steps:
        raise UsageError(f"--replay: {path} contains no turn that can be replayed")
    return building.plan(path)


class _Building:
    """A plan under construction."""

    def __init__(self) -> None:
        self.steps: list[PlanStep] = []
        self._times: list[RecordedTimes] = []
        self._replayed: dict[int, _Replayed] = {}
        self._left_out = 0

    def add(self, turn: RecordedTurn) -> None:
        """Add a turn, or leave it out."""
        before = self._replayed.get(turn.continues) if turn.continues is not None else None
        is_lost = turn.is_detached or (turn.continues is not None and before is None)
        if is_lost or turn.answer.status not in _ANSWERED:
            self._left_out += 1
            return
        fields = _joined(before.fields if before is not None else {}, turn.request)
        calls = before.calls if before is not None else frozenset()
        items = [*(before.unsent if before is not None else ()), *turn.input]
        step = before.step if before is not None else None
        if not any(_is_answer(item) for item in turn.answer.output):
            self._left_out += 1
            self._replayed[turn.turn] = _Replayed(step, fields, calls, items)
            return
        head = _head(fields)
        for part in _parts(turn, items):
            step = self._add_part(part, step, head, calls)
            calls |= {item["call_id"] for item in part.output if "call_id" in item}
        self._replayed[turn.turn] = _Replayed(step, fields, calls, [])

    def _add_part(self, part: _Part, after: int | None, head: Head, calls: frozenset[str]) -> int:
        outputs, messages = [], []
        for item in part.items:
            if item.get("type") in _SERVER_ONLY:
                continue
            if str(item.get("type")).endswith("_output") and item.get("call_id") in calls:
                outputs.append(text_of(item.get("output")))
            else:
                messages.append({name: value for name, value in item.items() if name not in ("id", "status")})
        self.steps.append(
            PlanStep(
                messages=messages,
                outputs=outputs,
                needs=_need(part.output),
                continues=after,
                begins=after is None,
                head=head,
                pause_ms=part.times.pause_ms or 0.0,
            )
        )
        self._times.append(structs.replace(part.times, number=len(self.steps)))
        return len(self.steps) - 1

    def plan(self, path: Path) -> Plan:
        steps, first = self.steps, self.steps[0].head
        assert first is not None
        outputs = sum(len(step.outputs) for step in steps)
        conversations = sum(step.begins for step in steps)
        about = f"{len(steps)} turns, {outputs} tool outputs"
        about += f", {conversations} conversations" if conversations > 1 else ""
        about += f"; {self._left_out} recorded turns are left out" if self._left_out else ""
        return Plan(
            workload=Workload(
                name="replay",
                title=f"A recorded loop, {path.name}",
                about=about,
                turns=len(steps),
                recorded=self._times,
            ),
            instructions=first.instructions,
            tools=first.tools,
            settings=first.settings,
            steps=steps,
            forces_tools=True,
        )


def _read(path: Path, number: int, decoder: "msgspec.json.Decoder[Any]", line: str) -> Any:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise UsageError(f"--replay: {path}, line {number}: {error}") from None


def _joined(before: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    fields = {**before, **changed}
    return {name: value for name, value in fields.items() if value is not None}


def _head(fields: dict[str, Any]) -> Head:
    settings = {name: value for name, value in fields.items() if name not in _NOT_SENT}
    return Head(
        instructions=settings.pop("instructions", ""), tools=settings.pop("tools", []), settings=settings
    )


def _is_answer(item: Item) -> bool:
    return item.get("type") == "message" or item.get("type") in _CALLS


def _need(output: list[Item]) -> Need:
    return "call" if any(item.get("type") in _CALLS for item in output) else "text"


def _parts(turn: RecordedTurn, items: list[Item]) -> Iterator[_Part]:
    """The turn; if it is a rollout, each of its steps, which end where the client's outputs follow."""
    outputs: list[list[Item]] = [[]]
    inputs: list[list[Item]] = [items]
    for item in turn.answer.output:
        if not str(item.get("type")).endswith("_output"):
            outputs[-1].append(item)
        elif outputs[-1]:
            inputs.append([item])
            outputs.append([])
        else:
            inputs[-1].append(item)
    times = _times(turn)
    if len(times) != len(outputs):
        times = [times[0], *(RecordedTimes(number=0, total_ms=0.0) for _ in outputs[1:])]
    for sent, output, measured in zip(inputs, outputs, times, strict=True):
        yield _Part(items=sent, output=output, times=measured)


def _times(turn: RecordedTurn) -> list[RecordedTimes]:
    """The recorded times of a turn, or those of each step of a rollout. Tokens are those of all steps."""
    answer, report = turn.answer, turn.timing if turn.timing is not UNSET else {}
    stages: list[dict[str, Any]] = report.get("stages", [])
    usage: dict[str, Any] = answer.usage if answer.usage is not UNSET else {}
    first = RecordedTimes(
        number=0,
        total_ms=answer.total_ms,
        first_token_ms=answer.first_token_ms,
        pause_ms=turn.waited_ms,
        sent_bytes=report.get("request_bytes", 0),
        input_tokens=usage.get("input_tokens", 0),
        cached_tokens=(usage.get("input_tokens_details") or {}).get("cached_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        stages_ms=_sums(stages),
    )
    pauses = [stage for stage in stages if stage["name"] == _CLIENT_STAGE]
    if not pauses:
        return [first]
    steps: list[list[dict[str, Any]]] = [[]]
    for stage in stages:
        if stage["name"] == _CLIENT_STAGE:
            steps.append([])
        else:
            steps[-1].append(stage)
    waits = [turn.waited_ms, *(pause["duration_ms"] for pause in pauses)]
    return [
        structs.replace(
            first if number == 0 else RecordedTimes(number=0, total_ms=0.0),
            total_ms=round(sum(stage["duration_ms"] for stage in step), 3),
            first_token_ms=_first_token(step),
            pause_ms=pause_ms,
            stages_ms=_sums(step),
        )
        for number, (step, pause_ms) in enumerate(zip(steps, waits, strict=True))
    ]


def _first_token(stages: list[dict[str, Any]]) -> float | None:
    spent = 0.0
    for stage, following in pairwise(stages):
        spent += float(stage["duration_ms"])
        if stage["name"] == "prefill" and following["name"] == "generate":
            return round(spent, 3)
    return None


def _sums(stages: list[dict[str, Any]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for stage in stages:
        sums[stage["name"]] = round(sums.get(stage["name"], 0.0) + stage["duration_ms"], 3)
    return sums


def read_recording(path: Path) -> Plan:
    """Read the plan from a file. Raises ``UsageError``."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"--replay: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--replay: cannot read {path}: {error}") from None
    if lines[0].startswith('{"slipring_recording":'):
        return _recorded_plan(path, lines)
    documents = [_document(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not documents:
        raise UsageError(f"--replay: {path} contains no turn")
    head = {name: value for name, value in documents[0].items() if name not in _IGNORED and name != "input"}
    steps = _steps(documents)
    outputs = sum(len(step.outputs) for step in steps)
    tools = head.pop("tools", None) or []
    if outputs and not tools:
        raise UsageError(f"--replay: {path} has tool outputs, but its first line has no tools")
    return Plan(
        workload=Workload(
            name="replay",
            title=f"A recorded loop, {path.name}",
            about=f"{len(steps)} turns, {outputs} tool outputs",
            turns=len(steps),
        ),
        instructions=head.pop("instructions", None) or "",
        tools=tools,
        settings=head,
        steps=steps,
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


def _steps(documents: list[dict[str, Any]]) -> list[PlanStep]:
    """The turns, with the items of each divided into outputs for calls of the measured model and all others.
    An output whose call is in the recording itself is sent as recorded."""
    recorded: set[str] = set()
    steps: list[PlanStep] = []
    for document in documents:
        messages, outputs = [], []
        for item in document["input"]:
            if item.get("type") in _OUTPUTS and item.get("call_id") not in recorded:
                outputs.append(text_of(item.get("output")))
                continue
            if "call_id" in item:
                recorded.add(item["call_id"])
            messages.append(item)
        if outputs and steps:
            steps[-1] = structs.replace(steps[-1], needs="call")
        steps.append(PlanStep(messages=messages, outputs=outputs))
    return steps
