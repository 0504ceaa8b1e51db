"""``python -m tests.fuzz.frames.traced_server FD …``: `slipring serve …` that reports which code it has run.

On the socket with the number ``FD`` it answers every byte with the arcs that were first run since the last
answer: pairs of lines, by file.
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
from slipring.cli import main

PACKAGES = ("protocol", "core", "server")
ROOT = Path(slipring.__file__).parent
LENGTH = struct.Struct("!I")
_LINE_BITS = 20
_LINE = (1 << _LINE_BITS) - 1


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
    """The arcs that were run, by file, as coverage.py's collector has them: a set that only grows."""

    def __init__(self, observed: coverage.Coverage) -> None:
        # Not a part of its interface, which would write everything into a database for every answer.
        self._data: dict[str, set[Any]] = observed._collector.data
        self._reported: dict[str, set[Any]] = {}

    def new(self) -> dict[str, list[tuple[int, int]]]:
        """The arcs that were first run since the last call, by the path of the file below the package."""
        found = {}
        for path, arcs in list(self._data.items()):
            reported = self._reported.setdefault(path, set())
            if len(arcs) > len(reported):
                fresh = set(arcs) - reported
                reported |= fresh
                found[str(Path(path).relative_to(ROOT))] = [_pair(arc) for arc in fresh]
        return found


def _pair(arc: Any) -> tuple[int, int]:
    """The lines of an arc, which the tracer in C packs into one integer."""
    if not isinstance(arc, int):
        return arc
    first, second = arc & _LINE, arc >> _LINE_BITS & _LINE
    return (-first if arc >> 40 & 1 else first, -second if arc >> 41 & 1 else second)


def _answer(line: socket.socket, report: Report) -> None:
    with contextlib.suppress(OSError):
        while line.recv(1):
            data = json.dumps(report.new()).encode()
            line.sendall(LENGTH.pack(len(data)) + data)
    os.kill(os.getpid(), signal.SIGTERM)  # whoever asked is gone


if __name__ == "__main__":
    observing = started()
    line = socket.socket(fileno=int(sys.argv[1]))
    answering = threading.Thread(target=_answer, args=(line, Report(observing)), daemon=True)
    answering.start()
    sys.exit(main(sys.argv[2:]))
