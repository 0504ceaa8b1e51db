"""Shows the figures of ``guardrails.py`` as a table."""

import statistics
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "results" / "peers" / "guardrails.json"
_TITLES = {"slipring": "slipring", "litellm": "LiteLLM", "ogx": "OGX"}
_WORKLOADS = {"tools": "tool outputs", "messages": "messages"}
_TRANSPORTS = {"http": "whole history over HTTP", "websocket": "WebSocket"}


def table(record: dict[str, Any]) -> str:
    """Return the table of all loops, with those that could not be run."""
    lines = [
        "| turns bring | by | server | calls | kB | added to a turn | each input was in | each output in |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for workload, what in _WORKLOADS.items():
        for transport, way in _TRANSPORTS.items():
            for server, title in _TITLES.items():
                key = f"{server} {workload} {transport}"
                head = f"| {what} | {way} | {title} |"
                if key in record["loops"]:
                    lines.append(f"{head} {_cells(record['loops'][key])} |")
                elif key in record["wrong"]:
                    lines.append(f"{head} fails with 400 | | | | |")
    return "\n".join(lines)


def added_ms(pairs: dict[str, list[dict[str, Any]]]) -> list[float]:
    """The time that the guardrail adds to each turn, against the same turn of the loop before it."""
    return [
        checked - plain
        for one, other in zip(pairs["checked"], pairs["plain"], strict=True)
        for checked, plain in zip(one["turn_ms"], other["turn_ms"], strict=True)
    ]


def _cells(pairs: dict[str, list[dict[str, Any]]]) -> str:
    loops, added = pairs["checked"], added_ms(pairs)
    low, _, high = statistics.quantiles(added, n=4)
    calls = statistics.median(loop["calls"] for loop in loops)
    kilobytes = statistics.median(loop["bytes"] for loop in loops) / 1e3
    seen = (_seen(loops, side) for side in ("inputs", "outputs"))
    time = f"{statistics.median(added):,.0f} ms ({low:,.0f} – {high:,.0f})"
    return f"{calls:,.0f} | {kilobytes:,.0f} | {time} | {' | '.join(seen)}"


def _seen(loops: list[dict[str, Any]], side: str) -> str:
    """How many calls each text was in, on average, and how many texts were in none."""
    counts = [count for loop in loops for count in loop[side]]
    never = counts.count(0)
    calls = f"{statistics.mean(counts):.1f} calls"
    return calls if not never else f"{calls}; {never / len(counts):.0%} in none"
