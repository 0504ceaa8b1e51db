"""A bench from its first probe to its record: servers, workloads, repeats, modes in turn.

In each repeat every mode runs its loop once, in an order that is shuffled each time, so that the machine's
moods and what other modes leave behind hit all of them alike. Tells an ``Audience`` how far it has come, and
shows nothing itself.
"""

import gc
import random
import secrets
from collections import Counter
from typing import Protocol

from slipring.bench import machine, results
from slipring.bench.engines import engine_for, is_simulated
from slipring.bench.exchange import Fields
from slipring.bench.history import hold_together
from slipring.bench.loop import Conduct, Runner
from slipring.bench.modes import MODES, Mode
from slipring.bench.options import Options
from slipring.bench.probes import Findings, Unmeasurable, first_model, limited, probe
from slipring.bench.processes import Bystanders, Meter
from slipring.bench.reach import described, distant, reached
from slipring.bench.transports import Access
from slipring.bench.workloads.plan import Plan

_MOST_FAILURES = 3
"""Repeats in a row in which a mode fails: after so many it is not tried again in a workload."""


class Audience(Protocol):
    """Whoever watches a bench."""

    def begin(self, plan: Plan, modes: list[Mode], repeats: int) -> None: ...

    def loop(self, mode: Mode, repeat: int) -> None: ...

    def done(self, mode: Mode, loops: list[results.Loop]) -> None: ...


class Bench:
    """One bench. What it has measured so far is in ``record``, however it ends."""

    def __init__(self, options: Options, plans: list[Plan], audience: Audience) -> None:
        self._options = options
        self._plans = plans
        self._audience = audience
        endpoint = described(options.target)
        self._engine = endpoint.engine
        self.record = results.Record(
            when=machine.now(),
            versions=machine.versions(),
            machine=machine.machine(),
            endpoint=endpoint,
            settings=results.Settings(
                repeats=options.repeats, tool_ms=options.tool_ms, rtt_ms=options.rtt_ms, lanes=options.lanes
            ),
            workloads=[],
            modes=[],
            nonce=secrets.token_hex(8),
        )

    async def run(self) -> None:
        """Measure everything. Raises ``Unmeasurable`` and ``CannotStart``."""
        for plan in self._plans:
            engine = engine_for(self._engine, plan) if self._engine is not None else None
            async with (
                reached(self._options.target, engine) as reach,
                distant(reach.url, self._options.rtt_ms) as url,
            ):
                await self._measure(plan, url, reach.meter)

    async def _measure(self, plan: Plan, url: str, meter: Meter | None) -> None:
        target = self._options.target
        access = Access(url, target.key, timeout_s=target.timeout_s)
        model = target.model or await first_model(url, access)
        self.record.endpoint.model = access.tell(model)
        findings = await self._probe(access, limited(model, target.max_output_tokens))
        conduct = Conduct(
            model=model,
            tool_ms=self._options.tool_ms,
            forces_tools=self._forces_tools,
            gives_digests=findings.gives_digests,
            keeps_reasoning=findings.keeps_reasoning,
            nonce=self.record.nonce,
            max_output_tokens=target.max_output_tokens,
        )
        self.record.workloads.append(plan.workload)
        modes = self._fitting(plan, findings.modes)
        self._audience.begin(plan, modes, self._options.repeats)
        bystanders = Bystanders(meter) if meter is not None else None
        begun = len(self.record.loops)
        try:
            await self._repeat(plan, modes, conduct, access, meter)
        finally:
            hold_together(self.record.loops[begun:])
        if bystanders is not None:
            self.record.others_cores = max(self.record.others_cores or 0.0, bystanders.cores())

    async def _repeat(
        self, plan: Plan, modes: list[Mode], conduct: Conduct, access: Access, meter: Meter | None
    ) -> None:
        failures: Counter[str] = Counter()
        for repeat in range(self._options.repeats):
            for mode in _shuffled(modes, f"{plan.workload.name} {repeat}"):
                if failures[mode.name] >= _MOST_FAILURES:
                    continue  # each may have taken its whole time limit
                self._audience.loop(mode, repeat)
                loops = await self._loops(Runner(plan, mode, conduct, meter), mode, access, repeat)
                self.record.loops += loops
                self._audience.done(mode, loops)
                has_failed = any(loop.error is not None for loop in loops)
                failures[mode.name] = failures[mode.name] + 1 if has_failed else 0

    async def _loops(self, runner: Runner, mode: Mode, access: Access, repeat: int) -> list[results.Loop]:
        gc.disable()  # what this end collects in the middle of a turn is no time of the server's
        try:
            async with mode.open(access) as transport:
                if mode.has_lanes:
                    return await runner.side_by_side(transport, repeat, self._options.lanes)
                return await runner.alone(transport, repeat)
        finally:
            gc.enable()

    async def _probe(self, access: Access, head: Fields) -> Findings:
        wanted = [MODES[name] for name in self._options.modes]
        findings = await probe(access, head, wanted)
        if not findings.modes and access.asks_timing:
            access.asks_timing = False  # some servers refuse what they do not know
            findings = await probe(access, head, wanted)
        if not findings.modes:
            raise Unmeasurable("; ".join(f"{name}: {why}" for name, why in findings.skipped.items()))
        self.record.skipped |= findings.skipped
        known = {mode.name for mode in self.record.modes}
        self.record.modes += [mode.described for mode in findings.modes if mode.name not in known]
        return findings

    def _fitting(self, plan: Plan, modes: list[Mode]) -> list[Mode]:
        """Those that this workload can be done in."""
        reason = None
        if plan.tools and (self._forces_tools or plan.forces_tools):
            reason = "in a rollout the model cannot be told in each turn whether to call (see --tool-choice)"
        elif plan.mixes_outputs:
            reason = "nothing but outputs of tools can be appended to a rollout"
        if reason is not None and any(mode.is_rollout for mode in modes):
            self.record.skipped["rollout"] = f"{plan.workload.name}: {reason}"
            modes = [mode for mode in modes if not mode.is_rollout]
        return modes

    @property
    def _forces_tools(self) -> bool:
        choice = self._options.tool_choice
        if choice is not None:
            return choice == "forced"
        return self._engine is None or not is_simulated(self._engine)


def _shuffled(modes: list[Mode], seed: str) -> list[Mode]:
    """The same in every run, and no mode always after the same other."""
    return random.Random(seed).sample(modes, len(modes))
