"""The record of ``routers.py``, and the table that ``docs/routers.md`` shows of it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from slipring.commands.bench.results import Machine

RESULT = Path(__file__).parents[1] / "results" / "peers" / "routers.json"


class Lost(Struct):
    """What became of chains whose replica was drained or killed."""

    chains: int
    there: int | None
    """Those that were on the replica; None where sessions do not tell."""
    prefilled: list[int] = []
    """How often each of the chains has prefilled its context again."""
    failed: int = 0
    """Turns."""

    @property
    def moved(self) -> int:
        return sum(map(bool, self.prefilled))


class Row(Struct):
    """What was seen with a router and a number of replicas."""

    way: str
    replicas: int
    ended: list[int] = []
    """Requests that each replica has ended while 100 chains ran. A session is one request."""
    turns: int = 0
    """Turns, forks and warmups of these chains that continue something."""
    prefilled: int = 0
    """Those of them that did not find their context."""
    failed: int = 0
    again: list[int] = []
    """For each of more loops than fit: how often it prefilled its context again, in four turns."""
    lost: dict[str, Lost] = {}
    """By how the replica was lost."""


class Record(Struct):
    when: str
    machine: Machine
    versions: dict[str, str]
    seconds: float
    rows: list[Row]


def read() -> Record:
    return msgspec.json.decode(RESULT.read_bytes(), type=Record)


def write(record: Record) -> None:
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def about(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    where = f"{record.machine.cpu}, {record.machine.cores} cores"
    return f"{record.when[:10]}, {where}, {record.seconds:.0f} s; {versions}."


def table(record: Record) -> str:
    """A column for each way and number of replicas."""
    shown: dict[str, Callable[[Row], str]] = {
        "requests that each replica has ended; a session is one": lambda row: ", ".join(map(str, row.ended)),
        "turns, forks and warmups that did not find their context": lambda row: (
            f"{row.prefilled} of {row.turns}"
        ),
        "drained: chains that prefilled again": lambda row: _lost(row.lost["drained"]),
        "killed: chains that prefilled again": lambda row: _lost(row.lost["killed"]),
        "turns that failed": lambda row: str(row.failed + sum(each.failed for each in row.lost.values())),
        "more loops than fit: prefilled again in four turns": _filled,
    }
    titles = [f"{row.way}, {row.replicas} replicas" for row in record.rows]
    return "\n".join(
        [
            f"| | {' | '.join(titles)} |",
            "|---|" + "---|" * len(titles),
            *(f"| {what} | {' | '.join(map(cell, record.rows))} |" for what, cell in shown.items()),
        ]
    )


def _lost(lost: Lost) -> str:
    there = "" if lost.there is None else f" ({lost.there} were there)"
    return f"{lost.moved} of {lost.chains}{there}, {_often(lost.prefilled)}"


def _filled(row: Row) -> str:
    return f"{sum(row.again)} times, {sum(map(bool, row.again))} of {len(row.again)} loops"


def _often(counts: list[int]) -> str:
    most = max(counts, default=0)
    return "each once" if most == 1 else f"at most {most} times" if most else "none"
