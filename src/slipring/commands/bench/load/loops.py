"""``slipring bench load --loops``: loops of a coding agent that begin together, each on a connection of its
own, and the time until all have ended.

Each number of loops runs in all ways before the next does: by the modes of the server, and with full history
over a server beside it. A way that has failed is not run with as many loops again, nor with more. Each way
begins with a short loop that is not measured, because the first turns with tools are slower.
"""

import asyncio
import gc
import random
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, structs

from slipring.base.progress_line import ProgressLine, bar
from slipring.commands.bench.client.exchange import TurnFailed
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.load.loops_table import show
from slipring.commands.bench.load.options import LoadOptions
from slipring.commands.bench.load.results import LoopsRecord, LoopsRun, percentiles
from slipring.commands.bench.measure.loop import LoopSettings, run_at_once
from slipring.commands.bench.measure.modes import Mode, modes_of
from slipring.commands.bench.measure.probes import base_fields, first_model, nothing_to_measure, probe
from slipring.commands.bench.results import Endpoint, LoopResult
from slipring.commands.bench.statistics import weakest
from slipring.commands.bench.subject import machine
from slipring.commands.bench.subject.endpoint import describe, open_endpoint
from slipring.commands.bench.subject.processes import Meter, OtherProcesses
from slipring.commands.bench.subject.simulated_engine import engine_for, must_force_tools
from slipring.commands.bench.verification import REFERENCE, compare_with_full_history, without_digests
from slipring.commands.bench.workloads.catalogue import coding
from slipring.commands.bench.workloads.plan import Plan

_PAUSES_VARY = 0.5
_LAST_TURNS = 5


class LoopsProgress(ProgressLine):
    """Counts the runs, and the turns of one."""

    _planned = _begun = _turns = _done = 0
    _now = ""

    def endpoint_opened(self) -> None:
        self.show("trying the endpoint")

    def planned(self, runs: int) -> None:
        self._planned = runs

    def run_started(self, at_once: int, way: str, turns: int) -> None:
        self._now, self._turns, self._done = f"{at_once} at once, {way}", turns, 0
        self._begun += 1
        self.show(self._now, restarts=True)

    def turn_finished(self, _number: int) -> None:
        self._done += 1
        runs = bar(self._begun - 1, self._planned)
        self.show(f"loops {runs} {self._now}: {self._done} of {self._turns} turns")


class _Way(Struct, frozen=True, kw_only=True):
    """A mode of a server."""

    name: str
    mode: Mode
    access: Access
    settings: LoopSettings
    is_beside: bool
    meter: Meter | None


class _Measured(NamedTuple):
    """A run, and its loops."""

    way: _Way
    run: LoopsRun
    loops: list[LoopResult]


class LoopsAtOnce:
    """The measurement. ``record`` holds what was measured so far, also after an error or cancellation."""

    def __init__(self, options: LoadOptions, progress: LoopsProgress) -> None:
        self._options = options
        self.progress = progress
        self._plan = coding(options.turns - 1)
        target = options.target
        beside = Endpoint(model="", url=options.beside, api=target.api) if options.beside else None
        self.record = LoopsRecord(
            when=machine.now(),
            versions=machine.versions(),
            machine=machine.machine(),
            endpoint=describe(target),
            beside=beside,
            workload=self._plan.workload,
            think_ms=options.think_ms,
        )

    @property
    def is_right(self) -> bool:
        """Whether all loops ended, with right answers."""
        return bool(self.record.runs) and not any(run.faults for run in self.record.runs)

    def show(self) -> None:
        show(self.record)

    def draw(self, path: Path) -> None:
        from slipring.commands.bench.report import figure

        figure.write_loops(self.record, path)

    async def run(self) -> None:
        """Run all loops. Raises ``CommandFailed``."""
        options, record = self._options, self.record
        engine = record.endpoint.engine
        engine = engine_for(engine, self._plan) if engine is not None else None
        async with open_endpoint(options.target, engine) as endpoint:
            self.progress.endpoint_opened()
            modes = [modes_of(options.target.api)[name] for name in options.modes]
            ways: list[_Way] = []
            if record.beside is not None and record.beside.url is not None:
                reference = modes_of(options.target.api)[REFERENCE]
                ways += await self._ways(record.beside, record.beside.url, "", [reference], None)
            ways += await self._ways(record.endpoint, endpoint.url, options.target.key, modes, endpoint.meter)
            others = OtherProcesses(endpoint.meter) if endpoint.meter is not None else None
            await self._run_all(ways)
            if others is not None:
                record.others_cores = others.cores()

    async def _ways(
        self, described: Endpoint, url: str, key: str, modes: list[Mode], meter: Meter | None
    ) -> list[_Way]:
        """The modes that a server knows. Raises ``CommandFailed`` if it knows none."""
        target = self._options.target
        access = Access(url, key, timeout_s=target.timeout_s, asks_timing=False, api=target.api)
        model = target.model or await first_model(access)
        described.model = access.redact(model)
        found = await probe(access, base_fields(model, target.max_output_tokens), modes)
        if not found.modes:
            raise nothing_to_measure(access, found)
        for name, reason in found.skipped.items():
            self.record.skipped[name] = reason
            self.progress.report(f"{name} cannot be measured: {reason}")
        settings = LoopSettings(
            model=model,
            tool_ms=self._options.think_ms,
            tools_vary=_PAUSES_VARY,
            forces_tools=must_force_tools(described.engine),
            has_digests=found.has_digests,
            keeps_reasoning=found.keeps_reasoning,
            max_output_tokens=target.max_output_tokens,
        )
        is_beside = described is self.record.beside
        ways = []
        for mode in found.modes:
            name, title = mode.name, mode.title
            if is_beside:
                name, title = f"{name} beside", f"{title}, {access.name}"
            self.record.ways.append(structs.replace(mode.description, name=name, title=title))
            ways.append(
                _Way(
                    name=name,
                    mode=mode,
                    access=access,
                    settings=settings,
                    is_beside=is_beside,
                    meter=meter,
                )
            )
        return ways

    async def _run_all(self, ways: Sequence[_Way]) -> None:
        most: dict[str, int] = {}
        """With so many loops a way has failed."""
        for way in ways:
            await self._run(way, 1, coding(1))
        self.progress.planned(len(self._options.loops) * len(ways))
        for number, at_once in enumerate(self._options.loops):
            measured: list[_Measured] = []
            try:
                for way in random.Random(number).sample(ways, len(ways)):
                    if at_once < most.get(way.name, at_once + 1):
                        measured += [await self._run(way, at_once, self._plan)]
            finally:
                self._check(measured)
            for way, run, _ in measured:
                if run.faults:
                    most[way.name] = at_once
                    self.progress.report(f"{at_once} loops, {way.name}: {next(iter(run.faults))}")

    async def _run(self, way: _Way, at_once: int, plan: Plan) -> _Measured:
        self.progress.run_started(at_once, way.name, at_once * len(plan.steps))
        run = LoopsRun(way=way.name, at_once=at_once, wall_ms=0.0)
        settings = structs.replace(way.settings, nonce=secrets.token_hex(8))
        async with AsyncExitStack() as stack:
            try:
                opened = [await stack.enter_async_context(way.mode.open(way.access)) for _ in range(at_once)]
                await asyncio.gather(*(transport.open() for transport in opened))
            except (TurnFailed, TimeoutError) as error:
                run.faults = {way.access.redact(str(error)) or "no connection in time": 1}
                return _Measured(way, run, [])
            server_ms = way.meter.cpu_ms() if way.meter is not None else 0.0
            gc.disable()  # a collection in the client would count as time of the server
            try:
                ended = await run_at_once(
                    plan, way.mode, settings, opened, on_turn=self.progress.turn_finished
                )
            finally:
                gc.enable()
            run.wall_ms, run.client_cores = ended.wall_ms, ended.client_ms / ended.wall_ms
            if way.meter is not None:
                run.server_cores = (way.meter.cpu_ms() - server_ms) / run.wall_ms
        return _Measured(way, run, ended.loops)

    def _check(self, measured: list[_Measured]) -> None:
        """Compare the contexts of the modes of the server, and add what was measured to the record."""
        compare_with_full_history([loop for way, _, loops in measured if not way.is_beside for loop in loops])
        for _, run, loops in measured:
            _fill(run, loops)
            self.record.runs.append(run)


def _fill(run: LoopsRun, loops: Sequence[LoopResult]) -> None:
    """Fill in the figures of the turns."""
    if not loops:
        return
    turns = [turn for loop in loops for turn in loop.turns]
    last = [turn for loop in loops for turn in loop.turns[-_LAST_TURNS:]]
    run.loop_ms = percentiles(loop.wall_ms for loop in loops)
    run.turn_ms = percentiles(turn.total_ms for turn in turns)
    run.first_token_ms = percentiles(turn.first_token_ms for turn in turns if turn.first_token_ms)
    run.last_first_token_ms = percentiles(turn.first_token_ms for turn in last if turn.first_token_ms)
    run.input_tokens = sum(turn.input_tokens for turn in turns)
    run.cached_tokens = sum(turn.cached_tokens for turn in turns)
    run.history_checked = weakest(loops)
    reasons = [reason for loop in loops for reason in (*loop.faults, *([loop.error] if loop.error else []))]
    run.faults = dict(Counter(map(without_digests, reasons)).most_common())
