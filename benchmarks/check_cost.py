"""Measures what safety checks cost a server.

The times are from servers that run the same turns side by side, so that changes of the machine's speed affect
all:

- the CPU time per turn without checks, with one that follows and with one that holds;
- the same with a check that holds, for chains of 2,000 and of 150,000 tokens, and how much more that is than
  without a check;
- how often a check is called in such a turn, and about how many bytes, for chains and for clients that send
  the whole history: these must not depend on its length, and the command fails if they do;
- the time to the first delta with an engine that needs 60 ms for its first token, without checks and with one
  that takes 50 ms.

    python benchmarks/check_cost.py
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from common import Loop, Process, connected, keep, slipring, spread

QUICK = "simulated:tokens_per_s=0,output_tokens={tokens},digest=true"
"""Its answers differ: a check is not asked twice about the same text."""
SLOW = "simulated:tokens_per_s=0,output_tokens=5,ttft_ms=60"
SHORT, LONG = 2_000, 150_000
"""Tokens of a chain. The simulated engine counts a word as one."""
COUNTED_TURNS = 10
_CHECK = """
[[check]]
name = "bench"
source = "python:check_cost:check"
settings = {{ wait_ms = {wait_ms}, asked = "{asked}", thread = false }}
action = "{action}"
mode = "{mode}"
subjects = {subjects}
"""

_CHECKED = {"wait_ms": 0, "asked": "", "action": "block", "mode": "hold", "subjects": '["input", "output"]'}


def check(wait_ms: float = 0, asked: str = "") -> Callable[[Any], Awaitable[bool]]:
    """The factory of the check that the servers run: it lets everything pass, after this time, and notes how
    many bytes it was asked about in the file ``asked``."""
    notes = open(asked, "a", buffering=1) if asked else None  # noqa: SIM115

    async def inspect(subject: Any) -> bool:
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
        if notes is not None:
            notes.write(f"{len(subject.text.encode())}\n")
        return False

    return inspect


class Servers:
    """Servers that differ in their checks, with a socket to each."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self.processes: dict[str, Process] = {}
        self.loops: dict[str, Loop] = {}

    async def start(self, name: str, engine: str, **checked: object) -> None:
        flags: tuple[str, ...] = ()
        if checked:
            path = self._directory / f"{name.replace(' ', '-')}.toml"
            path.write_text(_CHECK.format(**{**_CHECKED, **checked}))
            flags = ("--config", str(path))
        # A socket that waits while the others run answers no pings.
        server = slipring(engine, "--log-level", "warning", "--ping-interval-s", "0", *flags)
        process = await asyncio.to_thread(self._stack.enter_context, server)
        self.processes[name] = process
        self.loops[name] = await self._stack.enter_async_context(connected(process.url))


async def run_loop(loop: Loop, turns: int, first: str = "go on") -> str:
    """A chain of turns; returns the id of its last response."""
    after: dict[str, str] = {}
    for number in range(turns):
        text = f"{first if not after else 'go on'} {time.monotonic_ns()} {number}"
        response, _ = await loop.turn(model="simulated", input=text, store=False, **after)
        after = {"previous_response_id": response["id"]}
    return after["previous_response_id"]


async def continue_loop(loop: Loop, turns: int, previous: str) -> str:
    for _ in range(turns):
        text = f"go on {time.monotonic_ns()}"
        response, _ = await loop.turn(
            model="simulated", input=text, store=False, previous_response_id=previous
        )
        previous = response["id"]
    return previous


async def by_mode(servers: Servers, turns: int, rounds: int) -> dict[str, list[float]]:
    """CPU time per turn in µs, by the mode of the check."""
    modes = ("off", "follow", "hold")
    costs: dict[str, list[float]] = {mode: [] for mode in modes}
    for number in range(rounds + 1):
        for mode in modes:
            process = servers.processes[mode]
            before = process.cpu_s()
            await run_loop(servers.loops[mode], turns)
            if number:  # the first round warms all up
                costs[mode].append((process.cpu_s() - before) / turns * 1e6)
        print(f"modes: round {number} of {rounds}", file=sys.stderr, flush=True)
    return costs


async def by_history(servers: Servers, turns: int, rounds: int) -> dict[str, list[float]]:
    """CPU time per turn in µs with a check that holds, and without any, by the length of the chain."""
    costs: dict[str, list[float]] = {}
    chains: dict[tuple[str, int], str] = {}
    for mode in ("off", "hold"):
        for tokens in (SHORT, LONG):
            chains[mode, tokens] = await run_loop(servers.loops[mode], 1, "word " * tokens)
            costs[f"{mode} {tokens}"] = []
    for number in range(rounds + 1):
        for (mode, tokens), previous in chains.items():
            process = servers.processes[mode]
            before = process.cpu_s()
            await continue_loop(servers.loops[mode], turns, previous)
            if number:
                costs[f"{mode} {tokens}"].append((process.cpu_s() - before) / turns * 1e6)
        print(f"histories: round {number} of {rounds}", file=sys.stderr, flush=True)
    return costs


class Asked(NamedTuple):
    """What a check was asked in one turn."""

    calls: int
    inspected_bytes: int


def read_sizes(notes: Path) -> list[int]:
    """How many bytes each call of the check was about."""
    return [int(size) for size in notes.read_text().split()]


async def asked_by_history(servers: Servers, notes: Path, turns: int) -> dict[str, list[Asked]]:
    """What the check is asked in each turn, by the length of the history and the way in which it is sent."""
    loop, found = servers.loops["counted"], {}
    for tokens in (SHORT, LONG):
        begun = "word " * tokens
        previous = await run_loop(loop, 1, begun)
        history: list[dict[str, Any]] = [{"role": "user", "content": f"{begun} {tokens}"}]
        response, _ = await loop.turn(model="simulated", input=history, store=False)
        history += response["output"]
        for how in ("chain", "resent"):
            each: list[Asked] = []
            for number in range(turns):
                already = len(await asyncio.to_thread(read_sizes, notes))
                text = f"go on {tokens:07d} {number:03d}"
                if how == "chain":
                    continued: dict[str, Any] = {"input": f"{text}!", "previous_response_id": previous}
                else:
                    history.append({"role": "user", "content": f"{text}?"})
                    continued = {"input": history}
                response, _ = await loop.turn(model="simulated", store=False, **continued)
                previous = response["id"]
                history += response["output"] if how == "resent" else []
                sizes = (await asyncio.to_thread(read_sizes, notes))[already:]
                each.append(Asked(len(sizes), sum(sizes)))
            found[f"{how} {tokens}"] = each
        print(f"counts: {tokens} tokens", file=sys.stderr, flush=True)
    return found


async def first_delta_ms(ws: aiohttp.ClientWebSocketResponse) -> float:
    """The time from a create to its first delta of text."""
    text = f"hello {time.monotonic_ns()}"
    frame = json.dumps({"type": "response.create", "model": "simulated", "input": text, "store": False})
    begun, first = time.perf_counter(), 0.0
    await ws.send_str(frame)
    while True:
        received = await ws.receive_str()
        if not first and received.startswith('{"type":"response.output_text.delta"'):
            first = time.perf_counter()
        if received.startswith('{"type":"response.completed"'):
            return (first - begun) * 1000


async def beside(servers: Servers, turns: int) -> dict[str, list[float]]:
    """Milliseconds to the first delta, of turns that run in pairs."""
    times: dict[str, list[float]] = {"without a check": [], "with a check": []}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        sockets = {
            name: await stack.enter_async_context(
                http.ws_connect(f"{servers.processes[name].url}/responses", max_msg_size=0)
            )
            for name in times
        }
        for number in range(turns + 3):
            for name, ws in sockets.items():
                taken = await first_delta_ms(ws)
                if number >= 3:
                    times[name].append(taken)
    return times


async def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[Any]]]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = Servers(stack, directory)
        quick = QUICK.format(tokens=arguments.tokens)
        await servers.start("off", quick)
        await servers.start("follow", quick, action="cut", mode="follow")
        await servers.start("hold", quick, action="block")
        notes = directory / "asked"
        await servers.start("counted", quick, asked=str(notes))
        await servers.start("without a check", SLOW)
        await servers.start("with a check", SLOW, wait_ms=50, subjects='["input"]')
        return {
            "cpu_us_by_mode": await by_mode(servers, arguments.turns, arguments.rounds),
            "cpu_us_by_history": await by_history(servers, arguments.turns, arguments.rounds),
            "asked_by_history": await asked_by_history(servers, notes, COUNTED_TURNS),
            "first_delta_ms": await beside(servers, arguments.pairs),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50, help="of each answer")
    parser.add_argument("--turns", type=int, default=200, help="of each loop")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=100, help="of turns with and without a slow check")
    arguments = parser.parse_args()
    # The servers import the check from this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    )
    load_before = os.getloadavg()[0]
    found = asyncio.run(measure(arguments))
    load = (load_before, os.getloadavg()[0])
    modes, histories, firsts = found["cpu_us_by_mode"], found["cpu_us_by_history"], found["first_delta_ms"]
    ratios = {
        mode: [one / off for one, off in zip(modes[mode], modes["off"], strict=True)]
        for mode in ("follow", "hold")
    }
    growth = [
        long / short
        for long, short in zip(histories[f"hold {LONG}"], histories[f"hold {SHORT}"], strict=True)
    ]
    checks_us = {
        f"{tokens}": [
            checked - plain
            for checked, plain in zip(histories[f"hold {tokens}"], histories[f"off {tokens}"], strict=True)
        ]
        for tokens in (SHORT, LONG)
    }
    added = [
        one - other for one, other in zip(firsts["with a check"], firsts["without a check"], strict=True)
    ]
    print(f"server CPU per turn with answers of {arguments.tokens} tokens")
    for mode, values in modes.items():
        print(f"  {mode:<8} {statistics.median(values):6.0f} µs")
    for mode, each in ratios.items():
        print(f"  {mode} / off: {statistics.median(each):.2f} × ({min(each):.2f} to {max(each):.2f})")
    for name, values in histories.items():
        print(f"  chain, {name} tokens: {statistics.median(values):6.0f} µs")
    print(f"  hold, long / short: {statistics.median(growth):.2f} × ({min(growth):.2f} to {max(growth):.2f})")
    for tokens, values in checks_us.items():
        median, least, most = statistics.median(values), min(values), max(values)
        print(f"  a check adds, {tokens} tokens: {median:6.0f} µs ({least:.0f} to {most:.0f})")
    for name, each in found["asked_by_history"].items():
        calls, sizes = (sorted({*column}) for column in zip(*each, strict=True))
        print(f"  asked in a turn, {name} tokens: {calls} calls, {sizes} bytes")
    print(f"first delta, a check of 50 ms behind 60 ms: {statistics.median(added):+.2f} ms (median of pairs)")
    print(f"load of the machine {load[0]:.1f} to {load[1]:.1f}")
    keep(
        "check_cost",
        {
            "tokens": arguments.tokens,
            "turns": arguments.turns,
            "histories": [SHORT, LONG],
            "load": load,
            **found,
            "ratios": {
                **{mode: spread(each) for mode, each in ratios.items()},
                "long / short": spread(growth),
            },
            "checks_us": {tokens: spread(each) for tokens, each in checks_us.items()},
            "added_ms": spread(added),
        },
    )
    asked = found["asked_by_history"]
    if any(asked[f"{how} {SHORT}"] != asked[f"{how} {LONG}"] for how in ("chain", "resent")):
        sys.exit("what the check is asked depends on the length of the history")


if __name__ == "__main__":
    main()
