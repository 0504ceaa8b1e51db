"""Shared by the benchmarks: server processes, their CPU and memory, and files of figures.

The benchmarks use only the loopback interface, all loops are bounded, and every process that they start is
ended by its process id.
"""

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from slipring.commands.bench.subject import machine
from slipring.commands.bench.subject.processes import cpu_ns

RESULTS = Path(__file__).parent / "results"
_NUMBERS = re.compile(r"\[[\s\d.,eE+-]+\]")
"""Matches a list of numbers in a results file, to put it on one line."""
EXCHANGE_KB = 3.5
"""Size of a tool call with its output, in the loops of `engine_overhead.py`."""


class Process:
    """A server process, with its CPU time and memory."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid = pid
        self.url = url

    def cpu_s(self) -> float:
        """Return its CPU time, with that of its threads that have ended."""
        return (cpu_ns(self.pid) or 0) / 1e9

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def started(*command: str, env: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Start a child process, which must print its URL in its first lines; end it when the block exits.
    ``env`` replaces its environment."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()} before it served")
        yield Process(process.pid, found.group())
    finally:
        process.terminate()
        process.communicate(timeout=30)


def slipring(engine: str, *flags: str) -> "contextlib.AbstractContextManager[Process]":
    return started("-m", "slipring", "serve", "--port", "0", "--store", "memory", "--engine", engine, *flags)


class Loop:
    """An agent's WebSocket: sends creates and reads the events of each response."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, *endings: str) -> None:
        """``endings``: the events, beside ``response.completed``, with which a response may end."""
        self._ws = ws
        self._endings = ("response.completed", *endings)
        names = (*self._endings, "response.failed", "response.incomplete", "error")
        self._last = tuple(f'{{"type":"{name}"' for name in names)

    async def turn(self, **create: Any) -> tuple[dict[str, Any], list[str]]:
        """Create one response; return its final object and all frames."""
        await self._ws.send_str(json.dumps({"type": "response.create", **create}))
        frames = []
        while True:
            frames.append(frame := await self._ws.receive_str())
            if frame.startswith(self._last):
                event = json.loads(frame)
                if event["type"] not in self._endings:
                    raise RuntimeError(frame)
                return event["response"], frames


@contextlib.asynccontextmanager
async def connected(url: str, *endings: str) -> Any:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/responses", max_msg_size=0) as ws:
        yield Loop(ws, *endings)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and range of the repeats."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def added(figures: Mapping[str, Sequence[float]], *taken: str, without: str) -> float:
    """Return the median difference between a turn and its counterpart. The two of a pair run directly after
    each other, so that a change of the machine's speed affects both."""
    columns = [*(figures[name] for name in taken), [-each for each in figures[without]]]
    return statistics.median(map(sum, zip(*columns, strict=True)))


def growth(lengths: Mapping[int, Mapping[str, Sequence[float]]], turns: int) -> float:
    """Return by how much slipring's CPU time per turn grows with every 10 kB of history, minus the time that
    the direct client takes to create ids: the median over consecutive pairs of loops, with the shortest and
    the longest history."""
    fewest, most = min(lengths), max(lengths)
    loops = {
        before: [added(each, "cpu", without="tokenizing") for each in _loops(lengths[before], turns)]
        for before in (fewest, most)
    }
    more = statistics.median(
        longest - shortest for longest, shortest in zip(loops[most], loops[fewest], strict=False)
    )
    return more / ((most - fewest) * EXCHANGE_KB / 10)


def _loops(figures: Mapping[str, Sequence[float]], turns: int) -> list[dict[str, Sequence[float]]]:
    """Split the figures into loops of ``turns`` turns."""
    count = min(map(len, figures.values())) // turns
    return [
        {name: values[loop * turns : (loop + 1) * turns] for name, values in figures.items()}
        for loop in range(count)
    ]


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write the raw figures to a results file, with a description of the machine."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "benchmark": name,
        "when": machine.now(),
        "machine": msgspec.to_builtins(machine.machine()),
        "versions": machine.versions(),
        **figures,
    }
    written = _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(record, indent=1))
    (RESULTS / f"{name}.json").write_text(written + "\n")


def verdict(ratio: float, budget: float) -> str:
    return f"{ratio:.2f} × (budget ≤ {budget:g} ×: {'met' if ratio <= budget else 'FALLS SHORT'})"


def verdict_ms(figure: float, budget: float) -> str:
    return f"{figure:.2f} ms (budget ≤ {budget:g} ms: {'met' if figure <= budget else 'FALLS SHORT'})"
