"""What the measurements share: server processes, their CPU and memory, and how figures are kept.

Only loopback is used, all loops are bounded, and every process started here is ended here, by its id.
"""

import contextlib
import json
import operator
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

from slipring.bench.subject import machine

RESULTS = Path(__file__).parent / "results"
_NUMBERS = re.compile(r"\[[\s\d.,eE+-]+\]")
"""A list of numbers in a kept file: one line, however long."""
EXCHANGE_KB = 3.5
"""What a call and its output bring, in the loops of `engine_overhead.py`."""


class Process:
    """A server in a process of its own, and what it costs."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.pid = process.pid
        self.url = url

    def cpu_s(self) -> float:
        """CPU time that all its threads have used, to the nanosecond that the kernel keeps."""
        spent = 0
        for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                spent += int(path.read_text().split()[0])
        return spent / 1e9

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def started(*command: str) -> Iterator[Process]:
    """A child process that prints its URL within its first lines; ended with the block."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()} before it served")
        yield Process(process, found.group())
    finally:
        process.terminate()
        process.communicate(timeout=30)


def slipring(engine: str, *flags: str) -> "contextlib.AbstractContextManager[Process]":
    return started("-m", "slipring", "serve", "--port", "0", "--store", "memory", "--engine", engine, *flags)


class Loop:
    """An agent's end of a socket: sends creates, reads answers to their end."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws

    async def turn(self, **create: Any) -> tuple[dict[str, Any], list[str]]:
        """One response: its object, and every frame that came."""
        await self._ws.send_str(json.dumps({"type": "response.create", **create}))
        frames = []
        while True:
            frames.append(frame := await self._ws.receive_str())
            if frame.startswith(
                ('{"type":"response.completed"', '{"type":"response.failed"', '{"type":"error"')
            ):
                event = json.loads(frame)
                if event["type"] != "response.completed":
                    raise RuntimeError(frame)
                return event["response"], frames


@contextlib.asynccontextmanager
async def connected(url: str) -> Any:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/responses", max_msg_size=0) as ws:
        yield Loop(ws)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, with the range that the repeats covered."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def added(figures: Mapping[str, Sequence[float]], *taken: str, without: str) -> float:
    """What a turn takes more than its counterpart: the median over the pairs. The two of a pair follow each
    other at once, so that a machine that slows down or speeds up on the way does so for both."""
    columns = [*(figures[name] for name in taken), [-each for each in figures[without]]]
    return statistics.median(map(sum, zip(*columns, strict=True)))


def growth(lengths: Mapping[int, Mapping[str, Sequence[float]]], turns: int) -> float:
    """How much more CPU slipring takes for a turn with every 10 kB of history, without what making ids takes
    in the client beside it: the median over the pairs of loops that followed each other, after the fewest
    exchanges and after the most."""
    fewest, most = min(lengths), max(lengths)
    loops = {
        before: [added(each, "cpu", without="tokenizing") for each in _loops(lengths[before], turns)]
        for before in (fewest, most)
    }
    more = statistics.median(map(operator.sub, loops[most], loops[fewest]))
    return more / ((most - fewest) * EXCHANGE_KB / 10)


def _loops(figures: Mapping[str, Sequence[float]], turns: int) -> list[dict[str, Sequence[float]]]:
    """The figures of each loop of so many turns."""
    count = min(map(len, figures.values())) // turns
    return [
        {name: values[loop * turns : (loop + 1) * turns] for name, values in figures.items()}
        for loop in range(count)
    ]


def keep(name: str, figures: dict[str, Any]) -> None:
    """Keep the raw figures with what they were measured on."""
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
