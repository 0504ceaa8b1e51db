"""Measures agent loops at once over one vLLM: over its own endpoints, and over servers in front of it.

    python benchmarks/many_agents.py --shape small --vllm-python /path/to/the/python/of/vllm   # a GPU
    python benchmarks/many_agents.py --shape tiny                                              # the CPU build
    python benchmarks/many_agents.py --shape small --pressure …      # contexts that do not fit the KV cache

`python benchmarks/peers/setup.py --only vllm agentic-api` installs the CPU build and agentic-api. Each shape
is a model with random weights. Every way runs with each number of loops at once, and again with pauses
between turns, as tools make them. The record is written after each cell, so that a run that is stopped leaves
one, and cells that it has are not measured again. `page.py` shows the records of `results/agents`.

``--pressure`` gives vLLM a KV cache that cannot hold the contexts of all loops, and runs slipring with and
without its schedule. The engine's counters and the state of its cache are kept with each cell.
"""

import argparse
import asyncio
import contextlib
import functools
import multiprocessing
import os
import re
import secrets
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).with_name("peers")))

from agents_record import RESULTS, Cell, Pauses, Record, Run, decode, run_of, write
from comparison import OWN, SESSIONS_UNSCHEDULED, UNSCHEDULED, WITH_SESSIONS, Measured, Plan, Turn
from engines import Processes, own_cpu_ms
from loops import Loop, Wrong, run
from model import LARGE, SMALL, TINY, Shape, write_vocabulary
from plugin_client import PATH
from servers import (
    AGENTIC_PROGRAM,
    CONTEXT,
    DIRECTORY,
    ON_CPU,
    VLLM_PYTHON,
    Server,
    agentic,
    cpu_environment,
    running_vllm,
    slipring_over,
    vllm_with,
)
from tokenizers import Tokenizer

from slipring.commands.bench.subject import machine

WAYS = {
    "vllm": ("chat", "full"),
    "agentic-api": ("websocket",),
    OWN: ("resent", "websocket"),
    WITH_SESSIONS: ("resent", "websocket"),
}
"""The ways in which each server is used."""
UNDER_PRESSURE = {
    "vllm": ("chat",),
    UNSCHEDULED: ("websocket",),
    SESSIONS_UNSCHEDULED: ("websocket",),
    OWN: ("websocket",),
    WITH_SESSIONS: ("websocket",),
}
"""Those where contexts do not fit."""
AT_ONCE = (1, 4, 16, 64)
_START_S = 1.0
"""How long the processes of the client have to make ready."""


class Setting(NamedTuple):
    """A model, and how vLLM serves it."""

    shape: Shape
    flags: tuple[str, ...]
    at_once: tuple[int, ...]
    plan: Plan
    env: dict[str, str]
    pressure: "Pressure"
    turns: dict[int, int]
    """Of each loop, for so many loops at once that the KV cache would not hold those of the plan."""


class Pressure(NamedTuple):
    """Loops whose contexts do not fit the cache together."""

    blocks: int
    """Of 16 tokens each, which the KV cache has."""
    at_once: int
    turns: int


_CALLS = ("--tool-call-parser", "hermes")
SETTINGS = {
    "tiny": Setting(
        TINY,
        ("--dtype", "float32", "--max-num-seqs", "32", *ON_CPU, *_CALLS),
        (1, 4, 16),
        Plan(12, 3_500, 20),
        cpu_environment(1, 2),
        Pressure(2_200, 10, 8),
        {},
    ),
    "small": Setting(
        SMALL,
        ("--max-num-seqs", "256", *_CALLS),
        AT_ONCE,
        Plan(20, 9_000, 60),
        {},
        Pressure(75_000, 64, 20),
        {},
    ),
    "7b": Setting(
        LARGE,
        ("--max-num-seqs", "256", "--load-format", "dummy", *_CALLS),
        AT_ONCE,
        Plan(20, 9_000, 60),
        {},
        Pressure(25_000, 48, 12),
        {64: 8},
    ),
}
"""`7b` has no file of weights: vLLM makes some up."""


def model_of(setting: Setting, given: argparse.Namespace) -> Path:
    """The directory of a model, written if need be."""
    directory = DIRECTORY / f"agents-{given.shape}"
    if not (directory / "tokenizer.json").exists():
        write_vocabulary(directory, CONTEXT, shape=setting.shape)
    if "dummy" not in setting.flags and not (directory / "model.safetensors").exists():
        script = Path(__file__).parent / "peers" / "weights.py"
        subprocess.run([str(given.vllm_python), str(script), str(directory)], check=True)
    return directory


class Clients:
    """Processes that run loops, several, so that one core is not what is measured."""

    def __init__(self, pool: ProcessPoolExecutor, amount: int) -> None:
        self.amount = amount
        self._pool = pool
        before = set(multiprocessing.active_children())
        list(pool.map(abs, range(amount)))  # starts a process for each
        self._processes = set(multiprocessing.active_children()) - before
        assert len(self._processes) == amount

    def run(self, parts: "list[Part]") -> "list[Ended]":
        return list(self._pool.map(run_part, parts))

    def cpu_ms(self) -> float:
        return sum(own_cpu_ms(process.pid or 0) for process in self._processes)


@contextlib.contextmanager
def clients() -> Iterator[Clients]:
    """A quarter of the cores, at most four."""
    amount = max(1, min(4, (os.cpu_count() or 1) // 4))
    with ProcessPoolExecutor(amount, multiprocessing.get_context("spawn")) as pool:
        yield Clients(pool, amount)


class Part(NamedTuple):
    """The loops that one process runs."""

    server: Server
    way: str
    plan: Plan
    names: dict[int, str]
    """By their number."""
    vocabulary: Path
    begin_at: float
    most_s: float


class Ended(NamedTuple):
    """What became of a part."""

    at: float
    """When its last loop ended, by a clock that all processes share."""
    turns: list[list[Turn]]
    loops_ms: list[float]
    wrong: str | None


def run_part(part: Part) -> Ended:
    count = counter(part.vocabulary)
    loops = [Loop(part.server, part.plan, name, number, count) for number, name in part.names.items()]

    async def limited() -> None:
        async with asyncio.timeout(part.most_s):
            await run(part.way, loops)

    time.sleep(max(0.0, part.begin_at - time.monotonic()))
    wrong = None
    try:
        asyncio.run(limited())
    except TimeoutError:
        wrong = f"stopped: more than {part.most_s:.0f} s"
    except Wrong as error:
        wrong = str(error)
    took = [loop.took_ms for loop in loops if loop.took_ms]
    return Ended(time.monotonic(), [loop.turns for loop in loops], took, wrong)


@functools.lru_cache(maxsize=1)
def counter(vocabulary: Path) -> "functools._lru_cache_wrapper[int]":
    tokenizer = Tokenizer.from_file(str(vocabulary))

    @functools.lru_cache(maxsize=1000)
    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def measure(clients: Clients, server: Server, cell: Cell, vocabulary: Path, most_s: float) -> Measured:
    """Run the loops of a cell."""
    amount = min(clients.amount, cell.at_once)
    names = [(number, secrets.token_hex(8)) for number in range(cell.at_once)]
    processes = Processes(server)
    before, client_before = processes.cpu_ms(), clients.cpu_ms()
    begin_at = time.monotonic() + _START_S
    ended = clients.run(
        [
            Part(server, cell.way, cell.plan, dict(names[first::amount]), vocabulary, begin_at, most_s)
            for first in range(amount)
        ]
    )
    measured = Measured(server.name, cell.way, cell.at_once, 0)
    measured.wall_ms = (max(part.at for part in ended) - begin_at) * 1e3
    measured.turns = [turns for part in ended for turns in part.turns]
    measured.loops_ms = [ms for part in ended for ms in part.loops_ms]
    measured.wrong = next((part.wrong for part in ended if part.wrong), None)
    measured.cpu_ms = {name: spent - before[name] for name, spent in processes.cpu_ms().items()}
    measured.cpu_ms["client"] = clients.cpu_ms() - client_before
    return measured


class Watch:
    """What the engine counts during a cell, and what it holds, once a second."""

    _COUNTERS = (
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"),
        *("prompt_tokens_total", "generation_tokens_total"),
    )
    _GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")

    def __init__(self, server: Server) -> None:
        self._engine = server.behind or server
        self._stopped = threading.Event()
        self._before = self._counted()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: dict[str, list[float]] = {}

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def counted(self) -> dict[str, float]:
        """What was counted since it began."""
        return {name: value - self._before[name] for name, value in self._counted().items()}

    def _counted(self) -> dict[str, float]:
        found = metrics(self._engine)
        return {name: found.get(f"vllm:{name}", 0.0) for name in self._COUNTERS} | sessions(self._engine)

    def _sample(self) -> None:
        while not self._stopped.wait(1.0):
            found = {name: value for name, value in metrics(self._engine).items() if name in self._GAUGES}
            for name, value in found.items():
                self.samples.setdefault(name, []).append(round(value, 4))


def metrics(server: Server) -> dict[str, float]:
    """The metrics of a server by name, summed over all labels."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), urllib.request.urlopen(_metrics_url(server), timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if at := re.fullmatch(r"([a-z_:]+)(?:\{.*\})? (\S+)", line):
                found[at[1]] = found.get(at[1], 0.0) + float(at[2])
    return found


def sessions(server: Server) -> dict[str, float]:
    """How many sessions the plugin has opened, and how many turns went on in one."""
    told: dict[str, float] = {}
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}{PATH}", timeout=10) as answer:
        told = msgspec.json.decode(answer.read())
    return {f"sessions_{name}": told.get(name, 0) for name in ("opened", "continued")}


def kv_tokens(server: Server) -> int:
    """What the KV cache of a vLLM holds; 0 if it does not say so."""
    with contextlib.suppress(OSError), urllib.request.urlopen(_metrics_url(server), timeout=10) as answer:
        text = answer.read().decode()
        blocks = re.search(r'cache_config_info\{[^}]*num_gpu_blocks="(\d+)"', text)
        size = re.search(r'cache_config_info\{[^}]*block_size="(\d+)"', text)
        return int(blocks[1]) * int(size[1]) if blocks and size else 0
    return 0


def _metrics_url(server: Server) -> str:
    return f"{server.url.removesuffix('/v1')}/metrics"


def gpu() -> str | None:
    """The GPU of this machine, as its driver names it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--shape", choices=SETTINGS, default="tiny")
    parser.add_argument("--vllm-python", type=Path, default=VLLM_PYTHON, help="the interpreter that has vLLM")
    parser.add_argument("--vllm-path", default="", help="PYTHONPATH of that interpreter")
    parser.add_argument("--vllm-flags", default="", help="further flags of vLLM, separated by spaces")
    parser.add_argument("--vllm-url", help="a vLLM that runs already, with the model of this shape")
    parser.add_argument("--vllm-pid", type=int, default=0, help="its process")
    parser.add_argument("--slipring-options", default="", help="further options of slipring's engine vllm")
    parser.add_argument("--pressure", action="store_true", help="contexts that do not fit the KV cache")
    parser.add_argument("--only-model", action="store_true", help="write the model, and measure nothing")
    parser.add_argument("--agentic", type=Path, default=AGENTIC_PROGRAM, help="agentic-api's server")
    parser.add_argument("--at-once", type=int, nargs="+", help="numbers of loops at once")
    parser.add_argument("--ways", nargs="+", metavar="SERVER:WAY", help="only these ways")
    parser.add_argument("--pauses", choices=("without", "with", "both"), default="both")
    parser.add_argument("--pause-s", type=float, nargs=2, default=(0.3, 3.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--turns", type=int)
    parser.add_argument("--output-bytes", type=int, help="size of a tool's output")
    parser.add_argument("--answer-tokens", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cell-s", type=float, default=150.0, help="a cell that takes longer is stopped")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="no cell is begun after so long")
    parser.add_argument("--out", type=Path, help="the record; else in results/agents")
    options = parser.parse_args(given)
    if options.pressure:
        pressure = SETTINGS[options.shape].pressure
        options.pauses = "with"
        options.at_once = options.at_once or [pressure.at_once]
        options.turns = options.turns or pressure.turns
        options.vllm_flags = f"--num-gpu-blocks-override {pressure.blocks} {options.vllm_flags}"
    return options


def plan_of(given: argparse.Namespace) -> Plan:
    changes = {name: getattr(given, name) for name in ("turns", "output_bytes", "answer_tokens")}
    known = SETTINGS[given.shape].plan
    return msgspec.structs.replace(known, **{name: value for name, value in changes.items() if value})


def asked_cells(given: argparse.Namespace) -> list[Cell]:
    """The cells in the order in which they are measured: few loops first, because they take least."""
    setting, plan = SETTINGS[given.shape], plan_of(given)
    shorter = {} if given.turns else setting.turns
    least, most = given.pause_s
    pauses: dict[str, list[Pauses | None]] = {
        "without": [None],
        "with": [(least, most)],
        "both": [None, (least, most)],
    }
    return [
        Cell(
            *(server, way, amount),
            msgspec.structs.replace(plan, pause_s=pause, turns=shorter.get(amount, plan.turns)),
        )
        for pause in pauses[given.pauses]
        for amount in given.at_once or setting.at_once
        for server, ways in (UNDER_PRESSURE if given.pressure else WAYS).items()
        for way in ways
        if given.ways is None or f"{server}:{way}" in given.ways
    ]


@contextlib.contextmanager
def engine(given: argparse.Namespace, model: Path) -> Iterator[Server]:
    setting = SETTINGS[given.shape]
    if given.vllm_url:
        yield running_vllm(given.vllm_url, given.vllm_pid, model)
        return
    path = {"PYTHONPATH": given.vllm_path} if given.vllm_path else {}
    flags = (*setting.flags, *given.vllm_flags.split())
    with vllm_with(given.vllm_python, model, *flags, **setting.env, **path) as server:
        yield server


_OWN = {
    OWN: ("off", ""),
    WITH_SESSIONS: ("on", ""),
    UNSCHEDULED: ("off", ",scheduling=false"),
    SESSIONS_UNSCHEDULED: ("on", ",scheduling=false"),
}
"""slipring's servers, whether they use sessions, and further options."""


@contextlib.contextmanager
def servers(given: argparse.Namespace, model: Path, named: set[str]) -> Iterator[dict[str, Server]]:
    """vLLM, and those of the named servers that are installed."""
    with ExitStack() as running:
        behind = running.enter_context(engine(given, model))
        started = {"vllm": behind}
        options = f",{given.slipring_options}" if given.slipring_options else ""
        for name in named & _OWN.keys():
            sessions, more = _OWN[name]
            started[name] = running.enter_context(slipring_over(behind, name, sessions, more + options))
        if "agentic-api" in named and given.agentic.exists():
            started["agentic-api"] = running.enter_context(agentic(behind, given.agentic))
        yield started


def main() -> int:
    given = arguments()
    begun, setting = time.monotonic(), SETTINGS[given.shape]
    path = given.out or RESULTS / f"{given.shape}{'-pressure' * given.pressure}.json"
    record = Record(
        shape=given.shape,
        model=setting.shape._asdict(),
        when=machine.now(),
        machine=machine.machine(),
        gpu=gpu(),
        versions=machine.versions(),
        command=f"python benchmarks/many_agents.py --shape {given.shape}{' --pressure' * given.pressure}",
        measured=decode(path).measured if path.exists() else [],
    )
    model = model_of(setting, given)
    if given.only_model:
        return 0
    cells = asked_cells(given)
    with servers(given, model, {cell.server for cell in cells}) as started, clients() as running:
        for name in {cell.server for cell in cells} - started.keys():
            record.left_out[name] = f"{name} is not installed"
        for server in started.values():
            record.versions |= server.versions
        record.kv_tokens = kv_tokens(started["vllm"])
        cells = [cell for cell in cells if cell.server in started]
        vocabulary = model / "tokenizer.json"
        for name, way in dict.fromkeys(cell.key for cell in cells):
            # What engines and servers do once only, such as compiling, is not measured.
            short = Cell(name, way, 2, msgspec.structs.replace(plan_of(given), turns=3))
            warm = measure(running, started[name], short, vocabulary, given.cell_s)
            report(f"warm: {name} {way} {warm.wrong or ''}")
        report(f"ready after {time.monotonic() - begun:.0f} s")
        known = {(run.cell, run.repeat) for run in record.measured}
        for cell, repeat in ((cell, repeat) for repeat in range(given.repeats) for cell in cells):
            left_s = given.budget_s - (time.monotonic() - begun)
            if (cell, repeat) in known or left_s <= 0:
                report(f"left out: {cell.title}, {cell.at_once} at once")
                continue
            server = started[cell.server]
            with Watch(server) as watch:
                each = measure(running, server, cell, vocabulary, min(given.cell_s, left_s))
            each.repeat = repeat
            record.measured.append(
                run_of(each, cell, watch.counted(), watch.samples if given.pressure else {}, record.when)
            )
            write(record, path)
            paused = " with pauses" if cell.plan.pause_s else ""
            report(f"{cell.title}, {cell.at_once} at once{paused}: {summary(record.measured[-1])}")
    return 0


def summary(run: Run) -> str:
    """A line about a cell."""
    loop_s = statistics.fmean(run.loops_ms) / 1e3 if run.loops_ms else 0.0
    hits = 1 - run.prefilled_tokens / max(run.prompt_tokens, 1)
    turns, continued = sum(map(len, run.total_ms)), run.engine.get("sessions_continued", 0)
    return (
        f"{run.wrong or 'right'}, {run.wall_ms / 1e3:.2f} s, {len(run.loops_ms)} loops of {loop_s:.1f} s,"
        f" {turns} turns, {continued:.0f} in open sessions, {hits:.0%} of the tokens cached"
    )


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
