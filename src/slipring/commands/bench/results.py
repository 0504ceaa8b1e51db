"""The record of a bench: raw figures, turn by turn, and the conditions they were measured under.

Medians, tables and plots are computed from a record and are not part of it. Field names carry their units.
Records are stored as JSON.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from slipring.commands.argument_parser import UsageError

FORMAT = 1
"""Version of the JSON format. ``read`` rejects records of any other version."""


Checked = Literal["digest", "tokens", "none"]
"""How the bench verified that the server read the whole history: by digest, by token counts, or not at
all."""


class TurnResult(Struct, kw_only=True, omit_defaults=True):
    """One turn as its client saw it. Times start when the client begins to encode the request."""

    number: int
    """Position in the loop, from 1."""
    after: int | None = None
    """The turn whose context it continues, if that is not the turn before; 0: it begins a conversation."""
    created_ms: float | None = None
    """Until ``response.created``; None if it never arrived."""
    first_token_ms: float | None = None
    """Until the first delta of text or of a call's arguments."""
    total_ms: float = 0.0
    """Until the terminal event; over HTTP until the end of the body."""
    terminal_ms: float | None = None
    """Until the terminal event; None if a rollout waits for outputs instead."""
    sent_bytes: int = 0
    received_bytes: int = 0
    """Payload bytes: WebSocket frames, or HTTP bodies with their headers."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = 0
    """Part of ``output_tokens``; None if the answer has reasoning and the server does not count it."""
    stages_ms: dict[str, float] = {}
    """Time per server stage in the server's order; empty if the server does not report stages."""
    cpu_ms: float | None = None
    """CPU time of the server; None unless it can be read and no other turn ran at the same time."""
    wrong: str | None = None
    """Description of the faults in the answer."""


class LoopResult(Struct, kw_only=True, omit_defaults=True):
    """One loop in one mode. With lanes, one of the loops that ran at the same time."""

    workload: str
    mode: str
    repeat: int
    """From 0. Each repeat runs every mode once, one after the other."""
    lane: int = 0
    wall_ms: float = 0.0
    """Sum of its turns, without the simulated time of tools."""
    cpu_ms: float | None = None
    """CPU time of the server during the loop; with lanes, divided by their number."""
    turns: list[TurnResult] = []
    wrong: str | None = None
    """Description of the faults in turns that only build up history and are not counted."""
    error: str | None = None
    """Why the loop ended early without a faulty answer: a refused request or a broken connection."""
    history_checked: Checked | None = None
    """None in records written before this field existed."""

    @property
    def faults(self) -> list[str]:
        """Descriptions of all faults in its answers."""
        found = [f"turn {turn.number}: {turn.wrong}" for turn in self.turns if turn.wrong is not None]
        return found if self.wrong is None else [self.wrong, *found]


class RecordedTimes(Struct, kw_only=True, omit_defaults=True):
    """One turn of a recording, as the server that recorded it has measured it."""

    number: int
    """Of the same turn in the loops."""
    total_ms: float
    first_token_ms: float | None = None
    pause_ms: float | None = None
    """The time of the client between this turn and the one that it continues."""
    sent_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    stages_ms: dict[str, float] = {}


class Workload(Struct, kw_only=True, omit_defaults=True):
    """Name and description of a workload."""

    name: str
    title: str
    about: str
    """One sentence with sizes."""
    turns: int
    recorded: list[RecordedTimes] = []
    """If it replays a recording: the turns as they were recorded."""


class ModeDescription(Struct, kw_only=True):
    """Name and description of a mode."""

    name: str
    title: str
    about: str
    sends_history: bool = False
    """Whether every request contains the whole conversation."""


class Endpoint(Struct, kw_only=True, omit_defaults=True):
    """The endpoint that was measured."""

    model: str
    url: str | None = None
    """None if the bench started the server itself."""
    engine: str | None = None
    """Engine of the server that the bench started."""
    tokens_per_s: float | None = None
    """Simulated decoding speed; None if decoding was not simulated, or more than decoding was."""
    api: Literal["responses", "messages", "chat"] = "responses"
    """The API by which it was asked."""


class BenchSettings(Struct, kw_only=True):
    repeats: int
    tool_ms: float = 0.0
    rtt_ms: float = 0.0
    lanes: int = 4
    replays_pauses: bool = False
    """Whether tools took as long as in the recording."""
    short_events: bool = False
    """Whether first events without instructions and tools were asked for."""


class Machine(Struct, kw_only=True):
    cpu: str
    cores: int
    memory_gib: float
    system: str


class BenchRecord(Struct, kw_only=True):
    """Everything that one bench measured."""

    format: int = FORMAT
    when: str
    """UTC, as in 2026-11-15T12:00:00Z."""
    versions: dict[str, str]
    """Versions of slipring, Python and the main libraries."""
    machine: Machine
    endpoint: Endpoint
    settings: BenchSettings
    workloads: list[Workload]
    modes: list[ModeDescription]
    """The measured modes, in display order."""
    skipped: dict[str, str] = {}
    """Mode name to the reason why it was not measured."""
    others_cores: float | None = None
    """CPU used by all other processes, in cores, in the workload where it was highest; None if unknown."""
    nonce: str = ""
    """Included in the instructions of every loop, so that prefix caches share nothing with other runs."""
    loops: list[LoopResult] = []

    def of(self, workload: str, mode: str) -> list[LoopResult]:
        """The loops of one mode in one workload."""
        return [loop for loop in self.loops if loop.workload == workload and loop.mode == mode]


def write(record: BenchRecord, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read(path: Path) -> BenchRecord:
    """Read a record. Raises ``UsageError``."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=BenchRecord)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: is not a record of slipring bench: {error}") from None
    if record.format != FORMAT:
        raise UsageError(f"{path}: has format {record.format}, expected {FORMAT}")
    return record
