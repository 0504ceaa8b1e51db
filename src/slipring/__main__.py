"""The ``slipring`` command, and ``python -m slipring``."""

import signal
import sys


def run() -> int:
    """Run the command line on the standard streams of this process. Until a command handles Ctrl-C, and after
    it has ended, Ctrl-C ends the process at once: Python would print a traceback, of whatever is being
    imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from slipring.base import standard_streams

    standard_streams.prepare()
    from slipring.commands.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
