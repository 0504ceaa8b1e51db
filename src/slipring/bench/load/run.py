"""A load from its first connection to its record: up by steps, held, measured, until a service level breaks.

It takes as long as its steps were told to take, and no longer, whatever the server does.
"""

import asyncio
import time
from typing import Protocol

from slipring.bench import machine
from slipring.bench.engines import engine_for
from slipring.bench.load.options import LoadOptions
from slipring.bench.load.results import Level, LoadRecord, percentiles
from slipring.bench.load.users import Crowd, Tally
from slipring.bench.modes import MODES
from slipring.bench.probes import Unmeasurable, first_model, limited, probe
from slipring.bench.processes import Bystanders, Meter
from slipring.bench.reach import described, reached
from slipring.bench.transports import Access
from slipring.bench.workloads.catalogue import short


class LoadAudience(Protocol):
    """Whoever watches a load."""

    def climbing(self, connections: int, seconds: float) -> None: ...

    def measured(self, level: Level) -> None: ...


class Load:
    """One load. What it has measured so far is in ``record``, however it ends."""

    def __init__(self, options: LoadOptions, audience: LoadAudience) -> None:
        self._options = options
        self._audience = audience
        self._plan = short()
        self.record = LoadRecord(
            when=machine.now(),
            versions=machine.versions(),
            machine=machine.machine(),
            endpoint=described(options.target),
            mode=options.mode,
            think_ms=options.think_ms,
            ramp_s=options.ramp_s,
            hold_s=options.hold_s,
            service_level=options.service_level,
        )

    async def run(self) -> None:
        """Climb. Raises ``Unmeasurable`` and ``CannotStart``."""
        target, mode = self._options.target, MODES[self._options.mode]
        engine = self.record.endpoint.engine
        engine = engine_for(engine, self._plan) if engine is not None else None
        async with reached(target, engine) as reach:
            access = Access(reach.url, target.key, timeout_s=target.timeout_s, asks_timing=False)
            model = target.model or await first_model(reach.url, access)
            self.record.endpoint.model = model
            head = limited(model, target.max_output_tokens)
            findings = await probe(access, head, [mode])
            if not findings.modes:
                raise Unmeasurable(findings.skipped[mode.name])
            crowd = Crowd(
                access,
                mode,
                head,
                self._plan,
                self._options.think_ms,
                gives_digests=findings.gives_digests,
            )
            try:
                await self._climb(crowd, reach.meter)
            finally:
                await crowd.leave()

    async def _climb(self, crowd: Crowd, meter: Meter | None) -> None:
        before_bytes = meter.resident_bytes() if meter is not None else 0
        options = self._options
        for connections in options.levels:
            self._audience.climbing(connections, options.ramp_s + options.hold_s)
            await crowd.grow(connections, options.ramp_s)
            level = await self._hold(crowd, connections, meter)
            if meter is not None:
                level.resident_bytes = meter.resident_bytes()
                if level.open_connections:
                    grown_bytes = level.resident_bytes - before_bytes
                    level.bytes_per_connection = grown_bytes / level.open_connections
            level.broken = options.service_level.broken_by(level)
            self.record.levels.append(level)
            self._audience.measured(level)
            if level.broken is not None:
                return

    async def _hold(self, crowd: Crowd, connections: int, meter: Meter | None) -> Level:
        crowd.tally = Tally(self.record.endpoint.tokens_per_s)
        bystanders = Bystanders(meter) if meter is not None else None
        server_ms = meter.cpu_ms() if meter is not None else 0.0
        client_s, begun_at = time.process_time(), time.monotonic()
        await asyncio.sleep(self._options.hold_s)
        seconds = time.monotonic() - begun_at
        tally = crowd.tally
        tally.take_unfinished(crowd.under_way, self._options.service_level.first_token_ms)
        return Level(
            connections=connections,
            open_connections=crowd.open_connections,
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
            others_cores=bystanders.cores() if bystanders is not None else None,
            errors=dict(tally.errors),
        )
