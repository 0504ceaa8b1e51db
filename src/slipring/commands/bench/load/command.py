"""Runs ``slipring bench load``: measures, shows and writes the results, and returns the exit code."""

import argparse
import os

from slipring.commands.bench.command import (
    FAILED,
    INTERRUPTED,
    check_outputs,
    print_interrupted,
    print_unasked_url,
    run_until_interrupted,
)
from slipring.commands.bench.load import results
from slipring.commands.bench.load.options import from_namespace
from slipring.commands.bench.load.progress import LoadProgress
from slipring.commands.bench.load.run import Load
from slipring.commands.bench.load.terminal import show
from slipring.commands.bench.subject.machine import raise_file_limit


def run(arguments: argparse.Namespace) -> int:
    """Run the load and return the exit code: 1 if not even the first level held the service level.

    Raises ``UsageError`` and ``CommandFailed``.
    """
    options = from_namespace(arguments, os.environ)
    check_outputs(options.json, svg=options.svg)
    print_unasked_url(options.target)
    raise_file_limit(options.connections + options.idle + options.flood)
    with LoadProgress(len(options.levels)) as progress:
        running = Load(options, progress)
        was_interrupted = run_until_interrupted(running.run())
    try:
        if options.json is not None:
            results.write(running.record, options.json)
        if options.svg is not None:
            from slipring.commands.bench.load import figure

            figure.write(running.record, options.svg)
    finally:  # after the file: standard output may be a pipe whose reader has ended
        show(running.record)
    if was_interrupted:
        print_interrupted()
        return INTERRUPTED
    return 0 if any(level.broken is None for level in running.record.levels) else FAILED
