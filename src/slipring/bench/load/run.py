"""Runs a load: adds connections level by level and measures each, until the service level is violated.

Its duration follows from the options alone; a slow server does not prolong it.
"""

import asyncio
import time
from typing import Protocol

from slipring.bench.client.transports import Access
from slipring.bench.load.options import LoadOptions
from slipring.bench.load.results import Level, LoadRecord, percentiles
from slipring.bench.load.users import TurnTally, Users
from slipring.bench.measure.modes import MODES
from slipring.bench.measure.probes import base_fields, first_model, nothing_to_measure, probe
from slipring.bench.subject import machine
from slipring.bench.subject.endpoint import describe, open_endpoint
from slipring.bench.subject.engines import engine_for
from slipring.bench.subject.processes import Meter, OtherProcesses
from slipring.bench.workloads.catalogue import short


class LoadObserver(Protocol):
    """Receives the progress of a load."""

    def endpoint_opened(self) -> None:
        """The endpoint can be reached, and is about to be probed."""

    def level_started(self, connections: int, seconds: float) -> None: ...

    def level_finished(self, level: Level) -> None: ...


class Load:
    """One load. ``record`` holds what was measured so far, also after an error or cancellation."""

    def __init__(self, options: LoadOptions, observer: LoadObserver) -> None:
        self._options = options
        self._observer = observer
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
        )

    async def run(self) -> None:
        """Run all levels. Raises ``CannotMeasure`` and ``CannotStart``."""
        target, mode = self._options.target, MODES[self._options.mode]
        engine = self.record.endpoint.engine
        engine = engine_for(engine, self._plan) if engine is not None else None
        async with open_endpoint(target, engine) as endpoint:
            access = Access(endpoint.url, target.key, timeout_s=target.timeout_s, asks_timing=False)
            self._observer.endpoint_opened()
            model = target.model or await first_model(access)
            self.record.endpoint.model = access.redact(model)
            head = base_fields(model, target.max_output_tokens)
            found = await probe(access, head, [mode])
            if not found.modes:
                raise nothing_to_measure(access, found)
            users = Users(
                access,
                mode,
                head,
                self._plan,
                self._options.think_ms,
                has_digests=found.has_digests,
            )
            try:
                await self._run_levels(users, endpoint.meter)
            finally:
                await users.stop()

    async def _run_levels(self, users: Users, meter: Meter | None) -> None:
        before_bytes = meter.resident_bytes() if meter is not None else 0
        options = self._options
        for connections in options.levels:
            self._observer.level_started(connections, options.ramp_s + options.hold_s)
            await users.grow(connections, options.ramp_s)
            level = await self._measure(users, connections, meter)
            if meter is not None:
                level.resident_bytes = meter.resident_bytes()
                if level.open_connections:
                    grown_bytes = level.resident_bytes - before_bytes
                    level.bytes_per_connection = grown_bytes / level.open_connections
            level.broken = options.service_level.broken_by(level)
            self.record.levels.append(level)
            self._observer.level_finished(level)
            if level.broken is not None:
                return

    async def _measure(self, users: Users, connections: int, meter: Meter | None) -> Level:
        users.tally = TurnTally(self.record.endpoint.tokens_per_s)
        others = OtherProcesses(meter) if meter is not None else None
        server_ms = meter.cpu_ms() if meter is not None else 0.0
        client_s, begun_at = time.process_time(), time.monotonic()
        await asyncio.sleep(self._options.hold_s)
        seconds = time.monotonic() - begun_at
        tally = users.tally
        tally.add_unfinished(users.pending, self._options.service_level.first_token_ms)
        return Level(
            connections=connections,
            open_connections=users.open_connections,
            seconds=seconds,
            turns=tally.turns,
            turns_per_s=tally.turns / seconds,
            first_token_ms=percentiles(tally.first_token_ms),
            gap_ms=percentiles(tally.gap_ms),
            lag_ms=percentiles(tally.lag_ms),
            waiting=tally.waiting,
            waiting_late=tally.waiting_late,
            stalled=tally.stalled,
            server_cores=(meter.cpu_ms() - server_ms) / 1000 / seconds if meter is not None else None,
            client_cores=(time.process_time() - client_s) / seconds,
            others_cores=others.cores() if others is not None else None,
            errors=dict(tally.errors),
        )
