"""Measures what one server process holds: idle and active connections, and a tenant that floods it.

Two runs of `slipring bench load`. The first adds connections that stream 50 tokens per second without a
pause, beside 10,000 idle ones, until the service level breaks, and then gives a bare aiohttp socket the same
load. In the second, an engine with 32 places has a few users who chat, and another tenant floods it.

    python benchmarks/load.py

With `--workers 2`, the first run alone, for a server with so many workers, on a store that they share.

    python benchmarks/load.py --workers 2
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import msgspec
from common import RESULTS

from slipring.commands.bench.load.results import LoadRecord
from slipring.commands.bench.load.service_level import Level, Percentiles

ACTIVE, FLOOD = RESULTS / "load.json", RESULTS / "flood.json"
WORKERS = RESULTS / "load_workers.json"
_STREAM = "simulated:tokens_per_s=50,output_tokens=100,digest=true"
_QUEUE = "simulated:tokens_per_s=50,output_tokens=50,digest=true,max_jobs=32,max_waiting=32"


def read() -> tuple[LoadRecord, LoadRecord]:
    """The records of both runs."""
    active, flood = (msgspec.json.decode(path.read_bytes(), type=LoadRecord) for path in (ACTIVE, FLOOD))
    return active, flood


def read_workers() -> LoadRecord:
    """The record of the run with workers."""
    return msgspec.json.decode(WORKERS.read_bytes(), type=LoadRecord)


def table(record: LoadRecord) -> str:
    """The levels of the first run, and the bare socket."""
    lines = [
        "| active | idle | events/s | pace | first token p50 / p99 | time per event p50 / p99"
        " | CPU of the server | per event | others | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [("", level) for level in record.levels]
    if record.bare is not None:
        rows.append(("bare aiohttp: ", record.bare))
    for name, level in rows:
        verdict = "" if name else "held" if level.broken is None else "violated"
        events = level.gap_ms.count / level.seconds if level.gap_ms is not None else 0.0
        lines.append(
            f"| {name}{level.connections} | {level.open_idle:,} | {events:,.0f} | {_pace(level, record):.0%}"
            f" | {_two(level.first_token_ms)} | {_two(level.gap_ms)} | {level.server_cores or 0:.2f} cores"
            f" | {_event_us(level):.0f} µs | {level.others_cores or 0:.2f} cores | {verdict} |"
        )
    return "\n".join(lines)


def sentence(record: LoadRecord) -> str:
    """How many connections held."""
    held = [level for level in record.levels if level.broken is None]
    if not held:
        return "No level held the service level."
    most, memory = held[-1], held[-1].bytes_per_connection or 0.0
    text = (
        f"{most.connections} active connections held beside {most.open_idle:,} idle ones, with"
        f" {memory / 1024:.0f} KiB of the server's memory per connection"
    )
    bare = record.bare.gap_ms if record.bare is not None else None
    if bare is not None and most.gap_ms is not None:
        ours = most.gap_ms.p99
        text += (
            f"; p99 of the time per event {ours:.1f} ms, against {bare.p99:.1f} ms over bare sockets"
            f" ({ours / bare.p99:.2f} ×)"
        )
    return f"{text}."


def _pace(level: Level, record: LoadRecord) -> float:
    """The pace of the answers; in records without it, the deltas that came as a share of those that were due,
    the time before first deltas included."""
    if level.pace is not None:
        return level.pace
    due_per_s = level.connections * (record.endpoint.tokens_per_s or 0.0)
    return (level.gap_ms.count / level.seconds / due_per_s) if level.gap_ms is not None and due_per_s else 0.0


def flood_table(record: LoadRecord) -> str:
    """What users saw before, during and after the flood."""
    flood = record.flood
    assert flood is not None
    lines = [
        "| users | turns/s | first token p50 / p99 | time per event p50 / p99 | errors |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, level in (("before", record.levels[-1]), ("during", flood.during), ("after", flood.after)):
        lines.append(
            f"| {name} the flood | {level.turns_per_s:.1f} | {_two(level.first_token_ms)}"
            f" | {_two(level.gap_ms)} | {level.failed} |"
        )
    return "\n".join(lines)


def flood_sentence(record: LoadRecord) -> str:
    """What the flood got, and how soon the server had recovered."""
    flood = record.flood
    assert flood is not None
    tally, refused = flood.tally, flood.tally.refused_ms
    told = (
        f"{tally.with_retry_after:,} of {refused.count:,} with a `retry-after`, after {_two(refused)}"
        if refused
        else ""
    )
    codes = ", ".join(f"{count:,} × `{code}`" for code, count in tally.refusals.items())
    if flood.recovery_s is None:
        recovery = "was still violated at the end"
    else:
        recovery = f"was violated for {flood.recovery_s:.1f} s"
    return (
        f"The flood, {tally.connections} connections for {tally.seconds:.0f} s, got {tally.turns:,} answers"
        f" and was refused {sum(tally.refusals.values()):,} times ({codes}; {told});"
        f" {sum(tally.failures.values()):,} of its waiting requests made room for those of users. After it,"
        f" the service level {recovery}."
    )


def _event_us(level: Level) -> float:
    """CPU time of the server per delta, in µs. Includes everything else that it did."""
    deltas_per_s = (level.gap_ms.count if level.gap_ms is not None else 0) / level.seconds
    return (level.server_cores or 0.0) / deltas_per_s * 1e6 if deltas_per_s else 0.0


def _two(found: Percentiles | None) -> str:
    return f"{found.p50:,.1f} / {found.p99:,.1f} ms" if found is not None else ""


def _bench(*arguments: str) -> None:
    command = [sys.executable, "-m", "slipring", "bench", "load", *arguments]
    subprocess.run(command, check=False)  # exits with 1 if not even the first level held


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--step", type=int, default=50)
    parser.add_argument("--hold-s", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1, help="of the server; then only the first run")
    given: Any = parser.parse_args(arguments)
    hold = ("--hold-s", str(given.hold_s), "--processes", "2")
    ramp = (
        "--connections",
        str(given.connections),
        "--step",
        str(given.step),
        "--ramp-s",
        "5",
        "--think-ms",
        "0",
    )
    active = ("--engine", _STREAM, "--idle", str(given.idle), "--bare", *ramp, *hold)
    if given.workers > 1:
        with tempfile.TemporaryDirectory() as directory:
            flags = f"--workers {given.workers} --store sqlite:{directory}/load.db"
            _bench(*active, "--serve-flags", flags, "--json", str(WORKERS))
        return
    _bench(*active, "--json", str(ACTIVE))
    chat = ("--connections", "10", "--think-ms", "1000", "--flood", "100")
    _bench("--engine", _QUEUE, *chat, *hold, "--json", str(FLOOD))


if __name__ == "__main__":
    main()
