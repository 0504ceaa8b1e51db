"""``slipring bench``: runs all modes of each workload, shows and writes the results, and returns the exit
code.

Each repeat runs every mode once, in an order shuffled per repeat, so that slow phases of the machine and the
effects of one mode on the next are spread over all modes. Until the end, nothing is printed but the progress.
"""

import argparse
import asyncio
import gc
import importlib.util
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from slipring.base.progress_line import ProgressLine, bar
from slipring.commands.argument_parser import UsageError
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
from slipring.commands.bench.options import BenchOptions, Outputs, from_namespace
from slipring.commands.bench.report.terminal import show
from slipring.commands.bench.results import BenchRecord, LoopResult
from slipring.commands.bench.subject import machine
from slipring.commands.bench.subject.endpoint import Target, describe, open_endpoint, with_round_trip
from slipring.commands.bench.subject.processes import Meter, OtherProcesses
from slipring.commands.bench.subject.simulated_engine import engine_for, must_force_tools
from slipring.commands.bench.verification import compare_with_full_history
from slipring.commands.bench.workloads.catalogue import WORKLOADS, deep
from slipring.commands.bench.workloads.plan import Plan
from slipring.commands.bench.workloads.replay import read_recording

FAILED = 1
INTERRUPTED = 130
_LIMITED = "--max-output-tokens limits each answer, and a rollout has one limit for all of its answers"
_MOST_FAILURES = 3
"""After this many failed repeats in a row, a mode is not run again in the workload."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, or read a record; show it, write the requested files, and return the exit code.

    Raises ``UsageError`` and ``CommandFailed``.
    """
    options = from_namespace(arguments, os.environ)
    outputs = options.outputs
    check_outputs(outputs.json, outputs.html, svg=outputs.svg)
    if options.record_path is not None:
        record = results.read(options.record_path)
        _publish(record, options.outputs)
        return _exit_code(record, options)
    print_unasked_url(options.target)
    progress = BenchProgress()
    running = Bench(options, _plans(options), progress)
    try:
        with progress:
            was_interrupted = run_until_interrupted(running.run())
    except BaseException:
        if running.record.loops:  # keep what was measured before the error
            _publish(running.record, options.outputs)
        raise
    _publish(running.record, options.outputs)
    if was_interrupted:
        print_interrupted()
        return INTERRUPTED
    return _exit_code(running.record, options)


def print_unasked_url(target: Target) -> None:
    """Say which server is measured if no flag does: perhaps it costs money."""
    if target.url_variable is not None:
        print(f"slipring: measuring {target.url}, which {target.url_variable} names", file=sys.stderr)


def print_interrupted() -> None:
    print("slipring: interrupted; the figures cover what was measured so far", file=sys.stderr)


def run_until_interrupted(measuring: Coroutine[Any, Any, None]) -> bool:
    """Run a coroutine in a new event loop; returns whether Ctrl-C or a signal ended it."""

    async def run() -> bool:
        task = asyncio.current_task()
        assert task is not None
        if os.name == "posix":
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, task.cancel)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
                loop.add_signal_handler(signal.SIGHUP, _hang_up, task, _terminals())
        try:
            await measuring
        except asyncio.CancelledError:
            return True
        return False

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


def _terminals() -> list[int]:
    """Descriptors of standard output and standard error that are terminals."""
    return [file for file in (1, 2) if os.isatty(file)]


def _hang_up(task: "asyncio.Task[Any]", terminals: list[int]) -> None:
    """Cancel the task after its terminal was closed. Output to the terminal is discarded from now on: a
    failing write would prevent the files from being written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for file in terminals:
        os.dup2(nowhere, file)
    os.close(nowhere)
    task.cancel()


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop's event loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _plans(options: BenchOptions) -> list[Plan]:
    plans = []
    for name in options.workloads:
        if name == "deep":
            plans += [deep(tokens) for tokens in options.depths]
        elif name == "replay":
            assert options.replay is not None
            plans.append(read_recording(options.replay))
        else:
            plans.append(WORKLOADS[name]())
    return plans


def check_outputs(*paths: Path | None, svg: Path | None) -> None:
    """Raise ``UsageError`` before a long measurement if a file cannot be written. Leaves existing files
    unchanged."""
    if svg is not None and importlib.util.find_spec("quickjs") is None:
        raise UsageError(
            "--svg: quickjs-ng is not installed (pip install '.[svg]' in a checkout of slipring)"
        )
    for path in (*paths, svg):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no directory {path.parent}")
        is_new = not path.exists()
        try:
            path.open("ab").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _publish(record: BenchRecord, outputs: Outputs) -> None:
    """Write the files, and print the tables. Neither prevents the other: standard output may be a pipe whose
    reader has ended."""
    try:
        if outputs.json is not None:
            results.write(record, outputs.json)
        if outputs.html is not None:
            from slipring.commands.bench.report import html

            html.write(record, outputs.html)
        if outputs.svg is not None:
            from slipring.commands.bench.report import figure

            figure.write_bench(record, outputs.svg)
    finally:
        show(record)


def _exit_code(record: BenchRecord, options: BenchOptions) -> int:
    """0 if every requested mode was measured and every answer was correct."""
    has_failed = any(loop.faults or loop.error for loop in record.loops)
    is_missing = options.names_modes and any(name in record.skipped for name in options.modes)
    return FAILED if has_failed or is_missing or not record.loops else 0


# --- The measurement -------------------------------------------------------------------------------


class BenchProgress(ProgressLine):
    """Counts the loops of a workload, and the turns of a loop."""

    def __init__(self, **line: Any) -> None:
        super().__init__(**line)
        self._name = self._now = ""
        self._done = self._total = self._turns = 0

    def endpoint_opened(self) -> None:
        self.show("trying the modes")

    def workload_started(self, plan: Plan, modes: list[Mode], repeats: int) -> None:
        self._name, self._turns = plan.workload.name, len(plan.steps)
        self._done, self._total = 0, len(modes) * repeats
        self._show("")

    def loop_started(self, mode: Mode, repeat: int) -> None:
        self._now = mode.name
        self._show(mode.name)

    def turn_finished(self, number: int) -> None:
        self._show(f"{self._now}, turn {number} of {self._turns}")

    def loop_finished(self, mode: Mode, loops: list[LoopResult]) -> None:
        """Report the first fault or error of the loops, if any."""
        self._done += 1
        for loop in loops:
            if reasons := [*loop.faults, *([loop.error] if loop.error is not None else [])]:
                self.report(f"{mode.name}: {reasons[0]}")
                return

    def _show(self, now: str) -> None:
        self.show(f"{self._name} {bar(self._done, self._total)} {now}".rstrip())


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
        return must_force_tools(self._engine)


def _shuffled(modes: list[Mode], seed: str) -> list[Mode]:
    """In the same order in every run; over the repeats, no mode always follows the same other mode."""
    return random.Random(seed).sample(modes, len(modes))
