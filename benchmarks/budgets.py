"""Compares the performance budgets with the latest measurements.

Reads ``results/`` and measures nothing. A missing figure is reported as "not measured"; it counts as neither
met nor missed.

    python benchmarks/budgets.py
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import EXCHANGE_KB, RESULTS, added, growth, spread

from slipring.commands.argument_parser import UsageError
from slipring.commands.bench import results
from slipring.commands.bench.report.verdict import compare
from slipring.commands.bench.results import BenchRecord

Figures = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """One budget, with the measured figure."""

    what: str
    budget: str
    measured: str
    met: bool | None
    """None: not measured."""
    where: str
    """The name of the measurement that the figure is from."""

    @property
    def verdict(self) -> str:
        return {True: "met", False: "falls short", None: "not measured"}[self.met]


def all_budgets(since: str = "") -> list[Budget]:
    """Return all budgets. Figures from before ``since`` count as not measured."""
    readers: dict[str, Callable[[Path], list[Budget]]] = {
        "continuation_cost": _figures(_continuation),
        "loops": _loops,
        "stream_cost": _figures(_stream),
        "engine_overhead": _figures(_engines),
        "idle_connections": _figures(_idle),
        "live_cost": _figures(_live),
        "check_cost": _figures(_checks),
        "rollout": _figures(_rollout),
        "resent_history": _figures(_resent),
    }
    found: list[Budget] = []
    for name, read in readers.items():
        try:
            path = RESULTS / f"{name}.json"
            if json.loads(path.read_text())["when"] < since:
                raise LookupError("it has not been measured now")
            found += read(path)
        except (OSError, LookupError, UsageError) as error:
            found.append(Budget(name, "", f"no figure: {error}", None, name))
    return found


def _figures(read: Callable[[Figures], list[Budget]]) -> Callable[[Path], list[Budget]]:
    return lambda path: read(json.loads(path.read_text()))


def _of(values: list[float], unit: str, digits: int = 2) -> str:
    each = spread(values)
    return f"{each['median']:.{digits}f} {unit} ({each['low']:.{digits}f} – {each['high']:.{digits}f})"


def _continuation(figures: Figures) -> list[Budget]:
    wall = {int(tokens): cost["wall"] for tokens, cost in figures["ms_per_turn"].items()}
    forks = {int(tokens): cost["fork"] for tokens, cost in figures["ms_per_turn"].items()}
    short, long = min(wall), max(wall)
    ratio = figures["ratios"]["wall"]
    return [
        Budget(
            f"a continuation beside the model, at {short:,} tokens of history",
            "≤ 1 ms",
            _of(wall[short], "ms"),
            statistics.median(wall[short]) <= 1,
            "continuation_cost",
        ),
        Budget(
            f"the same at {long:,} tokens, against that",
            "≤ 1.5 ×",
            f"{ratio:.2f} ×, {_of(wall[long], 'ms')}",
            ratio <= figures["budget"],
            "continuation_cost",
        ),
        Budget(
            f"a fork at {long:,} tokens of history, against one at {short:,}",
            "≤ 1.5 ×",
            f"{figures['ratios']['fork']:.2f} ×, {_of(forks[long], 'ms')}",
            figures["ratios"]["fork"] <= figures["budget"],
            "continuation_cost",
        ),
    ]


def _loops(path: Path) -> list[Budget]:
    record = results.read(path)
    return [
        _saving(
            record,
            "the 25-call loop, WebSocket against full-history HTTP that is not recognised",
            "http-full",
            0.4,
        ),
        _saving(record, "the same against chained HTTP", "http-chained", 0.2),
    ]


def _saving(record: BenchRecord, what: str, mode: str, least: float) -> Budget:
    """Compare by the median of the repeats; the modes of each repeat were measured side by side."""
    found = compare(record.of("coding", mode), record.of("coding", "websocket"))
    budget = f"≥ {least:.0%} less time"
    if found is None or any(loop.faults for loop in record.loops if loop.workload == "coding"):
        return Budget(what, budget, "not measured, or wrong", None, "loops")
    measured = f"{found.saved:.1%} less ({found.low:.1%} – {found.high:.1%})"
    return Budget(what, budget, measured, found.saved >= least, "loops")


def _stream(figures: Figures) -> list[Budget]:
    most = figures["budget"]
    lines = []
    for name, load in figures["loads"].items():
        costs = load["us_per_frame"]
        measured = (
            f"{load['ratio']:.2f} ×: {_of(costs['slipring'], 'µs', 1)} against {_of(costs['bare'], 'µs', 1)}"
        )
        what = f"CPU per streamed frame against bare aiohttp, {name}"
        lines.append(Budget(what, f"≤ {most:g} ×", measured, load["ratio"] <= most, "stream_cost"))
    lag = figures["lag"]
    last = lag["slipring"]["last"]
    lines.append(
        Budget(
            f"one stream of {lag['tokens_per_s']:,} tokens/s: behind its schedule at the end",
            f"≤ {lag['budget_ms']} ms",
            _of(last, "ms", 1),
            statistics.median(last) <= lag["budget_ms"],
            "stream_cost",
        )
    )
    return lines


def _engines(figures: Figures) -> list[Budget]:
    lines = []
    for kind, by_history in figures["ms"].items():
        budgets = figures["budgets"][kind]
        turns = {int(before): each for before, each in by_history.items()}
        short, long = sorted(turns)
        wall = {before: added(each, "through", without="direct") for before, each in turns.items()}
        cpu = {
            before: added(each, "cpu", "client_cpu", without="direct_cpu") for before, each in turns.items()
        }
        for what, values, budget, unit in (
            ("added per turn, in front of", wall, budgets["added_ms"], "ms"),
            ("CPU added per turn, in front of", cpu, budgets["added_cpu_ms"], "ms of CPU"),
        ):
            measured = (
                f"{values[short]:.2f} {unit}, {values[long]:.2f} with {long * EXCHANGE_KB:.0f} kB of history"
            )
            met = max(values.values()) <= budget
            lines.append(Budget(f"{what} {kind}", f"≤ {budget:g} {unit}", measured, met, "engine_overhead"))
        grown, most = growth(turns, figures["turns"]), budgets["growth_ms_per_10_kB"]
        lines.append(
            Budget(
                f"growth of slipring's own CPU with history, in front of {kind}",
                f"≤ {most:g} ms per 10 kB",
                f"{grown:.3f} ms per 10 kB",
                grown <= most,
                "engine_overhead",
            )
        )
    return lines


def _live(figures: Figures) -> list[Budget]:
    pairs = zip(figures["watched"], figures["unwatched"], strict=True)
    cost = statistics.median(watched - unwatched for watched, unwatched in pairs)
    what = f"CPU of the live page's stream, {figures['connections']:,} connections"
    most = figures["budget"]
    return [Budget(what, f"≤ {most:.0%} of a core", f"{cost:.1%}", cost <= most, "live_cost")]


def _checks(figures: Figures) -> list[Budget]:
    growth, added = figures["ratios"]["long / short"], figures["added_ms"]
    short, long = (f"{tokens:,}" for tokens in figures["histories"])
    measured = f"{growth['median']:.2f} × ({growth['low']:.2f} – {growth['high']:.2f})"
    what = f"CPU of a turn with a safety check, {long} tokens of history against {short}"
    flat = Budget(what, "≤ 1.2 ×", measured, growth["median"] <= 1.2, "check_cost")
    what = "time that a check of 50 ms adds to a first token after 60 ms"
    beside = Budget(what, "≤ 1 ms", f"{added['median']:.2f} ms", added["median"] <= 1, "check_cost")
    return [flat, beside]


def _idle(figures: Figures) -> list[Budget]:
    kib, most = figures["idle_kib"], figures["budget_kib"]
    what = f"memory of an idle connection, {figures['connections']:,} held"
    return [Budget(what, f"≤ {most} KiB", f"{kib:.1f} KiB", kib <= most, "idle_connections")]


def _rollout(figures: Figures) -> list[Budget]:
    lines = []
    for kind, name in (("wall_ms", "time"), ("cpu_ms", "CPU of the server")):
        ratio = figures["ratios"][kind]
        measured = f"{ratio['median']:.2f} × ({ratio['low']:.2f} – {ratio['high']:.2f})"
        what = f"a tool boundary, separate responses against a rollout: {name}"
        met = ratio["median"] <= figures["budget"]
        lines.append(Budget(what, f"≤ {figures['budget']:g} ×", measured, met, "rollout"))
    return lines


def _resent(figures: Figures) -> list[Budget]:
    """CPU time, because the wall time of a run beside others says little; the modes alternate in one run."""
    lines = []
    chained = figures["ms"]["chained"]["cpu"]
    names = {"messages": "resent by Messages", "chat": "resent by Chat Completions"}
    for mode in ("resent", "resent and stored", "messages", "chat"):
        parsed = figures["ms"].get(f"parsing: {mode}", figures["ms"]["parsing: resent"])
        parsing = statistics.median(parsed["cpu"])
        more = added({"this": figures["ms"][mode]["cpu"], "chained": chained}, "this", without="chained")
        history = f"{figures['tokens']:,} tokens of history {names.get(mode, mode)}"
        lines.append(
            Budget(
                f"HTTP, {history}, against a chained turn; without parsing",
                f"≤ {figures['budget_ms']:g} ms of CPU",
                f"{more - parsing:.2f} ms of CPU, and {parsing:.2f} to parse it",
                more - parsing <= figures["budget_ms"],
                "resent_history",
            )
        )
    return lines


def show(budgets: list[Budget]) -> None:
    from rich.console import Console
    from rich.table import Table

    colours = {True: "green", False: "red", None: "yellow"}
    table = Table("budget", "at most, or at least", "measured: median (range)", "", title="Budgets")
    for each in budgets:
        table.add_row(each.what, each.budget, each.measured, f"[{colours[each.met]}]{each.verdict}[/]")
    Console().print(table)
    met = sum(each.met is True for each in budgets)
    print(f"{met} of {len(budgets)} met")


if __name__ == "__main__":
    show(all_budgets())
