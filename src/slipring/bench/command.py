"""``slipring bench``: from options to an exit code."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from slipring.bench import results
from slipring.bench.options import Options, Outputs, UsageError
from slipring.bench.results import Record
from slipring.bench.run import Bench
from slipring.bench.screen import Progressing, show
from slipring.bench.workloads.catalogue import WORKLOADS, deep
from slipring.bench.workloads.plan import Plan
from slipring.bench.workloads.replay import read_recording

WRONG = 1
INTERRUPTED = 130


def bench(options: Options) -> int:
    """Measure, or take a record that is kept, and show it; the exit code.

    Raises ``UsageError``, ``BadRecording``, ``results.Unreadable``, ``Unmeasurable`` and ``CannotStart``.
    """
    _check_outputs(options.outputs)
    if options.kept is not None:
        record = results.read(options.kept)
        _publish(record, options.outputs)
        return _verdict(record, options)
    progress = Progressing()
    running = Bench(options, _plans(options), progress)
    try:
        with progress:
            was_interrupted = run_until_interrupted(running.run())
    except BaseException:
        if running.record.loops:  # what was measured is not lost to what came after it
            _publish(running.record, options.outputs)
        raise
    _publish(running.record, options.outputs)
    if was_interrupted:
        print("slipring: interrupted; the figures are of what was measured until then", file=sys.stderr)
        return INTERRUPTED
    return _verdict(running.record, options)


def run_until_interrupted(measuring: Coroutine[Any, Any, None]) -> bool:
    """Run it on a loop of its own; whether Ctrl-C or a signal ended it."""

    async def run() -> bool:
        task = asyncio.current_task()
        assert task is not None
        if os.name == "posix":
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):  # or nothing would be shown and written
                loop.add_signal_handler(number, task.cancel)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is below nohup
                loop.add_signal_handler(signal.SIGHUP, _hang_up, task, _terminals())
        try:
            await measuring
        except asyncio.CancelledError:
            return True
        return False

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


def _terminals() -> list[int]:
    """Those of standard output and standard error that are one."""
    return [file for file in (1, 2) if os.isatty(file)]


def _hang_up(task: "asyncio.Task[Any]", terminals: list[int]) -> None:
    """The terminal is gone, and writing there would fail before the files are written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for file in terminals:
        os.dup2(nowhere, file)
    os.close(nowhere)
    task.cancel()


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _plans(options: Options) -> list[Plan]:
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


def _check_outputs(outputs: Outputs) -> None:
    """Better before an hour of measuring than after it. What is there already stays as it is."""
    for path in (outputs.json, outputs.html, outputs.svg):
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


def _publish(record: Record, outputs: Outputs) -> None:
    if outputs.json is not None:
        results.write(record, outputs.json)
    show(record)
    if outputs.html is not None:
        from slipring.bench.report import html

        html.write(record, outputs.html)
    if outputs.svg is not None:
        from slipring.bench.report import svg

        svg.write(record, outputs.svg)


def _verdict(record: Record, options: Options) -> int:
    """Whether everything was measured, and right."""
    is_wrong = any(loop.wrongs or loop.error for loop in record.loops)
    is_missing = options.names_modes and any(name in record.skipped for name in options.modes)
    return WRONG if is_wrong or is_missing or not record.loops else 0
