"""Runs benches in this process."""

from pathlib import Path
from typing import Any

from slipring.commands.bench.command import Bench, BenchProgress
from slipring.commands.bench.measure.modes import MODES, Mode
from slipring.commands.bench.options import BenchOptions
from slipring.commands.bench.results import BenchRecord, Workload
from slipring.commands.bench.subject.endpoint import Target
from slipring.commands.bench.workloads.plan import Plan, PlanStep, message

TOOL = {
    "type": "function",
    "name": "read_file",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}


class Watching(BenchProgress):
    """Records the order of loops."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, str]] = []

    def loop_started(self, mode: Mode, repeat: int) -> None:
        super().loop_started(mode, repeat)
        self.order.append((repeat, mode.name))


def tiny(calls: int = 2, task: str = "Fix it.", **fields: Any) -> Plan:
    """A plan with a few calls and an answer."""
    return Plan(
        workload=Workload(name="tiny", title="Tiny", about="a few turns", turns=calls + 1),
        instructions="Be brief.",
        tools=[TOOL],
        steps=[
            PlanStep(messages=[message(task)], needs="call"),
            *(
                PlanStep(outputs=[f"output {number}"], needs="call" if number < calls - 1 else "text")
                for number in range(calls)
            ),
        ],
        **fields,
    )


async def measured(
    url: str,
    *,
    modes: tuple[str, ...] = tuple(MODES),
    plan: Plan | None = None,
    observer: Watching | None = None,
    max_output_tokens: int | None = None,
    **settings: Any,
) -> BenchRecord:
    """Run a bench against a URL; returns its record."""
    options = BenchOptions(
        target=Target(url=url, timeout_s=60, max_output_tokens=max_output_tokens),
        modes=modes,
        **{"repeats": 1, "lanes": 3, "tool_choice": "auto", **settings},
    )
    bench = Bench(options, [plan or tiny()], observer or Watching())
    await bench.run()
    return bench.record


def faults(record: BenchRecord) -> list[str]:
    return [wrong for loop in record.loops for wrong in loop.faults]


def recording(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path
