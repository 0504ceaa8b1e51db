"""The line on a terminal that shows how far a bench is."""

from typing import Any

from slipring.base.progress_line import ProgressLine, bar
from slipring.commands.bench.measure.modes import Mode
from slipring.commands.bench.results import LoopResult
from slipring.commands.bench.workloads.plan import Plan


class BenchProgress(ProgressLine):
    """Counts the loops of a workload, and the turns of a loop."""

    def __init__(self, **line: Any) -> None:
        super().__init__(**line)
        self._name = self._now = ""
        self._done = self._total = self._turns = 0

    def endpoint_opened(self) -> None:
        self.show("trying the modes")

    def workload_started(self, plan: Plan, modes: list[Mode], repeats: int) -> None:
        self._name, self._turns = plan.workload.name, len(plan.steps)
        self._done, self._total = 0, len(modes) * repeats
        self._show("")

    def loop_started(self, mode: Mode, repeat: int) -> None:
        self._now = mode.name
        self._show(mode.name)

    def turn_finished(self, number: int) -> None:
        self._show(f"{self._now}, turn {number} of {self._turns}")

    def loop_finished(self, mode: Mode, loops: list[LoopResult]) -> None:
        """Report the first fault or error of the loops, if any."""
        self._done += 1
        for loop in loops:
            if reasons := [*loop.faults, *([loop.error] if loop.error is not None else [])]:
                self.report(f"{mode.name}: {reasons[0]}")
                return

    def _show(self, now: str) -> None:
        self.show(f"{self._name} {bar(self._done, self._total)} {now}".rstrip())
