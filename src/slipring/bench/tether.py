"""``python -m slipring.bench.tether …``: runs ``slipring …``, and ends it when whoever started it is gone.

A process that is killed ends nothing that it has started. But the system closes its files, and so the
standard input of what runs here, which the one who started it holds open and never writes to.
"""

import os
import runpy
import signal
import threading

_STDIN, _STDOUT = 0, 1


def _watch() -> None:
    while os.read(_STDIN, 1024):
        pass
    # Nobody reads the standard output any more, and writing there would fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, name="tether", daemon=True).start()
    runpy.run_module("slipring", run_name="__main__", alter_sys=True)
