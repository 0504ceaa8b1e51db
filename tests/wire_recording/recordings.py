"""The files of a recording: a directory with one file for each process, with one line for each test."""

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

Lane = tuple[str, ...]
"""What it is, as in ``POST /responses``, then what was sent there, in order."""


class Recorded(NamedTuple):
    """What clients received in one test."""

    outcome: str
    """``passed``, ``failed`` or ``generated``: the examples of Hypothesis depend on how the tested code draws
    them."""
    lanes: frozenset[Lane]


class Writer:
    """Writes the recordings of one process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"

    def write(self, test: str, outcome: str, lanes: Iterable[Lane]) -> None:
        line = json.dumps({"test": test, "outcome": outcome, "lanes": sorted(set(lanes))})
        with self._path.open("a", encoding="ascii") as file:
            file.write(line + "\n")


def read(directory: Path) -> dict[str, Recorded]:
    """All tests of a recording. Of a test that ran twice, the later run counts."""
    tests: dict[str, Recorded] = {}
    for path in sorted(directory.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        with path.open(encoding="ascii") as lines:
            for line in lines:
                entry = json.loads(line)
                lanes = frozenset(tuple(lane) for lane in entry["lanes"])
                tests[entry["test"]] = Recorded(entry["outcome"], lanes)
    return tests
