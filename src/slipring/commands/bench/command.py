"""Runs ``slipring bench``: measures, shows and writes the results, and returns the exit code."""

import argparse
import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from slipring.commands.bench import results
from slipring.commands.bench.measure.progress import BenchProgress
from slipring.commands.bench.measure.run import Bench
from slipring.commands.bench.options import BenchOptions, Outputs, from_namespace
from slipring.commands.bench.report.terminal import show
from slipring.commands.bench.results import BenchRecord
from slipring.commands.bench.target import Target
from slipring.commands.bench.workloads.catalogue import WORKLOADS, deep
from slipring.commands.bench.workloads.plan import Plan
from slipring.commands.bench.workloads.replay import read_recording
from slipring.commands.failures import UsageError

FAILED = 1
INTERRUPTED = 130


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

            figure.write(record, outputs.svg)
    finally:
        show(record)


def _exit_code(record: BenchRecord, options: BenchOptions) -> int:
    """0 if every requested mode was measured and every answer was correct."""
    has_failed = any(loop.faults or loop.error for loop in record.loops)
    is_missing = options.names_modes and any(name in record.skipped for name in options.modes)
    return FAILED if has_failed or is_missing or not record.loops else 0
