"""The record of ``replay.py``, and what the page shows of it."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

RESULT = Path(__file__).parents[1] / "results" / "claude_code.json"
MOST = 1.05
"""What slipring may prefill, as a multiple of what has changed."""
_SERVERS = {
    "vllm": "vLLM `/v1/messages`",
    "llama-server": "llama-server `/v1/messages`",
    "slipring": "slipring",
    "slipring-sessions": "slipring, sessions in vLLM",
}
_TEMPLATES = {
    "qwen3_5": "at the beginning only, as Qwen3.5",
    "qwen3": "anywhere, as Qwen3",
}


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

    @property
    def is_own(self) -> bool:
        return self.server.startswith("slipring")


class ReplayRecord(Struct, kw_only=True):
    """All replays of a run."""

    when: str
    versions: dict[str, str]
    requests: int
    tools: int
    reminders: int
    """Messages with the role ``system`` in the last request."""
    replays: list[Replay]


def read() -> ReplayRecord:
    return msgspec.json.decode(RESULT.read_bytes(), type=ReplayRecord)


def about(record: ReplayRecord) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    last = max(turn.prompt for each in record.replays for turn in each.turns)
    return (
        f"{record.requests} requests, those of one subagent included; {record.tools} tools;"
        f" {record.reminders} system messages among the others; {last:,} tokens at the end."
        f" {record.when[:10]}; {versions}."
    )


def table(record: ReplayRecord) -> str:
    lines = [
        "| | the template takes system messages | tokens of all prompts | changed | prefilled"
        " | prefilled ÷ changed | without the first turns |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for each in record.replays:
        title = _SERVERS[each.server]
        if each.is_own and each.engine == "llama-server":
            title = "slipring, `llama`"
        if each.wrong:
            cells = [f"**{each.wrong.partition(': ')[0]}**", "", "", "", ""]
        else:
            prompts, later = (sum(turn.prompt for turn in each.turns), _later(each))
            cells = [f"{prompts:,}", f"{_changed(each.turns):,}", f"{_prefilled(each.turns):,}"]
            cells += [f"{_ratio(each.turns):.2f}", f"{_ratio(later):.2f}"]
        lines.append(f"| {title} | {_TEMPLATES[each.template]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sentence(record: ReplayRecord) -> str:
    """The largest ratio of slipring against its budget."""
    worst = max(_ratio(_later(each)) for each in record.replays if each.is_own)
    verdict = "met" if worst <= MOST else "missed"
    return f"slipring prefills at most {worst:.2f} of what has changed (goal ≤ {MOST:g}): {verdict}."


def _later(each: Replay) -> list[Turn]:
    """Without the turns that begin a conversation, of which all is new."""
    return [turn for turn in each.turns if not turn.is_first]


def _changed(turns: Iterable[Turn]) -> int:
    return sum(turn.changed for turn in turns)


def _prefilled(turns: Iterable[Turn]) -> int:
    return sum(turn.prefilled for turn in turns)


def _ratio(turns: list[Turn]) -> float:
    return _prefilled(turns) / _changed(turns)
