"""``slipring bench load``: from options to an exit code."""

import sys

from slipring.bench.command import INTERRUPTED, WRONG, run_until_interrupted
from slipring.bench.load import results
from slipring.bench.load.files import allow_connections
from slipring.bench.load.options import LoadOptions
from slipring.bench.load.run import Load
from slipring.bench.load.screen import Climbing, show


def load(options: LoadOptions) -> int:
    """Climb, and show what was found; the exit code: 1 where the first level already breaks.

    Raises ``UsageError``, ``Unmeasurable`` and ``CannotStart``.
    """
    allow_connections(options.connections)
    running = Load(options, Climbing())
    was_interrupted = run_until_interrupted(running.run())
    show(running.record)
    if options.json is not None:
        results.write(running.record, options.json)
    if was_interrupted:
        print("slipring: interrupted; the figures are of what was measured until then", file=sys.stderr)
        return INTERRUPTED
    held = [level for level in running.record.levels if level.broken is None]
    return 0 if held else WRONG
