"""What a bench shows: progress on standard error while it runs, tables on standard output at its end."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slipring.bench import results
from slipring.bench.modes import Mode
from slipring.bench.report.conditions import repeats
from slipring.bench.report.table import render
from slipring.bench.results import Record
from slipring.bench.sayings import plain
from slipring.bench.statistics import summarise
from slipring.bench.workloads.plan import Plan

_PLAIN_WIDTH = 150
"""Of a table that goes to a file or a pipe, where nobody can make the window wider."""

_WIDE = 124
_DISTURBING_CORES = 0.2


class Progressing:
    """A bar for each workload, on a terminal; a line for each elsewhere."""

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

    def __enter__(self) -> "Progressing":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, plan: Plan, modes: list[Mode], repeats: int) -> None:
        name = plan.workload.name
        self._task = self._progress.add_task(name, total=len(modes) * repeats, now="")
        if not self._console.is_terminal:
            names = ", ".join(mode.name for mode in modes)
            print(f"{name}: {repeats} × {names} …", file=sys.stderr, flush=True)

    def loop(self, mode: Mode, repeat: int) -> None:
        assert self._task is not None
        self._progress.update(self._task, now=mode.name)

    def done(self, mode: Mode, loops: list[results.Loop]) -> None:
        assert self._task is not None
        self._progress.advance(self._task)
        for loop in loops:
            for said in [*loop.wrongs, *([loop.error] if loop.error is not None else [])][:1]:
                self._console.print(f"[red]{escape(mode.name)}: {escape(plain(said))}[/red]")
                return


def show(record: Record) -> None:
    """The whole record, in tables."""
    console = wide_console()
    console.print(render(record, is_wide=console.width >= _WIDE))
    for line in _remarks(record):
        console.print(line)


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def simulation(endpoint: results.Endpoint) -> str:
    """What is simulated, where anything is."""
    assert endpoint.tokens_per_s is not None
    speed = f"{endpoint.tokens_per_s:g} tokens/s" if endpoint.tokens_per_s else "unlimited"
    tokens = "" if "vocabulary=" in (endpoint.engine or "") else ", and nothing is tokenized"
    return f"Only the decoding speed is simulated ({speed}){tokens}; the prefix cache is on for every mode."


def bystander_remarks(others_cores: float | None, machine: results.Machine) -> list[str]:
    """A machine that is busy with other things measures these, too."""
    if others_cores is None or others_cores < _DISTURBING_CORES:
        return []
    return [
        f"[yellow]Other processes took {others_cores:.1f} of {machine.cores} cores meanwhile: figures of a"
        " busy machine say little.[/yellow]"
    ]


def _remarks(record: Record) -> list[str]:
    settings = record.settings
    return [
        f"Medians of {repeats(record, summarise(record))}; tools take {settings.tool_ms:g} ms, not counted;"
        f" {settings.rtt_ms:g} ms of round trip were added.",
        *bystander_remarks(record.others_cores, record.machine),
    ]
