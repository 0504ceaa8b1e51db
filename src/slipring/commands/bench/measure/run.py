"""Runs a whole bench: for each workload, probes the endpoint and runs all repeats of all modes.

Each repeat runs every mode once, in an order shuffled per repeat, so that slow phases of the machine and the
effects of one mode on the next are spread over all modes. Prints nothing but its progress.
"""

import gc
import random
import secrets
from collections import Counter

from slipring.commands.bench import results
from slipring.commands.bench.client.exchange import Fields
from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.measure.loop import LoopSettings, run_loops
from slipring.commands.bench.measure.modes import Mode, modes_of
from slipring.commands.bench.measure.probes import (
    Capabilities,
    base_fields,
    first_model,
    nothing_to_measure,
    probe,
)
from slipring.commands.bench.measure.progress import BenchProgress
from slipring.commands.bench.options import BenchOptions
from slipring.commands.bench.subject import machine
from slipring.commands.bench.subject.endpoint import describe, open_endpoint, with_round_trip
from slipring.commands.bench.subject.processes import Meter, OtherProcesses
from slipring.commands.bench.subject.simulated_engine import engine_for, is_simulated
from slipring.commands.bench.verify.history import compare_with_full_history
from slipring.commands.bench.workloads.plan import Plan

_LIMITED = "--max-output-tokens limits each answer, and a rollout has one limit for all of its answers"
_MOST_FAILURES = 3
"""After this many failed repeats in a row, a mode is not run again in the workload."""


class Bench:
    """One bench. ``record`` holds what was measured so far, also after an error or cancellation."""

    def __init__(self, options: BenchOptions, plans: list[Plan], progress: BenchProgress) -> None:
        self._options = options
        self._plans = plans
        self._progress = progress
        endpoint = describe(options.target)
        self._engine = endpoint.engine
        self.record = results.BenchRecord(
            when=machine.now(),
            versions=machine.versions(),
            machine=machine.machine(),
            endpoint=endpoint,
            settings=results.BenchSettings(
                repeats=options.repeats,
                tool_ms=options.tool_ms,
                rtt_ms=options.rtt_ms,
                lanes=options.lanes,
                replays_pauses=options.replays_pauses,
                short_events=options.short_events,
            ),
            workloads=[],
            modes=[],
            nonce=secrets.token_hex(8),
        )

    async def run(self) -> None:
        """Measure all workloads. Raises ``CommandFailed``."""
        key, timeout_s = self._options.target.key, self._options.target.timeout_s
        for plan in self._plans:
            engine = engine_for(self._engine, plan) if self._engine is not None else None
            async with (
                open_endpoint(self._options.target, engine) as endpoint,
                with_round_trip(endpoint.url, self._options.rtt_ms) as url,
            ):
                short_events = self._options.short_events
                access = Access(
                    *(url, key),
                    timeout_s=timeout_s,
                    short_events=short_events,
                    name=endpoint.url,
                    api=self._options.target.api,
                )
                await self._measure(plan, access, endpoint.meter)

    async def _measure(self, plan: Plan, access: Access, meter: Meter | None) -> None:
        target = self._options.target
        self._progress.endpoint_opened()
        model = target.model or await first_model(access)
        self.record.endpoint.model = access.redact(model)
        found = await self._probe(access, base_fields(model, target.max_output_tokens))
        settings = LoopSettings(
            model=model,
            tool_ms=self._options.tool_ms,
            replays_pauses=self._options.replays_pauses,
            forces_tools=self._forces_tools,
            has_digests=found.has_digests,
            keeps_reasoning=found.keeps_reasoning,
            nonce=self.record.nonce,
            max_output_tokens=target.max_output_tokens,
        )
        self.record.workloads.append(plan.workload)
        modes = self._supported(plan, found.modes)
        self._progress.workload_started(plan, modes, self._options.repeats)
        others = OtherProcesses(meter) if meter is not None else None
        first = len(self.record.loops)
        try:
            await self._repeat(plan, modes, settings, access, meter)
        finally:
            compare_with_full_history(self.record.loops[first:])
        if others is not None:
            self.record.others_cores = max(self.record.others_cores or 0.0, others.cores())

    async def _repeat(
        self, plan: Plan, modes: list[Mode], settings: LoopSettings, access: Access, meter: Meter | None
    ) -> None:
        failures: Counter[str] = Counter()
        for repeat in range(self._options.repeats):
            for mode in _shuffled(modes, f"{plan.workload.name} {repeat}"):
                if failures[mode.name] >= _MOST_FAILURES:
                    continue  # each failure may take the whole time limit
                self._progress.loop_started(mode, repeat)
                loops = await self._loops(plan, mode, settings, access, meter, repeat)
                self.record.loops += loops
                self._progress.loop_finished(mode, loops)
                has_failed = any(loop.error is not None for loop in loops)
                failures[mode.name] = failures[mode.name] + 1 if has_failed else 0

    async def _loops(
        self,
        plan: Plan,
        mode: Mode,
        settings: LoopSettings,
        access: Access,
        meter: Meter | None,
        repeat: int,
    ) -> list[results.LoopResult]:
        gc.disable()  # a collection in the client during a turn would count as time of the server
        try:
            async with mode.open(access) as transport:
                return await run_loops(
                    *(plan, mode, settings, transport, repeat),
                    lanes=self._options.lanes,
                    meter=meter,
                    on_turn=self._progress.turn_finished,
                )
        finally:
            gc.enable()

    async def _probe(self, access: Access, head: Fields) -> Capabilities:
        known_modes = modes_of(self._options.target.api)
        modes = [known_modes[name] for name in self._options.modes]
        left_out = {mode.name: _LIMITED for mode in modes if mode.is_rollout and "max_output_tokens" in head}
        modes = [mode for mode in modes if mode.name not in left_out]
        found = await probe(access, head, modes)
        if modes and not found.modes and access.asks_timing:
            access.asks_timing = False  # some servers refuse unknown values of OpenAI-Beta
            found = await probe(access, head, modes)
        found.skipped |= left_out
        if not found.modes:
            raise nothing_to_measure(access, found)
        self.record.skipped |= found.skipped
        known = {mode.name for mode in self.record.modes}
        self.record.modes += [mode.description for mode in found.modes if mode.name not in known]
        return found

    def _supported(self, plan: Plan, modes: list[Mode]) -> list[Mode]:
        """The modes that can run this workload. Records why the others cannot."""
        reason = None
        if plan.has_tools and (self._forces_tools or plan.forces_tools):
            reason = "a rollout cannot force a call in each turn (see --tool-choice)"
        elif plan.mixes_outputs:
            reason = "only tool outputs can be appended to a rollout"
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
    """In the same order in every run; over the repeats, no mode always follows the same other mode."""
    return random.Random(seed).sample(modes, len(modes))
