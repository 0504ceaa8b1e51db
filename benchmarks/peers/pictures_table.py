"""Shows the figures of ``pictures.py``: what the last turn after a screenshot costs, in a table."""

import json
import statistics
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "results" / "pictures.json"
_ENGINES = {
    "vllm": "`vllm`, `--enable-scale-out`",
    "vllm-chat": "`vllm`, other servers",
    "llama": "`llama`",
}
_WAYS = {
    "chained": "chain",
    "whole": "whole history",
    "own": "the engine's own chat endpoint, whole history",
}


def read() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RESULT.read_text())
    return record


def table(record: dict[str, Any]) -> str:
    """A row for each engine and way. Times: medians of the rounds, with their ranges."""
    lines = [
        "| engine | way | sent to the engine | prefilled tokens | time | against the whole history |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for engine, title in _ENGINES.items():
        ways = record["engines"][engine]
        for way, name in _WAYS.items():
            last = [turns[-1] for turns in ways[way]]
            ms = [turn["ms"] for turn in last]
            ratio = statistics.median(
                turn["ms"] / other[-1]["ms"] for turn, other in zip(last, ways["whole"], strict=True)
            )
            sent, prefilled = (
                statistics.median(turn[key] for turn in last) for key in ("uploaded", "prefilled")
            )
            lines.append(
                f"| {title} | {name} | {sent / 1e3:,.1f} kB | {prefilled:,.0f}"
                f" | {statistics.median(ms):.0f} ms ({min(ms):.0f} – {max(ms):.0f})"
                f" | {'' if way == 'whole' else f'{ratio:.2f} ×'} |"
            )
    return "\n".join(lines)


def sentence(record: dict[str, Any]) -> str:
    """How many turns were compared, and on what."""
    pairs = [
        (turn, as_whole)
        for ways in record["engines"].values()
        for way in ("chained", "own")
        for rounds in zip(ways[way], ways["whole"], strict=True)
        for turn, as_whole in zip(*rounds, strict=True)
    ]
    equal = sum(
        (turn["answer"], turn["input"]) == (as_whole["answer"], as_whole["input"]) for turn, as_whole in pairs
    )
    rounds = len(next(iter(record["engines"].values()))["chained"])
    machine = record["machine"]
    return (
        f"Turn {record['turns']} of a chain whose first turn had a screenshot of"
        f" {record['screenshot_bytes'] / 1e6:.1f} MB; {rounds} rounds, each way in turn, medians and ranges"
        f" ({record['when'][:10]}, {machine['cpu']}, {machine['cores']} cores, slipring"
        f" {record['versions']['slipring']}). {equal} of {len(pairs)} answers and prompts, of all turns, are"
        " token by token those of the whole history."
    )
