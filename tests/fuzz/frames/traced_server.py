"""``python -m tests.fuzz.frames.traced_server FD …``: `slipring serve …` that reports which code it has run.

On the socket with the number ``FD`` it answers questions: which arcs (pairs of lines) were first run since
the last question, and which ones at all.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import coverage

import slipring
from slipring.commands.cli import main

PACKAGES = ("protocol", "core", "server")
ROOT = Path(slipring.__file__).parent
LENGTH = struct.Struct("!I")
NEW, ALL = b"?", b"*"
"""The questions."""


def started() -> coverage.Coverage:
    """Begin to observe the code of the packages."""
    observed = coverage.Coverage(
        data_file=None,
        config_file=False,
        branch=True,
        include=[f"{ROOT}/{package}/*" for package in PACKAGES],
        messages=False,
    )
    observed.start()
    return observed


class Report:
    """What was run, as coverage.py has it."""

    def __init__(self, observed: coverage.Coverage) -> None:
        self._observed = observed
        # Not a part of its interface, which would write everything into a database for every answer.
        self._data: dict[str, set[Any]] = observed._collector.data
        self._seen: dict[str, set[Any]] = {}
        self._sizes: dict[str, int] = {}

    def new(self) -> list[str]:
        """Names of the arcs that were first run since the last call."""
        found = []
        for path, arcs in list(self._data.items()):
            if len(arcs) != self._sizes.get(path):
                seen = self._seen.setdefault(path, set())
                fresh = arcs.copy() - seen
                seen |= fresh
                self._sizes[path] = len(arcs)
                found += [f"{Path(path).relative_to(ROOT)} {arc}" for arc in fresh]
        return found

    def all(self) -> dict[str, list[tuple[int, int]]]:
        """All arcs so far as pairs of lines, by the path of the file below the package."""
        data = self._observed.get_data()
        return {str(Path(path).relative_to(ROOT)): data.arcs(path) or [] for path in data.measured_files()}


def _answer(line: socket.socket, report: Report) -> None:
    with contextlib.suppress(OSError):
        while question := line.recv(1):
            data = json.dumps(report.new() if question == NEW else report.all()).encode()
            line.sendall(LENGTH.pack(len(data)) + data)
    os.kill(os.getpid(), signal.SIGTERM)  # whoever asked is gone


if __name__ == "__main__":
    observing = started()
    line = socket.socket(fileno=int(sys.argv[1]))
    answering = threading.Thread(target=_answer, args=(line, Report(observing)), daemon=True)
    answering.start()
    sys.exit(main(sys.argv[2:]))
