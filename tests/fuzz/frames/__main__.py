"""`make fuzz-frames`: sends generated frames to real servers, and keeps those that reach new code.

There are four levels: bytes of WebSocket connections, JSON that is hard to read, events of the API with
changes, and bodies of HTTP requests. Inputs that reach code which none had reached before are changed again.
The exit code is not 0 if a server crashes, hangs, logs an unexpected fault or sends what is not valid: the
input is then made smaller and written to a file, which the ordinary tests replay.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter, deque
from contextlib import AsyncExitStack
from hashlib import blake2b
from pathlib import Path

import msgspec
import uvloop

from tests.fuzz.frames import inputs
from tests.fuzz.frames.branches import count_branches
from tests.fuzz.frames.client import Client
from tests.fuzz.frames.corpus import Corpus, valid_inputs
from tests.fuzz.frames.inputs import FOUND, LEVELS, Input, Level
from tests.fuzz.frames.minimising import Minimiser
from tests.fuzz.frames.servers import CONTROL_KEY, KEYS, SPECS, Arcs, Spec, TracedServer, running

_SHARES: dict[Level, float] = {"raw": 0.45, "json": 0.45, "events": 0.1}
_HTTP_SHARE = 0.02
"""Bodies of requests for every frame; they are not counted among the frames."""
_CLIENTS = 12
_CHECKED = 0.1
"""Share of the inputs whose answers are checked in every detail."""
_CONTROL_S = 1.0
_REPORT_S = 15.0
_RECENT = 30
_LATE_S = 2.0
"""How long after an input its faults may be logged."""
_PATIENCE_S = 15.0
"""How long an input may take that is tried alone."""
_HARMLESS = valid_inputs()[0]


def _print(line: str) -> None:
    print(line, flush=True)


class Fuzz:
    """One run: the inputs so far, what they reached, and the first fault."""

    def __init__(self, seed: int) -> None:
        self.corpus = Corpus(seed)
        self.sent: Counter[Level] = Counter()
        self.arcs: set[str] = set()
        self.faults: list[str] = []
        self.suspects: deque[Input] = deque(maxlen=_RECENT)
        """The latest inputs, those that are being sent included."""
        self.first_lines: Arcs = set()
        """What the valid inputs have reached on the first server."""
        self.lines: Arcs = set()
        """What all inputs have reached on all servers that were stopped."""
        self._budget: dict[Level, int] = {}
        self._left: Counter[Level] = Counter()
        self._began = time.monotonic()

    async def run(self, spec: Spec, budget: dict[Level, int]) -> None:
        """Send so many frames of each level to a server."""
        try:
            async with running(spec) as target, AsyncExitStack() as stack:
                clients = [Client(target, KEYS[index % len(KEYS)]) for index in range(_CLIENTS)]
                for client in clients:
                    stack.push_async_callback(client.close)
                self.arcs |= await target.new_arcs()
                first = [given for given in valid_inputs() if given.level in budget]
                await asyncio.gather(
                    *(self._begin(target, client, first[at::_CLIENTS]) for at, client in enumerate(clients))
                )
                self.first_lines = self.first_lines or await target.all_arcs()
                self._budget, self._left = budget, Counter(budget)
                await self._share(target, clients)
                self.lines |= await target.all_arcs()
        except AssertionError as fault:
            self.faults.append(str(fault))

    async def _begin(self, target: TracedServer, client: Client, valid: list[Input]) -> None:
        for given in valid:
            await self._send(target, client, given, checked=True)

    async def _share(self, target: TracedServer, clients: list[Client]) -> None:
        working = [asyncio.create_task(self._work(target, client)) for client in clients]
        working.append(asyncio.create_task(self._behave(Client(target, CONTROL_KEY))))
        reporting = asyncio.create_task(self._report(target))
        try:
            await asyncio.gather(*working)
        finally:
            reporting.cancel()

    @property
    def _goes_on(self) -> bool:
        return not self.faults and any(count > 0 for count in self._left.values())

    async def _behave(self, client: Client) -> None:
        self.faults += await client.stay(_CONTROL_S, lambda: not self._goes_on)

    async def _work(self, target: TracedServer, client: Client) -> None:
        rng = self.corpus.rng
        while self._goes_on:
            level = max(self._left, key=lambda level: self._left[level] / self._budget[level])
            given = self.corpus.draw(level)
            self._left[level] -= given.frames
            await self._send(target, client, given, checked=rng.random() < _CHECKED)

    async def _send(self, target: TracedServer, client: Client, given: Input, *, checked: bool) -> None:
        self.suspects.append(given)
        faults = await client.run(given, checked=checked) + target.faults()
        self.sent[given.level] += given.frames
        if faults:
            if not self.faults:  # the one that noticed it is the first to be suspected
                self.suspects.append(given)
            self.faults += faults
            return
        new = await target.new_arcs() - self.arcs
        if new:
            self.arcs |= new
            self.corpus.keep(given)

    async def _report(self, target: TracedServer) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            _print(f"{self.summary}, {target.process.resident_mib():.0f} MiB")

    @property
    def frames(self) -> int:
        return sum(self.sent[level] for level in _SHARES)

    @property
    def summary(self) -> str:
        by_level = ", ".join(f"{level} {self.sent[level]:,}" for level in LEVELS)
        seconds = time.monotonic() - self._began
        return f"{seconds:.0f} s: {by_level}; corpus {self.corpus.size}, {len(self.arcs):,} arcs"


class Laboratory:
    """Servers on which single inputs are tried. One that an input has harmed is replaced."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._stack = AsyncExitStack()
        self._target: TracedServer | None = None

    async def __aenter__(self) -> "Laboratory":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def shows_fault(self, given: Input) -> bool:
        """Whether an input shows a fault."""
        if self._target is None:
            self._target = await self._stack.enter_async_context(running(self._spec, judged=False))
        found = await self._faults(self._target, given)
        if found and await self._faults(self._target, _HARMLESS):
            await self._stack.aclose()
            self._target = None
        return bool(found)

    @staticmethod
    async def _faults(target: TracedServer, given: Input) -> list[str]:
        client = Client(target, KEYS[0], patience_s=_PATIENCE_S)
        try:
            faults = await client.run(given) + target.faults()
            until = time.monotonic() + _LATE_S
            while not faults and time.monotonic() < until:
                await asyncio.sleep(_LATE_S / 20)
                faults += target.faults()
        finally:
            await client.close()
        return faults


async def _find(spec: Spec, suspects: list[Input]) -> Input | None:
    """The input that shows a fault, as small as it could be made; None if none of them shows one alone."""
    async with Laboratory(spec) as laboratory:
        for given in reversed(suspects):
            if await laboratory.shows_fault(given):
                _print("found the input; making it smaller …")
                return await Minimiser(laboratory.shows_fault).minimise(given)
    return None


def _write(given: Input, fault: str) -> Path:
    """Write an input into the directory of the tests that replay it."""
    kept = msgspec.structs.replace(given, found=fault[:1000])
    name = blake2b(msgspec.json.encode(given.steps), digest_size=4).hexdigest()
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{given.level}-{name}.json"
    inputs.write(path, kept)
    return path


async def _report_fault(fuzz: Fuzz, spec: Spec) -> None:
    for fault in fuzz.faults[:5]:
        _print(f"FAULT on the server '{spec.name}': {fault}")
    suspects = list(fuzz.suspects)
    found = await _find(spec, suspects)
    if found is not None:
        _print(f"written to {_write(found, fuzz.faults[0])}: shows the fault alone")
        return
    _print("no input shows the fault alone; the latest, which may have shown it together:")
    for given in suspects[-_CLIENTS:]:
        _print(f"  {_write(given, fuzz.faults[0])}")


async def _replay(path: Path) -> int:
    """Send one kept input to every kind of server; return 1 if it shows a fault."""
    given, code = inputs.read(path), 0
    for spec in SPECS:
        async with Laboratory(spec) as laboratory:
            shown = await laboratory.shows_fault(given)
        _print(f"{spec.name}: {'shows a fault' if shown else 'fine'}")
        code |= shown
    return code


async def _fuzz(frames: int, levels: list[Level], specs: list[Spec], seed: int) -> int:
    fuzz = Fuzz(seed)
    whole = sum(_SHARES.get(level, 0) for level in levels) or 1
    budget = {
        level: int(frames * _SHARES[level] / whole / len(specs)) for level in levels if level in _SHARES
    }
    if "http" in levels:
        budget["http"] = int(frames * (_HTTP_SHARE if len(levels) > 1 else 1) / len(specs))
    for spec in specs:
        _print(f"server '{spec.name}': {', '.join(f'{level} {count:,}' for level, count in budget.items())}")
        await fuzz.run(spec, budget)
        if fuzz.faults:
            await _report_fault(fuzz, spec)
            _print(f"{fuzz.summary}\nseed {seed}; a kept input is sent again by --replay FILE")
            return 1
    for name, arcs in (("the valid inputs", fuzz.first_lines), ("all inputs", fuzz.lines)):
        reached, all_of_them = count_branches(arcs)
        _print(f"branches that {name} reached: {reached:,} of {all_of_them:,}")
    _print(f"{fuzz.summary}; {fuzz.frames:,} frames, no fault")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz-frames", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", help=f"levels ({', '.join(LEVELS)}) or servers, with commas in between")
    parser.add_argument("--replay", type=Path, help="send this kept input, and nothing else")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        return uvloop.run(_replay(arguments.replay))
    only = set(arguments.only.split(",")) if arguments.only else set()
    if unknown := only - {*LEVELS, *(spec.name for spec in SPECS)}:
        parser.error(f"no level and no server: {', '.join(sorted(unknown))}")
    levels = [level for level in LEVELS if level in only] or list(LEVELS)
    specs = [spec for spec in SPECS if spec.name in only] or list(SPECS)
    _print(f"seed {arguments.seed}, {arguments.frames:,} frames")
    return uvloop.run(_fuzz(arguments.frames, levels, specs, arguments.seed))


if __name__ == "__main__":
    sys.exit(main())
