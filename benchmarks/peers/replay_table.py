"""The record of ``replay.py``, and the table of it."""

from pathlib import Path

from msgspec import Struct

RESULT = Path(__file__).parents[1] / "results" / "claude_code.json"


class Turn(Struct):
    """One request, in tokens."""

    prompt: int
    output: int
    changed: int
    is_first: bool
    """Whether it begins a conversation."""
    prefilled: int = 0


class Replay(Struct):
    """The loop over one server."""

    server: str
    engine: str
    template: str
    turns: list[Turn] = []
    wrong: str = ""
    """Why it has ended early."""


class ReplayRecord(Struct, kw_only=True):
    """All replays of a run."""

    when: str
    versions: dict[str, str]
    requests: int
    tools: int
    replays: list[Replay]
