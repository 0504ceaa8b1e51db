"""``slipring bench load``: measures, shows and writes the results, and returns the exit code.

It adds connections level by level and measures each, until the service level is violated. Then, if that is
wanted, a tenant floods the server beside its users, and a bare socket gets the load of the last level that
held. The duration follows from the options alone; a slow server does not prolong it. With ``--loops``, whole
loops are measured instead (``loops.py``).
"""

import argparse
import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Any

from msgspec import structs

from slipring.base.progress_line import ProgressLine, bar
from slipring.commands.bench.client.exchange import Fields
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.command import (
    FAILED,
    INTERRUPTED,
    check_outputs,
    print_interrupted,
    print_unasked_url,
    run_until_interrupted,
)
from slipring.commands.bench.load import results
from slipring.commands.bench.load.flood import Flood
from slipring.commands.bench.load.generator import Generator, LocalGenerator, ProcessGenerator
from slipring.commands.bench.load.loops import LoopsAtOnce, LoopsProgress
from slipring.commands.bench.load.options import LoadOptions, from_namespace
from slipring.commands.bench.load.results import FloodResult, LoadRecord, percentiles
from slipring.commands.bench.load.service_level import Level
from slipring.commands.bench.load.terminal import show
from slipring.commands.bench.load.users import Job, Tally
from slipring.commands.bench.measure.loop import unique_instructions
from slipring.commands.bench.measure.modes import Mode, modes_of
from slipring.commands.bench.measure.probes import base_fields, first_model, nothing_to_measure, probe
from slipring.commands.bench.subject import machine
from slipring.commands.bench.subject.bare_server import recorded_frames, start_bare
from slipring.commands.bench.subject.endpoint import describe, open_endpoint
from slipring.commands.bench.subject.machine import raise_file_limit
from slipring.commands.bench.subject.processes import Meter, OtherProcesses
from slipring.commands.bench.subject.simulated_engine import engine_for
from slipring.commands.bench.workloads.catalogue import short

_FLOOD_SETTLES_S = 1.0
"""Time for the flood to open its connections before it is measured."""


def run(arguments: argparse.Namespace) -> int:
    """Run the load and return the exit code: 1 if not even the first level held the service level, or if a
    loop failed.

    Raises ``UsageError`` and ``CommandFailed``.
    """
    options = from_namespace(arguments, os.environ)
    check_outputs(options.json, svg=options.svg)
    print_unasked_url(options.target)
    raise_file_limit(options.most_connections)
    running: Load | LoopsAtOnce
    if options.loops:
        running = LoopsAtOnce(options, LoopsProgress())
    else:
        running = Load(options, LoadProgress(len(options.levels)))
    with running.progress:
        was_interrupted = run_until_interrupted(running.run())
    try:
        if options.json is not None:
            results.write(running.record, options.json)
        if options.svg is not None:
            running.draw(options.svg)
    finally:  # after the file: standard output may be a pipe whose reader has ended
        running.show()
    if was_interrupted:
        print_interrupted()
        return INTERRUPTED
    return 0 if running.is_right else FAILED


class LoadProgress(ProgressLine):
    """Shows the current level on a terminal, and reports the level that broke."""

    def __init__(self, levels: int, **line: Any) -> None:
        """``levels``: their number, if none breaks."""
        super().__init__(**line)
        self._levels = levels
        self._done = 0

    def endpoint_opened(self) -> None:
        self.show("trying the endpoint")

    def level_started(self, connections: int, seconds: float) -> None:
        text = f"level {bar(self._done, self._levels)}: {connections} connections for {seconds:g} s"
        self.show(text, restarts=True)

    def level_finished(self, level: Level) -> None:
        self._done += 1
        if level.broken is not None:
            self.report(f"{level.connections} connections: {level.broken}")

    def phase_started(self, what: str, seconds: float) -> None:
        self.show(f"{what} for {seconds:g} s", restarts=True)


class Load:
    """One load. ``record`` holds what was measured so far, also after an error or cancellation."""

    def __init__(self, options: LoadOptions, progress: LoadProgress) -> None:
        self._options = options
        self.progress = progress
        self._plan = short()
        self.record = LoadRecord(
            when=machine.now(),
            versions=machine.versions(),
            machine=machine.machine(),
            endpoint=describe(options.target),
            mode=options.mode,
            think_ms=options.think_ms,
            ramp_s=options.ramp_s,
            hold_s=options.hold_s,
            service_level=options.service_level,
            processes=options.processes,
        )

    @property
    def is_right(self) -> bool:
        """Whether a level held the service level."""
        return self._last_held is not None

    def show(self) -> None:
        show(self.record)

    def draw(self, path: Path) -> None:
        from slipring.commands.bench.report import figure

        figure.write_load(self.record, path)

    async def run(self) -> None:
        """Run all levels, and what follows them. Raises ``CommandFailed``."""
        options, target, mode = self._options, self._options.target, self._mode
        engine = self.record.endpoint.engine
        engine = engine_for(engine, self._plan) if engine is not None else None
        keys: dict[str, str] = {}
        if options.flood and target.url is None:
            keys = {"users": secrets.token_hex(16), "flood": secrets.token_hex(16)}
        key = keys.get("users", target.key)
        async with open_endpoint(target, engine, keys) as endpoint:
            access = Access(endpoint.url, key, timeout_s=target.timeout_s, asks_timing=False, api=target.api)
            self.progress.endpoint_opened()
            model = target.model or await first_model(access)
            self.record.endpoint.model = access.redact(model)
            head = base_fields(model, target.max_output_tokens)
            found = await probe(access, head, [mode])
            if not found.modes:
                raise nothing_to_measure(access, found)
            frames = await recorded_frames(access, self._first_turn(head)) if options.bare else []
            job = Job(
                url=endpoint.url,
                key=key,
                timeout_s=target.timeout_s,
                mode=options.mode,
                api=target.api,
                head=head,
                think_ms=options.think_ms,
                limit_ms=options.service_level.first_token_ms,
                tokens_per_s=self.record.endpoint.tokens_per_s,
                has_digests=found.has_digests,
            )
            generator = self._generator(job)
            try:
                await self._run_levels(generator, endpoint.meter)
                flood_key = keys.get("flood") or options.flood_key
                if options.flood and self._last_held is self.record.levels[-1]:
                    flooding = Access(
                        endpoint.url, flood_key or key, timeout_s=target.timeout_s, asks_timing=False
                    )
                    await self._run_flood(generator, Flood(flooding, head, options.flood), endpoint.meter)
                    assert self.record.flood is not None
                    self.record.flood.is_other_tenant = flood_key is not None
            finally:
                await generator.stop()
        if options.bare and self._last_held is not None:
            await self._run_bare(job, frames, self._last_held)

    @property
    def _mode(self) -> Mode:
        return modes_of(self._options.target.api)[self._options.mode]

    @property
    def _last_held(self) -> Level | None:
        """The last level that held the service level."""
        held = [level for level in self.record.levels if level.broken is None]
        return held[-1] if held else None

    def _first_turn(self, head: Fields) -> Fields:
        instructions = unique_instructions(self._plan.instructions, "bare")
        return {**head, "instructions": instructions, "store": False, "input": self._plan.steps[0].messages}

    def _generator(self, job: Job) -> Generator:
        processes = self._options.processes
        return LocalGenerator(job) if processes == 1 else ProcessGenerator(job, processes)

    async def _run_levels(self, generator: Generator, meter: Meter | None) -> None:
        before_bytes = meter.resident_bytes() if meter is not None else 0
        options = self._options
        for connections in options.levels:
            self.progress.level_started(connections, options.ramp_s + options.hold_s)
            await generator.grow(connections, options.idle, options.ramp_s)
            level = await self._measure(generator, connections, meter)
            if meter is not None:
                level.resident_bytes = meter.resident_bytes()
                if opened := level.open_connections + level.open_idle:
                    level.bytes_per_connection = (level.resident_bytes - before_bytes) / opened
            level.broken = options.service_level.broken_by(level)
            self.record.levels.append(level)
            self.progress.level_finished(level)
            if level.broken is not None:
                return

    async def _run_bare(self, job: Job, frames: list[str], held: Level) -> None:
        """Measure a bare server, with the connections of a level and the pace of the simulated engine."""
        options, pace = self._options, job.tokens_per_s or 0.0
        self.progress.phase_started("a bare socket", options.ramp_s + options.hold_s)
        async with start_bare(frames, pace) as server:
            bare = structs.replace(job, url=server.url, key="", is_checked=False, has_digests=False)
            generator = self._generator(bare)
            try:
                await generator.grow(held.connections, options.idle, options.ramp_s)
                self.record.bare = await self._measure(generator, held.connections, server.meter)
            finally:
                await generator.stop()

    async def _run_flood(self, generator: Generator, flood: Flood, meter: Meter | None) -> None:
        """Measure the users of the last level while another tenant floods the server, and after that."""
        options, connections = self._options, self.record.levels[-1].connections
        self.progress.phase_started(f"a flood of {options.flood} connections", 2 * options.hold_s)
        flood.start()
        await asyncio.sleep(_FLOOD_SETTLES_S)
        during = await self._measure(generator, connections, meter)
        tally = await flood.stop()
        ended_ns = time.perf_counter_ns()
        after, seen = await self._tallied(generator, connections, meter)
        recovery_s: float | None = max(0.0, (seen.last_late_ns - ended_ns) / 1e9)
        if after.waiting_late or after.stalled:
            recovery_s = None
        self.record.flood = FloodResult(
            tally=tally, is_other_tenant=True, during=during, after=after, recovery_s=recovery_s
        )

    async def _measure(self, generator: Generator, connections: int, meter: Meter | None) -> Level:
        return (await self._tallied(generator, connections, meter))[0]

    async def _tallied(
        self, generator: Generator, connections: int, meter: Meter | None
    ) -> tuple[Level, Tally]:
        """Measure for ``hold_s``."""
        await generator.begin()
        others = OtherProcesses(meter) if meter is not None else None
        server_ms = meter.cpu_ms() if meter is not None else 0.0
        own_s, begun_at = time.process_time(), time.monotonic()
        await asyncio.sleep(self._options.hold_s)
        seconds = time.monotonic() - begun_at
        server_cores = (meter.cpu_ms() - server_ms) / 1000 / seconds if meter is not None else None
        others_cores = others.cores() if others is not None else None
        own_cores = (time.process_time() - own_s) / seconds
        tally = await generator.end()
        if self._options.processes > 1:  # the generating processes are not this one
            generated_cores = tally.cpu_s / seconds
            own_cores += generated_cores
            others_cores = max(0.0, others_cores - generated_cores) if others_cores is not None else None
        level = Level(
            connections=connections,
            open_connections=tally.open_connections,
            idle=self._options.idle,
            open_idle=tally.idle_connections,
            seconds=seconds,
            turns=tally.turns,
            turns_per_s=tally.turns / seconds,
            first_token_ms=percentiles(tally.first_token_ms),
            turn_ms=percentiles(tally.turn_ms),
            gap_ms=percentiles(tally.gap_ms),
            lag_ms=percentiles(tally.lag_ms),
            pace=tally.due_ms / (tally.due_ms + tally.late_ms) if tally.due_ms else None,
            waiting=tally.waiting,
            waiting_late=tally.waiting_late,
            stalled=tally.stalled,
            server_cores=server_cores,
            client_cores=own_cores,
            others_cores=others_cores,
            errors=tally.errors,
        )
        return level, tally
