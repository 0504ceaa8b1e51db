"""What a load has shown, as it is kept. Units are in the names."""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from slipring.bench.results import Endpoint, Machine

FORMAT = 1


class Percentiles(Struct, kw_only=True):
    """Of figures that were measured, by the nearest rank."""

    p50: float
    p95: float
    p99: float
    high: float
    count: int


class Level(Struct, kw_only=True, omit_defaults=True):
    """What was seen while a number of connections was held."""

    connections: int
    """So many were asked for."""
    open_connections: int = 0
    """So many were there at the end."""
    seconds: float
    turns: int
    turns_per_s: float
    first_token_ms: Percentiles | None = None
    """Of turns that came to their end, and of those that were still waiting for longer than the service level
    allows: with the time that they had waited until then."""
    gap_ms: Percentiles | None = None
    """Between a delta of an answer and the one before it."""
    lag_ms: Percentiles | None = None
    """Of the last delta of an answer, behind the schedule that its first delta began; only where it is known
    how fast tokens are made."""
    waiting: int = 0
    """Turns without a first token at the end, and connections that were not yet open."""
    waiting_late: int = 0
    """Those among them that had waited for longer than the service level allows."""
    stalled: int = 0
    """Turns that had begun to answer, and from which nothing had come for as long as that."""
    server_cores: float | None = None
    """CPU seconds of the server in a second."""
    client_cores: float = 0.0
    """Of the bench itself: at 1 it is the bench that is slow."""
    others_cores: float | None = None
    """Of all other processes of the machine."""
    resident_bytes: int | None = None
    bytes_per_connection: float | None = None
    """Of the server's memory, beyond what it had before the first connection; of those that were open."""
    errors: dict[str, int] = {}
    broken: str | None = None
    """Which service level it did not hold."""

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class ServiceLevel(Struct, kw_only=True, frozen=True):
    """What is still good enough."""

    first_token_ms: float
    """For 95 of 100 turns."""
    errors: float
    """Share of all turns."""

    def broken_by(self, level: Level) -> str | None:
        """Why a level is not good enough."""
        attempts = level.turns + level.failed
        if attempts and level.failed / attempts > self.errors:
            share = level.failed / attempts
            return f"{share:.1%} of turns failed (allowed: {self.errors:.1%})"
        if level.first_token_ms is None:
            return "no turn came to its end"
        if level.first_token_ms.p95 > self.first_token_ms:
            late = level.first_token_ms.p95
            return f"first token after {late:,.0f} ms at p95 (allowed: {self.first_token_ms:,.0f} ms)"
        return None


class LoadRecord(Struct, kw_only=True):
    """A load, whole."""

    format: int = FORMAT
    when: str
    versions: dict[str, str]
    machine: Machine
    endpoint: Endpoint
    mode: str
    think_ms: float
    ramp_s: float
    hold_s: float
    service_level: ServiceLevel
    levels: list[Level] = []


def percentiles(values: Iterable[float]) -> Percentiles | None:
    ranked = sorted(values)
    if not ranked:
        return None
    p50, p95, p99 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.50, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99, high=ranked[-1], count=len(ranked))


def write(record: LoadRecord, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
