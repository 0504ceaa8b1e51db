"""Runs ``slipring …`` until its parent process exits: ``python -m`` this module, with the same arguments.

A killed process cannot stop its children, but the system closes its end of their standard input. The parent
keeps it open and never writes to it; when it is closed, this process terminates itself.
"""

import os
import runpy
import signal
import threading

_STDIN, _STDOUT = 0, 1


def _terminate_at_end_of_input() -> None:
    while os.read(_STDIN, 1024):
        pass
    # The parent was the reader of standard output: writing to it would fail now.
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_terminate_at_end_of_input, name="exit-with-parent", daemon=True).start()
    runpy.run_module("slipring", run_name="__main__", alter_sys=True)
