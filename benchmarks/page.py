"""Writes the latest figures into the README and into pages of ``docs``: those on benchmarks, resent
histories, the cost of safety checks, pictures, scheduling and routers.

The text between the markers of the pages, and the figures, are generated from ``results/`` alone.

    python benchmarks/page.py
"""

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import hosted_tools
import load
import loop_scheduling
from budgets import Budget, all_budgets
from common import RESULTS, added, spread

from slipring.commands.bench import results
from slipring.commands.bench.report import figure
from slipring.commands.bench.results import BenchRecord
from slipring.commands.bench.statistics import Spread, Summary, summarise

sys.path.insert(0, str(Path(__file__).with_name("peers")))

import agents_record as agents
import comparison
import gateways_table as gateways
import guardrails_table as guardrails
import pictures_table as pictures
import replay_table as replays
import routers_table as routers

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
RESENT = DOCS / "resent-history.md"
SAFETY = DOCS / "safety" / "cost.md"
SCHEDULING = DOCS / "scheduling.md"
PICTURES = DOCS / "pictures.md"
ROUTERS = DOCS / "routers.md"
README = DOCS.parent / "README.md"
FIGURE = DOCS / "figures" / "loop.svg"
PEERS_FIGURE = DOCS / "figures" / "peers.svg"
AGENTS_FIGURE = DOCS / "figures" / "agents.svg"
PRESSURE_FIGURE = DOCS / "figures" / "pressure.svg"


def main() -> None:
    for page, generated in pages().items():
        text = page.read_text()
        for name, table in generated.items():
            text = put(text, name, table)
        page.write_text(text)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.write_bench(results.read(RESULTS / "loops.json"), FIGURE)
    PEERS_FIGURE.write_text(peers_figure())
    AGENTS_FIGURE.write_text(agents_figure())
    PRESSURE_FIGURE.write_text(pressure_figure())


def pages() -> dict[Path, dict[str, str]]:
    """Return the generated sections of every page, by the name of their markers."""
    return {
        PAGE: {"machine": machine(results.read(RESULTS / "loops.json"))},
        **{DOCS / "benchmarks" / f"{name}.md": made for name, made in sections().items()},
        README: readme_sections(),
        RESENT: resent_sections(),
        SAFETY: safety_sections(),
        SCHEDULING: scheduling_sections(),
        PICTURES: picture_sections(),
        ROUTERS: router_sections(),
    }


def readme_sections() -> dict[str, str]:
    """Return the generated sections of the README, by the name of their markers."""
    return {"agents": agents.short_table([agents.read(shape) for shape in _SHAPES])}


def safety_sections() -> dict[str, str]:
    return {"guardrails": guardrails.table(json.loads(guardrails.RESULT.read_text()))}


def scheduling_sections() -> dict[str, str]:
    simulated = json.loads(loop_scheduling.RESULT.read_text())
    return {
        "scheduling": loop_scheduling.table(simulated),
        **{f"pressure {shape}": pressure_section(shape) for shape in _SHAPES},
    }


def picture_sections() -> dict[str, str]:
    record = pictures.read()
    return {"pictures": f"{pictures.sentence(record)}\n\n{pictures.table(record)}"}


def router_sections() -> dict[str, str]:
    record = routers.read()
    return {"routers": f"{routers.about(record)}\n\n{routers.table(record)}"}


def pressure_section(shape: str) -> str:
    record = agents.read(f"{shape}-pressure")
    return "\n\n".join((agents.pressure_about(record), agents.pressure_table(record)))


def resent_sections() -> dict[str, str]:
    return {"resent history": resent_table(json.loads((RESULTS / "resent_history.json").read_text()))}


def resent_table(record: dict[str, Any]) -> str:
    """Return what a turn costs that sends its whole history, beside a chained one."""
    titles = {
        "chained": "chained",
        "resent": "resent, `store: false`",
        "resent and stored": "resent, stored",
        "messages": "by Messages",
        "chat": "by Chat Completions",
        "unrecognised": "resent, `--recognised-s 0`",
    }
    modes = record["ms"]
    lines = [
        f"Medians of {len(modes['chained']['wall'])} turns of each kind, after {record['tokens']:,} tokens;"
        f" {_where(record)}:\n",
        "| | time per turn | more than a chained turn | CPU of the server | more than a chained turn"
        " | of that, beside decoding the JSON and reading what is new in it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for mode, title in titles.items():
        parsed = f"parsing: {mode}"
        parsing = statistics.median(modes[parsed if parsed in modes else "parsing: resent"]["cpu"])
        wall, cpu = (statistics.median(modes[mode][kind]) for kind in ("wall", "cpu"))
        cells = [f"{wall:.1f} ms", "", f"{cpu:.1f} ms", "", ""]
        if mode != "chained":
            more = {
                kind: added({mode: modes[mode][kind], "": modes["chained"][kind]}, mode, without="")
                for kind in ("wall", "cpu")
            }
            cells[1], cells[3] = f"{more['wall']:.1f} ms", f"{more['cpu']:.1f} ms"
            cells[4] = f"{more['cpu'] - parsing:.1f} ms"
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def peers_figure() -> str:
    return f"{comparison.figure(comparison.read('vllm'))}\n"


def agents_figure() -> str:
    return agents.figure([agents.read(shape) for shape in _SHAPES])


def pressure_figure() -> str:
    return agents.pressure_figure([agents.read(f"{shape}-pressure") for shape in _SHAPES])


def agents_section(shape: str) -> str:
    """The tables without pauses and with them, as far as there are such cells."""
    record = agents.read(shape)
    parts = [agents.about(record), agents.table(record, pauses=False), agents.sentence(record)]
    if pauses := agents.pauses(record):
        least, most = pauses
        parts += [f"With pauses of {least:g} to {most:g} s between turns:", agents.table(record, pauses=True)]
    return "\n\n".join(parts)


def peers_section(engine: str) -> str:
    record = comparison.read(engine)
    return "\n\n".join((comparison.about(record), comparison.table(record), comparison.sentence(record)))


def sections() -> dict[str, dict[str, str]]:
    """Return the generated sections of the pages on benchmarks: by page, and by the name of their markers."""
    names = ("loops", "fast", "deep", "recognised")
    loops, fast, deep, recognised = (results.read(RESULTS / f"{name}.json") for name in names)
    return {
        "budgets": {"budgets": budget_table()},
        "loops": {
            "loops": loop_tables(loops, _MODES, ("coding",)),
            "short": loop_tables(loops, _SHOWN, ("short",)),
            "stages": stage_table(loops, "coding", _MODES),
            "fast": loop_tables(fast, _SHOWN),
            "deep": loop_tables(deep),
            "recognised": loop_tables(recognised, _SHOWN, ("coding",)),
        },
        "many-agents": {
            "agents small": agents_section("small"),
            "agents 7b": agents_section("7b"),
            "agents tiny": agents_section("tiny"),
        },
        "peers": {
            "vllm": peers_section("vllm"),
            "llama-server": peers_section("llama-server"),
        },
        "server-cost": {"gateways": gateways_section()},
        "claude-code": {"claude code": claude_code_section()},
        "tools": {"tool output": tool_output_tables(), "hosted tools": hosted_tools_section()},
        "load": {"load": load_section(), "flood": flood_section()},
    }


def hosted_tools_section() -> str:
    record = json.loads((RESULTS / "hosted_tools.json").read_text())
    embedded = (
        f"The embedded model, in three turns of a chain: {hosted_tools.prefill_sentence(record['embedded'])}."
    )
    return "\n\n".join((hosted_tools.about(record), hosted_tools.table(record["ways"]), embedded))


def gateways_section() -> str:
    record = gateways.read()
    turns, rest = record["turns"], record["rest"]
    parts = gateways.about(record), gateways.table(turns, rest), gateways.sentence(turns, rest)
    return "\n\n".join(parts)


def claude_code_section() -> str:
    record = replays.read()
    return "\n\n".join((replays.about(record), replays.table(record), replays.sentence(record)))


def load_section() -> str:
    record = load.read()[0]
    parts = [load.table(record), load.sentence(record)]
    if load.WORKERS.exists():
        record = load.read_workers()
        parts += ["With two workers on one SQLite file:", load.table(record), load.sentence(record)]
    return "\n\n".join(parts)


def flood_section() -> str:
    record = load.read()[1]
    return "\n\n".join((load.flood_table(record), load.flood_sentence(record)))


_RANGE = re.compile(r"(?<=\d)(%?) – (?=-?\d)")


def put(text: str, name: str, table: str) -> str:
    """Replace the text between the markers called ``name``; return the page. No range breaks in two in a
    narrow column of the site."""
    table = _RANGE.sub(r"\1–", table)
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no markers for {name}")
    return pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text)


def machine(record: BenchRecord) -> str:
    where, versions = record.machine, record.versions
    made_of = ", ".join(f"{name} {version}" for name, version in versions.items())
    records = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in _WITHOUT_MACHINE}
    here = {name: each for name, each in records.items() if each["machine"]["cpu"] == where.cpu}
    when = sorted({each["when"][:10] for each in here.values()})
    text = (
        f"Measured on {where.cpu}, {where.cores} cores, {where.memory_gib:.0f} GiB, {where.system};"
        f" {made_of}; {' to '.join(dict.fromkeys((when[0], when[-1])))}, except where a table names another"
        " machine."
    )
    elsewhere = [f" `{name}`: {_where(each)}." for name, each in records.items() if name not in here]
    return text + "".join(elsewhere)


_SHAPES = ("small", "7b")
_WITHOUT_MACHINE = (
    *("loops", "fast", "deep", "recognised", "load", "flood"),
    *("continuation_cost", "stream_cost", "engine_overhead", "idle_connections", "live_cost", "check_cost"),
    *("rollout", "resent_history"),
)
"""The measurements on the page whose tables do not name a machine."""


def _where(record: dict[str, Any]) -> str:
    """When, with which version and on which machine a record was made."""
    where, version = record["machine"], record["versions"]["slipring"]
    return f"{record['when'][:10]}, slipring {version}, {where['cpu']}, {where['cores']} cores"


def budget_table() -> str:
    found = all_budgets()
    lines = ["| what | budget | measured: median (range) | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {b.what} | {b.budget} | {b.measured} | {b.verdict} |"
        for b in found
        if b.where != "engine_overhead"
    ]
    return "\n".join((*lines, "", *_engine_lines([b for b in found if b.where == "engine_overhead"])))


def _engine_lines(budgets: list[Budget]) -> list[str]:
    """What slipring adds to a turn, a row for each engine."""
    titles: dict[str, None] = {}
    rows: dict[str, list[str]] = {}
    for each in budgets:
        what, _, engine = each.what.partition(", in front of ")
        titles[what] = None
        measured = re.sub(r" with .* of history$", "", each.measured)
        rows.setdefault(engine, []).append(f"{measured}; {each.budget}: {each.verdict}")
    return [
        f"| in front of | {' | '.join(titles)} |",
        "| --- |" + " --- |" * len(titles),
        *(f"| {engine} | {' | '.join(cells)} |" for engine, cells in rows.items()),
    ]


_MODES = ("http-full", "http-chained", "websocket", "rollout")
"""The modes that tables show; the records have those with new connections and with lanes, too."""
_SHOWN = ("http-full", "http-chained", "websocket")
"""The modes that tables show which repeat a measurement under another condition."""


def loop_tables(record: BenchRecord, modes: tuple[str, ...] = (), workloads: tuple[str, ...] = ()) -> str:
    """A table for each workload, with a row for each mode. Nothing named means all."""
    parts = []
    summaries = [each for each in summarise(record) if not modes or each.mode in modes]
    for workload in record.workloads:
        if workloads and workload.name not in workloads:
            continue
        parts.append(f"**{workload.title}**: {workload.about}\n")
        parts.append("| mode | loop | a turn | to the first token | sent | CPU per turn |")
        parts.append("| --- | --- | --- | --- | --- | --- |")
        parts += [_row(each) for each in summaries if each.workload == workload.name]
        parts.append("")
    return "\n".join(parts).rstrip()


def stage_table(record: BenchRecord, workload: str, modes: tuple[str, ...]) -> str:
    """Return a table of the mean time per turn and stage, in ms."""
    found = [
        each
        for each in summarise(record)
        if each.workload == workload and each.stages_ms and each.mode in modes
    ]
    means = {each.mode: dict(each.stages_ms) for each in found}
    names = [name for each in found for name, _ in each.stages_ms]
    most = {name: max(each.get(name, 0) for each in means.values()) for name in names}
    stages = [name for name, ms in most.items() if ms >= 0.05]
    rows = {name: [f"{each.get(name, 0):.2f}" for each in means.values()] for name in stages}
    rows["outside the server"] = [f"{each.outside_ms or 0:.2f}" for each in found]
    lines = [f"| ms per turn | {' | '.join(f'`{mode}`' for mode in means)} |"]
    lines += ["| --- |" + " --- |" * len(means)]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def tool_output_tables() -> str:
    """Return the figures of ``tool_output.py``, which ``make bench`` does not run: a table for each duration
    of the tool."""
    records = [json.loads(path.read_text()) for path in RESULTS.glob("tool_output_*.json")]
    return "\n\n".join(map(_tool_output_table, sorted(records, key=lambda record: record["seconds"])))


def _tool_output_table(figures: dict[str, Any]) -> str:
    rounds = figures["rounds"]
    printed = spread([each["plain"]["output_tokens_of_tool"] for each in rounds])["median"]
    what = f"{printed:,.0f} tokens in {figures['seconds']:g} s"
    lines = [
        f"{what}: {len(rounds)} rounds with `{figures['engine']}`, medians and ranges; {_where(figures)}:\n",
        "| output | from the tool's end to the first token | tokens left to read | |",
        "| --- | --- | --- | --- |",
    ]
    ratio, budget = figures["ratios"], figures["budget"]
    verdicts = {
        "plain": "",
        "streamed": f"{ratio['median']:.0%} ({ratio['low']:.0%} – {ratio['high']:.0%}) of that without;"
        f" budget ≤ {budget:.0%}: {'met' if ratio['median'] <= budget else 'falls short'}",
    }
    for way, title in (("plain", "sent at the end"), ("streamed", "streamed")):
        first = spread([each[way]["first_ms"] / 1e3 for each in rounds])
        seconds = f"{first['median']:.2f} s ({first['low']:.2f} – {first['high']:.2f})"
        left = spread([each[way]["input_tokens"] - each[way]["cached_tokens"] for each in rounds])
        counts = f"{left['median']:,.0f} ({left['low']:,.0f} – {left['high']:,.0f})"
        lines.append(f"| {title} | {seconds} | {counts} | {verdicts[way]} |")
    equal = "The same" if figures["same_input_tokens"] else "Different"
    lines.append(
        f"\n{equal} input tokens; the same answer in {figures['same_answers']} of {len(rounds)} rounds."
    )
    return "\n".join(lines)


def _row(each: Summary) -> str:
    if each.faults or each.wall_ms is None:
        failed = (*(f"wrong: {wrong}" for wrong in each.faults), *each.errors, "not measured")
        return f"| `{each.mode}` | {failed[0]} | | | | |"
    loop, turn, first = (_ms(value) for value in (each.wall_ms, each.turn_ms, each.first_token_ms))
    cpu = _ms(each.cpu_ms)
    return f"| `{each.mode}` | {loop} | {turn} | {first} | {each.sent_bytes / 1000:,.0f} kB | {cpu} |"


def _ms(value: Spread | None) -> str:
    if value is None:
        return ""
    if value.median >= 1000:
        return f"{value.median / 1e3:.2f} s ({value.low / 1e3:.2f} – {value.high / 1e3:.2f})"
    return f"{value.median:.1f} ms ({value.low:.1f} – {value.high:.1f})"


if __name__ == "__main__":
    main()
