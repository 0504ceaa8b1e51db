"""Many loops of agents over KV caches that cannot hold them all: who should wait, and whose context goes?

A simulation of engines in the manner of vLLM (a step brings every running answer one token and prefills a
chunk; finished contexts stay until room is needed, the one used longest ago goes first), of clients that
pause for their tools, and of these rules for the turns:

- ``engine``: every turn is sent at once; the engine serves first come, first served. What people run today.
- ``attained``: of the turns that wait in the engine, that of the program with the least service so far goes
  first, as Autellix proposes.
- ``pinned``: a context is pinned after a call, for a time that weighs its prefill against the time for which
  it holds memory, by what was seen of that tool; programs first come, first served, as Continuum proposes.
- ``slipring``: ``LoopSchedule`` in front of the engine, which evicts as it does.
- ``sessions``: the same, and the contexts of resident loops are sessions, which the engine cannot evict.

``python benchmarks/loop_scheduling.py`` compares them on all traces but ``fleet``: 10,000 loops over 48
replicas. Everything is seeded: the same command prints the same figures.
"""

import argparse
import heapq
import json
import math
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slipring.engines.scheduling.loop_schedule import REVIEW_S, Loop, LoopSchedule, Need, Rules, Turn
from slipring.engines.scheduling.pause_lengths import PauseLengths, kind_of

CHUNK = 8192
"""Tokens that a step prefills at most."""


@dataclass(frozen=True)
class Engine:
    """How fast one replica is, and what it can hold."""

    capacity: int
    prefill_rate: float
    step_s: float
    """One step with one answer."""
    per_answer_s: float
    """What each further answer adds to a step."""
    most_running: int = 256


SMALL = Engine(capacity=1_200_000, prefill_rate=400_000, step_s=0.0016, per_answer_s=0.00002)
LARGE = Engine(capacity=400_000, prefill_rate=45_000, step_s=0.0075, per_answer_s=0.00006)


@dataclass
class Program:
    """One loop: what each turn adds, emits, calls, and how long its tool takes."""

    number: int
    begins_at: float
    turns: list[tuple[int, int, str, float]]
    tenant: str = "one"
    vanishes: bool = False
    """Whether it never comes back after its last turn, and never says so."""
    at: int = 0
    context: int = 0
    served: float = 0.0
    ended_at: float = math.nan
    first_tokens: list[float] = field(default_factory=list)


@dataclass
class Request:
    """A turn at the engine."""

    program: Program
    prompt: int
    output: int
    asked_at: float
    turn: Turn | None = None
    prefill: int = 0
    """Tokens still to be prefilled."""
    left: int = 0
    """Tokens still to be emitted."""
    started_at: float = 0.0
    prefilled: int = 0

    @property
    def size(self) -> int:
        return self.prompt + self.output


class Replica:
    """One engine, advanced from step to step."""

    def __init__(self, engine: Engine, rule: str) -> None:
        self.engine = engine
        self.rule = rule
        self.now = 0.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.cache: OrderedDict[int, int] = OrderedDict()
        """Tokens of finished contexts, by program, the one used longest ago first."""
        self.pinned: dict[int, float] = {}
        """Until when the contexts of programs are pinned."""
        self.pauses = PauseLengths()
        self.paused: dict[int, tuple[float, tuple[str, str]]] = {}
        self.prompt_tokens = self.prefilled_tokens = 0
        self.schedule: LoopSchedule | None = None
        self.asked: dict[Turn, Request] = {}
        if rule in ("slipring", "sessions"):
            rules = Rules(int(engine.capacity * 0.95), engine.most_running)
            self.schedule = LoopSchedule(rules, self._demoted if rule == "sessions" else lambda loop: None)

    def _demoted(self, loop: Loop) -> None:
        self.pinned.pop(int(loop.key), None)

    def ask(self, request: Request, now: float) -> None:
        key = request.program.number
        if key in self.paused:
            since, kind = self.paused.pop(key)
            self.pauses.of(kind).observe(now - since)
        if self.schedule is None:
            self.waiting.append(request)
            return
        turn = self.schedule.ask(request.program.tenant, Need(str(key), request.size), now)
        request.turn = turn
        self.asked[turn] = request

    def review(self, now: float) -> None:
        """Let the schedule's turns through, and start what fits."""
        if self.schedule is not None:
            while (turn := self.schedule.next(now)) is not None:
                self.waiting.append(self.asked.pop(turn))
        if self.rule == "attained":
            self.waiting.sort(key=lambda each: (int(math.log2(1 + each.program.served)), each.asked_at))
        elif self.rule == "pinned":
            self.waiting.sort(
                key=lambda each: (each.program.number not in self.pinned, each.program.begins_at)
            )
        while self.waiting and len(self.running) < self.engine.most_running:
            if not self._start(self.waiting[0], now):
                if self.running or not self.pinned:
                    break
                self.pinned.clear()  # nothing could ever run
                continue
            del self.waiting[0]

    def _start(self, request: Request, now: float) -> bool:
        key = request.program.number
        busy = sum(each.size for each in self.running)
        pinned = {each for each, until in self.pinned.items() if until > now and each != key}
        self.pinned = {each: self.pinned[each] for each in pinned}
        fixed = busy + sum(self.cache.get(each, 0) for each in pinned)
        if fixed + request.size > self.engine.capacity and busy:
            return False
        cached = min(self.cache.pop(key, 0), request.prompt - 1)
        room = self.engine.capacity - busy - request.size
        excess = sum(self.cache.values()) - room
        for each in list(self.cache):
            if excess <= 0:
                break
            if each not in pinned or not busy:
                lost = min(self.cache[each], excess)
                excess -= lost
                self.cache[each] -= lost  # from its end: the beginning can still be found
                if not self.cache[each]:
                    del self.cache[each]
        request.prefill = request.prefilled = request.prompt - cached
        request.left = request.output
        request.started_at = now
        self.prompt_tokens += request.prompt
        self.prefilled_tokens += request.prefill
        self.running.append(request)
        return True

    def next_at(self) -> float:
        """When the next step ends, or all steps until something changes."""
        seconds, _ = self._step()
        return self.now + seconds

    def _step(self) -> tuple[float, int]:
        """The length of the next stride, and the steps in it: one while anything is prefilled."""
        decoding = sum(1 for each in self.running if not each.prefill)
        prefill = min(sum(each.prefill for each in self.running), CHUNK)
        step = self.engine.step_s + self.engine.per_answer_s * decoding + prefill / self.engine.prefill_rate
        if prefill:
            return step, 1
        steps = min(each.left for each in self.running)
        return steps * step, steps

    @property
    def one_step_s(self) -> float:
        seconds, steps = self._step()
        return seconds / steps

    def advance(self, until: float) -> list[Request]:
        """Run one stride, or as many whole steps as end by then. Returns the requests that have ended."""
        seconds, steps = self._step()
        if self.now + seconds > until and steps > 1:
            one = seconds / steps
            steps = max(int((until - self.now) / one), 1)
            seconds = steps * one
        self.now += seconds
        room = CHUNK
        for each in self.running:
            if each.prefill:
                part = min(each.prefill, room)
                room -= part
                each.prefill -= part
                if part and not each.prefill:
                    each.program.first_tokens.append(self.now - each.asked_at)
                    if self.schedule is not None:
                        self.schedule.measured(each.prefilled, self.now - each.started_at)
            elif each.left:
                each.left -= min(steps, each.left)
        ended = [each for each in self.running if not each.prefill and not each.left]
        self.running = [each for each in self.running if each.prefill or each.left]
        return ended

    def end(self, request: Request, tool: str, *, is_last: bool) -> None:
        program, key = request.program, request.program.number
        program.context = request.size
        program.served += request.prefilled / self.engine.prefill_rate + request.output * self.engine.step_s
        self.cache[key] = request.size
        self.cache.move_to_end(key)
        if self.schedule is not None and request.turn is not None:
            self.schedule.end(request.turn, request.size, [tool] if tool else [], self.now)
            if self.rule == "sessions" and request.turn.loop.is_resident:
                self.pinned[key] = math.inf
            if is_last:
                self.schedule.drop(str(key))
        if self.rule == "pinned":
            self.pinned.pop(key, None)
            if not is_last:
                kind = kind_of(program.tenant, [tool])
                gain = request.size / self.engine.prefill_rate * (1 + len(self.waiting))
                self.pinned[key] = self.now + self.pauses.of(kind).hold_s(0.0, gain, 1.0)
                self.paused[key] = (self.now, kind)

    @property
    def is_idle(self) -> bool:
        return not self.running

    @property
    def is_asked(self) -> bool:
        """Whether any turn waits."""
        return bool(self.waiting or self.asked)


class Fleet:
    """Replicas, and programs that stay at the replica where they began: the one with the fewest programs."""

    def __init__(self, engine: Engine, rule: str, replicas: int, programs: list[Program]) -> None:
        self._replicas = [Replica(engine, rule) for _ in range(replicas)]
        self._programs = [0] * replicas
        self._homes: dict[int, int] = {}
        self._arrivals = [(program.begins_at, program.number, program) for program in programs]
        heapq.heapify(self._arrivals)
        self._due: list[tuple[float, int]] = []
        self._due_at = [math.inf] * replicas
        """When each replica has to be looked at; ``_due`` may hold entries that are not valid any more."""

    @property
    def replicas(self) -> list[Replica]:
        return self._replicas

    def run(self) -> None:
        """Run all programs to their end."""
        while True:
            while self._due and self._due_at[self._due[0][1]] != self._due[0][0]:
                heapq.heappop(self._due)
            due_at = self._due[0][0] if self._due else math.inf
            if self._arrivals and self._arrivals[0][0] <= due_at:
                now, _, program = heapq.heappop(self._arrivals)
                self._arrive(program, now)
            elif self._due:
                now, number = heapq.heappop(self._due)
                if not self._replicas[number].is_idle:
                    self._advance(number, now)
                self._plan(number, now)
            else:
                return

    def _arrive(self, program: Program, now: float) -> None:
        if program.number not in self._homes:
            number = min(range(len(self._programs)), key=self._programs.__getitem__)
            self._homes[program.number] = number
            self._programs[number] += 1
        number = self._homes[program.number]
        replica = self._replicas[number]
        while not replica.is_idle and replica.now + replica.one_step_s <= now:
            self._advance(number, now)
        added, output, _, _ = program.turns[program.at]
        replica.ask(Request(program, program.context + added, output, now), now)
        self._plan(number, now)

    def _advance(self, number: int, now: float) -> None:
        replica = self._replicas[number]
        for request in replica.advance(now):
            program = request.program
            _, _, tool, pause = program.turns[program.at]
            program.at += 1
            is_last = program.at == len(program.turns)
            replica.end(request, tool, is_last=is_last and not program.vanishes)
            if is_last:
                program.ended_at = replica.now
                self._programs[number] -= 1
            else:
                heapq.heappush(self._arrivals, (replica.now + pause, program.number, program))

    def _plan(self, number: int, now: float) -> None:
        """Start what may start, and look at the replica again when something can have changed."""
        replica = self._replicas[number]
        if replica.is_idle:
            replica.now = now
        replica.review(now)
        at = now + REVIEW_S if replica.is_asked else math.inf
        if not replica.is_idle:
            at = replica.next_at()
        self._due_at[number] = at
        if at < math.inf:
            heapq.heappush(self._due, (at, number))


def simulate(engine: Engine, programs: list[Program], rule: str, replicas: int = 1) -> dict[str, float]:
    """Run all programs to their end, and say how it went."""
    fleet = Fleet(engine, rule, replicas, programs)
    fleet.run()
    times = sorted(program.ended_at - program.begins_at for program in programs)
    prompt = sum(each.prompt_tokens for each in fleet.replicas)
    prefilled = sum(each.prefilled_tokens for each in fleet.replicas)
    needed = sum(sum(turn[0] for turn in program.turns) for program in programs)
    firsts = sorted(first for program in programs for first in program.first_tokens)
    return {
        "end_s": max(program.ended_at for program in programs),
        "mean_s": statistics.fmean(times),
        "p95_s": times[int(0.95 * (len(times) - 1))],
        "longest_s": times[-1],
        "first_token_ms": 1000 * firsts[len(firsts) // 2],
        "first_token_p95_ms": 1000 * firsts[int(0.95 * (len(firsts) - 1))],
        "hits": 1.0 - prefilled / prompt,
        "prefilled_per_new": prefilled / needed,
    }


# Traces


def ring(loops: int, turns: int, seed: int, *, vanishes: bool = False) -> list[Program]:
    """Equal loops that begin together, with tools of 0.3 to 3 seconds: the measured case. They say when they
    have ended, as a client does that closes its connection, or vanish."""
    draw = random.Random(seed)
    return [
        Program(
            number,
            draw.uniform(0.0, 0.5),
            [(2100, 60, "run", draw.uniform(0.3, 3.0)) for _ in range(turns)],
            vanishes=vanishes,
        )
        for number in range(loops)
    ]


def coding(loops: int, seed: int, span_s: float) -> list[Program]:
    """Loops of coding agents of five tenants: heavy tails of turns, outputs and pauses, bursts of arrivals,
    some tools that take minutes, some users who think."""
    draw = random.Random(seed)
    tools = [
        ("read", -1.5, 0.6, 0.55),
        ("edit", -1.2, 0.5, 0.2),
        ("shell", 0.8, 1.3, 0.18),
        ("build", 4.0, 0.7, 0.05),
    ]
    programs = []
    for number in range(loops):
        burst = draw.choice([0.0, 0.25, 0.5, 0.75])
        begins = span_s * (burst + 0.1 * draw.random() if draw.random() < 0.5 else draw.random())
        turns = []
        for at in range(max(2, min(int(draw.lognormvariate(2.7, 0.7)), 80))):
            name, mu, sigma, _ = draw.choices(tools, [each[3] for each in tools])[0]
            pause = draw.lognormvariate(mu, sigma)
            if draw.random() < 0.02:
                name, pause = "", draw.lognormvariate(3.5, 0.8)
            added = 12_000 if at == 0 else int(min(draw.lognormvariate(6.9, 1.1), 20_000))
            turns.append((added, int(min(draw.lognormvariate(4.8, 0.8), 2000)) + 1, name, min(pause, 600.0)))
        programs.append(Program(number, begins, turns, tenant=f"t{number % 5}"))
    return programs


TRACES: dict[str, tuple[Engine, int, Callable[[int], list[Program]]]] = {
    "small": (SMALL, 1, lambda seed: ring(64, 20, seed)),
    "large": (LARGE, 1, lambda seed: ring(48, 12, seed)),
    "silent": (LARGE, 1, lambda seed: ring(48, 12, seed, vanishes=True)),
    "coding": (LARGE, 1, lambda seed: coding(60, seed, 300.0)),
    "burst": (LARGE, 1, lambda seed: coding(120, seed, 60.0)),
    "fits": (LARGE, 1, lambda seed: coding(12, seed, 300.0)),
    "fleet": (LARGE, 48, lambda seed: coding(10_000, seed, 1800.0)),
}
ABOUT = {
    "small": "ring of 64, small model, cache for 28",
    "large": "ring of 48, 7B-like, cache for 15",
    "silent": "the same, but loops never say that they have ended",
    "coding": "60 coding agents over 5 minutes, 7B-like",
    "burst": "120 coding agents in one minute, 7B-like",
    "fits": "12 coding agents, which fit",
    "fleet": "10,000 coding agents over 48 replicas",
}
RESULT = Path(__file__).with_name("results") / "loop_scheduling.json"
RULES = ("engine", "attained", "pinned", "slipring", "sessions")


def compared(trace: str, seeds: list[int]) -> Iterator[tuple[str, dict[str, list[float]]]]:
    engine, replicas, make = TRACES[trace]
    for rule in RULES:
        runs = [simulate(engine, make(seed), rule, replicas) for seed in seeds]
        yield rule, {name: [run[name] for run in runs] for name in runs[0]}


def described(figures: dict[str, float]) -> str:
    loop = f"loop {figures['mean_s']:6.1f} (p95 {figures['p95_s']:6.1f}, longest {figures['longest_s']:6.1f})"
    first = f"first token {figures['first_token_ms']:6.0f} ms (p95 {figures['first_token_p95_ms']:6.0f})"
    cache = f"hits {figures['hits']:4.0%}  prefilled/new {figures['prefilled_per_new']:5.2f}"
    return f"end {figures['end_s']:6.0f} s  {loop}  {first}  {cache}"


def table(found: dict[str, dict[str, dict[str, list[float]]]]) -> str:
    """The figures of all traces that were run, as a table. Rules with equal figures share a row."""
    lines = [
        "| trace | rule | all loops | mean of a loop | p95 | first token, median / p95 | prefix hits |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for trace, rules in found.items():
        rows: dict[str, list[str]] = {}
        for rule, figures in rules.items():
            at = {name: statistics.median(values) for name, values in figures.items()}
            firsts = f"{at['first_token_ms'] / 1000:.1f} / {at['first_token_p95_ms'] / 1000:.0f}"
            cells = [f"{at[name]:.0f}" for name in ("end_s", "mean_s", "p95_s")]
            cells += [firsts, f"{at['hits']:.0%}"]
            rows.setdefault(" | ".join(cells), []).append(f"*{rule}*")
        titles = [ABOUT[trace], *[""] * (len(rows) - 1)]
        lines += [
            f"| {title} | {', '.join(names)} | {cells} |"
            for title, (cells, names) in zip(titles, rows.items(), strict=True)
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trace", nargs="*", choices=TRACES, default=[name for name in TRACES if name != "fleet"]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"add the figures to {RESULT.name}")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    if options.write and RESULT.exists():
        found = json.loads(RESULT.read_text())
    for trace in options.trace:
        print(f"{trace}:")
        for rule, figures in compared(trace, list(range(1, options.seeds + 1))):
            found.setdefault(trace, {})[rule] = figures
            medians = {name: statistics.median(values) for name, values in figures.items()}
            print(f"  {rule:9} {described(medians)}", flush=True)
    if options.write:
        RESULT.write_text(
            json.dumps({name: found[name] for name in TRACES if name in found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
