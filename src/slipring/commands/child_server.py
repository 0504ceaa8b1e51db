"""``slipring serve`` as the child of another command, until its parent stops it or is gone.

A killed process cannot stop its children, but the system closes its end of their standard input. The parent
keeps it open and never writes to it; when it is closed, the child terminates itself.
"""

import os
import re
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

SERVES = re.compile(rb"serves (http://\S+)")
"""The line that says where it serves."""
_STDIN, _STDOUT = 0, 1


def command(engine: str, flags: Sequence[str] = ()) -> list[str]:
    """What runs a server on a free port, which keeps nothing."""
    serve = ("serve", "--port", "0", "--store", "memory", "--log-level", "warning", "--engine", engine)
    return [sys.executable, "-m", __name__, *serve, *flags]


def environment() -> Mapping[str, str]:
    """The variables of this process without its ``SLIPRING_*`` settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLIPRING_")}


def _terminate_at_end_of_input() -> None:
    while os.read(_STDIN, 1024):
        pass
    # The parent was the reader of standard output: writing to it would fail now.
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_terminate_at_end_of_input, name="exit-with-parent", daemon=True).start()
    runpy.run_module("slipring", run_name="__main__", alter_sys=True)
