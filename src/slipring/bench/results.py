"""What a bench has measured, as it is kept.

A record holds raw figures, one by one, with what they were measured on; whatever is said about them (medians,
tables, plots) is made from it. Units are in the names. Knows nothing of how figures come to be or are shown.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

FORMAT = 1
"""Of the records. One that was written in another format is not read."""


Checked = Literal["digest", "tokens", "none"]
"""How it was found out whether the whole history was read: by a digest, by counts of tokens, not at all."""


class Turn(Struct, kw_only=True, omit_defaults=True):
    """One turn of a loop, as its client saw it. Times are from the moment at which it was sent."""

    number: int
    """From 1, within its loop."""
    created_ms: float | None = None
    """Until ``response.created``; None where it never came."""
    first_token_ms: float | None = None
    """Until the first delta of text or of a call."""
    total_ms: float = 0.0
    """Until the terminal event, and over HTTP until the end of the body."""
    terminal_ms: float | None = None
    """Until the terminal event; None where a rollout waits."""
    sent_bytes: int = 0
    received_bytes: int = 0
    """Of the payload: frames, or bodies with their headers."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = 0
    """Among those of the output; None where there was reasoning and nobody says how much."""
    stages_ms: dict[str, float] = {}
    """Where the server says that its time went, where it says so, in its order."""
    cpu_ms: float | None = None
    """Of the server, where it runs on this machine and no other turn ran beside this one."""
    wrong: str | None = None
    """What was wrong with its answer, in words."""


class Loop(Struct, kw_only=True, omit_defaults=True):
    """One loop from beginning to end, in one mode. With lanes, one of those that ran side by side."""

    workload: str
    mode: str
    repeat: int
    """From 0. Loops of one repeat were run one after the other, each mode once."""
    lane: int = 0
    wall_ms: float = 0.0
    """Without the time that the tools were said to take."""
    cpu_ms: float | None = None
    """Of the server during the loop; with lanes, the share of one."""
    turns: list[Turn] = []
    wrong: str | None = None
    """What was wrong with the answers that only build up a history."""
    error: str | None = None
    """Why it ended before its end, where no answer was wrong: a refusal, a connection that broke."""
    history_checked: Checked | None = None
    """None in records that were written before this was kept."""

    @property
    def wrongs(self) -> list[str]:
        """All that was wrong with its answers."""
        found = [f"turn {turn.number}: {turn.wrong}" for turn in self.turns if turn.wrong is not None]
        return found if self.wrong is None else [self.wrong, *found]


class Workload(Struct, kw_only=True):
    """What a loop does."""

    name: str
    title: str
    about: str
    """A sentence with its sizes."""
    turns: int


class Mode(Struct, kw_only=True):
    """How a loop talks to its server."""

    name: str
    title: str
    about: str
    sends_history: bool = False
    """Whether each turn brings all that was said before."""


class Endpoint(Struct, kw_only=True, omit_defaults=True):
    """What was measured."""

    model: str
    url: str | None = None
    """None: a slipring that the bench has started itself."""
    engine: str | None = None
    """Of a slipring that the bench has started itself."""
    tokens_per_s: float | None = None
    """Where decoding is simulated, at which speed."""


class Settings(Struct, kw_only=True):
    repeats: int
    tool_ms: float = 0.0
    rtt_ms: float = 0.0
    lanes: int = 4


class Machine(Struct, kw_only=True):
    cpu: str
    cores: int
    memory_gib: float
    system: str


class Record(Struct, kw_only=True):
    """A bench, whole."""

    format: int = FORMAT
    when: str
    """In UTC, as in 2026-11-15T12:00:00Z."""
    versions: dict[str, str]
    """Of slipring, Python, and what both ends are made of."""
    machine: Machine
    endpoint: Endpoint
    settings: Settings
    workloads: list[Workload]
    modes: list[Mode]
    """In the order in which they are shown. Those that the endpoint does not support are not among them."""
    skipped: dict[str, str] = {}
    """By mode: why it was not measured."""
    others_cores: float | None = None
    """CPU that other processes of the machine took meanwhile, in cores, in the workload where it was most."""
    nonce: str = ""
    """By which the loops of this run are kept apart in prefix caches from those of any other."""
    loops: list[Loop] = []

    def of(self, workload: str, mode: str) -> list[Loop]:
        return [loop for loop in self.loops if loop.workload == workload and loop.mode == mode]


class Unreadable(Exception):
    """A file that is no record, and why."""


def write(record: Record, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read(path: Path) -> Record:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError) as error:
        raise Unreadable(f"{path}: {error}") from None
    if record.format != FORMAT:
        raise Unreadable(f"{path}: written in format {record.format}; this is {FORMAT}")
    return record
