"""Measures the coding loop over an engine's own endpoints and over servers in front of the same process.

    python benchmarks/peers/engines.py vllm [--repeats 5] [--turns 25]
    python benchmarks/peers/engines.py llama-server

In each repeat every way runs once alone and once as four loops at a time, and each repeat begins with another
way, so that other load on the machine affects all of them. The records are written to
``benchmarks/results/engines``; ``benchmarks/page.py`` shows them.
"""

import argparse
import asyncio
import itertools
import json
import platform
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
from comparison import OWN, RESULTS, WITH_SESSIONS, Measured, Plan, Record
from loops import Count, Loop, Wrong, run
from servers import AGENTIC, ENGINES, LOOPS_AT_ONCE, MODEL, Server, agentic, installed, slipring_over
from tokenizers import Tokenizer

from slipring.commands.bench.subject import machine
from slipring.commands.bench.subject.processes import Meter

DIRECT = {"vllm": ("full", "chat", "chained"), "llama-server": ("full", "chat")}
"""Ways over the engine's own endpoints. llama-server has no state of responses."""
IN_FRONT = {
    OWN: ("full", "chained", "websocket"),
    WITH_SESSIONS: ("websocket",),
    "agentic-api": ("full", "chained", "websocket"),
}


class Processes:
    """The CPU time of a server and of the engine behind it."""

    def __init__(self, server: Server) -> None:
        self._meters = {
            OWN if each.name.startswith(OWN) else each.name: Meter(each.pid)
            for each in (server, server.behind)
            if each is not None
        }

    def cpu_ms(self) -> dict[str, float]:
        """CPU time by process. vLLM computes in a child of the process that serves its API."""
        spent = {name: meter.cpu_ms() for name, meter in self._meters.items()}
        if "vllm" in spent:
            served = own_cpu_ms(self._meters["vllm"].pid)
            spent |= {"vllm": served, "vllm's engine": spent["vllm"] - served}
        return spent


def own_cpu_ms(pid: int) -> float:
    """The CPU time of a process without its children."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e6


def measure(server: Server, way: str, at_once: int, plan: Plan, count: Count) -> Measured:
    loops = [Loop(server, plan, secrets.token_hex(8), number, count) for number in range(at_once)]
    measured = Measured(server.name, way, at_once, 0)
    processes = Processes(server)
    before = processes.cpu_ms()
    try:
        measured.wall_ms = asyncio.run(run(way, loops))
        measured.turns = [loop.turns for loop in loops]
    except Wrong as error:
        measured.wrong = str(error)
    measured.cpu_ms = {name: spent - before[name] for name, spent in processes.cpu_ms().items()}
    return measured


def counter() -> Count:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--output-bytes", type=int, default=3_500, help="size of a tool's output")
    parser.add_argument("--answer-tokens", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine")
    given = parser.parse_args()
    plan = Plan(given.turns, given.output_bytes, given.answer_tokens)
    count = counter()
    record = Record(
        engine=given.engine,
        when=machine.now(),
        machine=machine.machine(),
        versions=machine.versions(),
        plan=plan,
        repeats=given.repeats,
        threads=given.threads,
        measured=[],
    )
    with ExitStack() as running:
        engine = running.enter_context(ENGINES[given.engine](given.threads))
        servers = [engine, running.enter_context(slipring_over(engine))]
        if given.engine == "vllm":
            servers.append(running.enter_context(slipring_over(engine, WITH_SESSIONS, "on")))
            if installed("agentic-api") == AGENTIC:
                servers.append(running.enter_context(agentic(engine)))
            else:
                where = f"{platform.system()} on {platform.machine()}"
                record.left_out["agentic-api"] = f"agentic-api {AGENTIC} is not installed (this is {where})"
                print(record.left_out["agentic-api"], file=sys.stderr)
        for server in servers:
            record.versions |= server.versions
        pairs = [
            (server, way)
            for server in servers
            for way in (IN_FRONT[server.name] if server.behind is not None else DIRECT[given.engine])
        ]
        # What engines and servers do once only, such as compiling, is not measured.
        for server, way in pairs:
            warm = measure(server, way, 1, msgspec.structs.replace(plan, turns=2), count)
            print(f"warm: {server.name} {way} {warm.wrong or ''}", file=sys.stderr, flush=True)
        wrong: set[tuple[str, str]] = set()
        for repeat in range(given.repeats):
            first = repeat % len(pairs)
            for (server, way), at_once in itertools.product(
                pairs[first:] + pairs[:first], (1, LOOPS_AT_ONCE)
            ):
                if (server.name, way) in wrong:
                    continue
                each = measure(server, way, at_once, plan, count)
                each.repeat = repeat
                record.measured.append(each)
                if each.wrong:
                    wrong.add((server.name, way))
                print(
                    f"{repeat + 1} of {given.repeats}: {server.name} {way}, {at_once} at once:"
                    f" {each.wrong or f'{each.wall_ms / 1e3:.2f} s'}",
                    file=sys.stderr,
                    flush=True,
                )
    RESULTS.mkdir(parents=True, exist_ok=True)
    written = json.dumps(msgspec.to_builtins(record), separators=(",", ":"))
    (RESULTS / f"{given.engine}.json").write_text(written + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
