"""Writes the results into the README beside this file: one table for each workload, from the records.

    python benchmarks/peers/table.py

A mode with a wrong answer (history lost, a required call missing, no end) has no times. If only the form of
the events differs from the API's, the times are shown and the differences are listed.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from servers import ROOT

from slipring.commands.bench import results
from slipring.commands.bench.statistics import spread

README = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "peers"
NAMES = {"slipring": "slipring", "litellm": "LiteLLM proxy", "ogx": "OGX"}
OUTPUT_TOKENS = 60
_BEGIN, _END = "<!-- tables: written by table.py -->\n", "<!-- end of tables -->"
_FORM = re.compile(
    r"events without a sequence_number"
    r"|previous_response_id is (None|'[^']*')"
    r"|response\.[a-z_]+ of item \d+ never ends"
    r"|response\.content_part\.done of item \d+ before the end of its text"
    r"|no response\.in_progress at the beginning"
)
"""Complaints about the form of an answer that is otherwise right. They are matched in full, because
complaints about wrong answers may begin in the same way."""
_EXACT = re.compile(r"'[^']*'|[0-9a-f]{16}|\d+")


def write_readme() -> None:
    text = README.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    README.write_text(before + _BEGIN + "\n" + tables() + "\n" + _END + after)


def tables() -> str:
    by_workload: dict[str, dict[str, results.BenchRecord]] = {}
    for name in NAMES:
        for path in sorted(RESULTS.glob(f"{name}-*.json")):
            record = results.read(path)
            for workload in record.workloads:
                by_workload.setdefault(workload.name, {})[name] = record
    return "\n".join(table(name, records) for name, records in sorted(by_workload.items()))


def table(workload: str, records: dict[str, results.BenchRecord]) -> str:
    some = next(iter(records.values()))
    (about,) = [f"{each.title}: {each.about}" for each in some.workloads if each.name == workload]
    rate = some.endpoint.tokens_per_s or 1.0
    floor_ms = OUTPUT_TOKENS / rate * 1000
    lines = [
        f"**{about}.** {some.settings.repeats} repeats, {some.when[:10]}, {some.machine.cpu},"
        f" {some.machine.cores} cores. The upstream decodes {OUTPUT_TOKENS} tokens at {rate:g} tokens/s: no"
        f" turn can take less than {floor_ms:.0f} ms.",
        "",
        "| server | mode | loop s (range) | turn ms | p95 | over the upstream ms | first token ms"
        " | CPU ms a turn | sent kB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    notes: list[str] = []
    for name, record in records.items():
        modes = [mode.name for mode in record.modes]
        shown = [*modes, *record.skipped]
        lines += [row(name, mode, record.of(workload, mode), floor_ms) for mode in shown]
        notes += remarks(name, workload, record)
    return "\n".join([*lines, "", *notes, ""])


def row(name: str, mode: str, loops: list[results.LoopResult], floor_ms: float) -> str:
    named = f"| {NAMES[name]} | {mode} "
    if not loops:
        return named + "| not supported | | | | | | |"
    if faults := [fault for loop in loops for fault in faults_of(loop)]:
        return named + f"| **wrong**: {shortened(faults[0])} | | | | | | |"
    turns = _turns(loops)
    wall, turn = spread(loop.wall_ms for loop in loops), spread(turn.total_ms for turn in turns)
    token = spread(turn.first_token_ms for turn in turns if turn.first_token_ms is not None)
    cpu = spread(loop.cpu_ms / len(loop.turns) for loop in loops if loop.cpu_ms is not None)
    assert wall is not None
    assert turn is not None
    sent_kB = statistics.median(sum(turn.sent_bytes for turn in loop.turns) for loop in loops) / 1000
    return named + (
        f"| {wall.median / 1000:.2f} ({wall.low / 1000:.2f} to {wall.high / 1000:.2f}) | {turn.median:.1f}"
        f" | {turn.p95:.1f} | {turn.median - floor_ms:.1f} | {token.median if token else 0:.1f}"
        f" | {cpu.median if cpu else 0:.1f} | {sent_kB:,.0f} |"
    )


def remarks(name: str, workload: str, record: results.BenchRecord) -> list[str]:
    """List the skipped modes and the differences from the API."""
    lines = [f"- {NAMES[name]}, {mode}: not supported ({why})." for mode, why in record.skipped.items()]
    found: dict[str, list[str]] = {}
    for mode in record.modes:
        loops = record.of(workload, mode.name)
        counted = Counter(_EXACT.sub("…", each) for turn in _turns(loops) for each in complaints(turn))
        for what, count in counted.items():
            found.setdefault(what, []).append(f"{mode.name} {count} of {len(_turns(loops))}")
    lines += [f"- {NAMES[name]}: {what} (turns: {', '.join(where)})." for what, where in found.items()]
    return lines


def _turns(loops: Iterable[results.LoopResult]) -> list[results.TurnResult]:
    return [turn for loop in loops for turn in loop.turns]


def complaints(turn: results.TurnResult) -> list[str]:
    return turn.wrong.split("; ") if turn.wrong else []


def faults_of(loop: results.LoopResult) -> list[str]:
    """Return the reasons why the answers of a loop are wrong."""
    found = [each for turn in loop.turns for each in complaints(turn)]
    for whole in filter(None, (loop.wrong, loop.error)):
        found += whole.removeprefix("before the first turn: ").split("; ")
    return [each for each in found if not _FORM.fullmatch(each)]


def shortened(fault: str) -> str:
    lost = ("the context was not what was sent", "history was lost")
    return "history was lost" if fault.startswith(lost) else fault[:80]


if __name__ == "__main__":
    write_readme()
