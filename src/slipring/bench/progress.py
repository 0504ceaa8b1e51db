"""Shows the progress of a bench on standard error."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slipring.bench import results
from slipring.bench.client.redaction import strip_controls
from slipring.bench.measure.modes import Mode
from slipring.bench.workloads.plan import Plan


class ProgressBar:
    """Shows a bar for each workload on a terminal, and prints a line for each otherwise."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def workload_started(self, plan: Plan, modes: list[Mode], repeats: int) -> None:
        name = plan.workload.name
        self._task = self._progress.add_task(name, total=len(modes) * repeats, now="")
        if not self._console.is_terminal:
            names = ", ".join(mode.name for mode in modes)
            print(f"{name}: {repeats} × {names} …", file=sys.stderr, flush=True)

    def loop_started(self, mode: Mode, repeat: int) -> None:
        assert self._task is not None
        self._progress.update(self._task, now=mode.name)

    def loop_finished(self, mode: Mode, loops: list[results.LoopResult]) -> None:
        """Print the first fault or error of the loops, if any."""
        assert self._task is not None
        self._progress.advance(self._task)
        for loop in loops:
            if reasons := [*loop.faults, *([loop.error] if loop.error is not None else [])]:
                reason = escape(strip_controls(reasons[0]))
                self._console.print(f"[red]{escape(mode.name)}: {reason}[/red]")
                return
