"""The record of a load: figures of each level. Field names carry their units."""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from slipring.commands.bench.load.service_level import ServiceLevel
from slipring.commands.bench.results import Endpoint, Machine

FORMAT = 1


class Percentiles(Struct, kw_only=True):
    """Percentiles by nearest rank, so each is one of the measured values."""

    p50: float
    p95: float
    p99: float
    high: float
    count: int


class Level(Struct, kw_only=True, omit_defaults=True):
    """Figures of one level: a fixed number of connections, measured for some time."""

    connections: int
    """Requested connections."""
    open_connections: int = 0
    """Connections that were open at the end."""
    idle: int = 0
    """Requested idle connections, beside those of users."""
    open_idle: int = 0
    """Idle connections that were open at the end."""
    seconds: float
    turns: int
    turns_per_s: float
    first_token_ms: Percentiles | None = None
    """Time to the first token of finished turns. A turn that still waits at the end, and longer than the
    service level allows, counts with the time that it has waited."""
    turn_ms: Percentiles | None = None
    """Time from the request to the last event of finished turns."""
    gap_ms: Percentiles | None = None
    """Time between two successive deltas of an answer."""
    lag_ms: Percentiles | None = None
    """Delay of the last delta of an answer, relative to its first delta and the simulated decoding speed;
    None if that is not known."""
    pace: float | None = None
    """The speed of the answers from their first delta on, as a share of the simulated decoding speed; None if
    that is not known. An answer that catches up after a late first delta counts as 1."""
    waiting: int = 0
    """Turns without a first token, and connections still being opened, at the end."""
    waiting_late: int = 0
    """Those of ``waiting`` that had waited longer than the service level allows."""
    stalled: int = 0
    """Turns whose answer had begun, but without an event for longer than the service level allows."""
    server_cores: float | None = None
    """CPU use of the server, in cores."""
    client_cores: float = 0.0
    """CPU use of all processes of the bench. If it is near 1 for each, the bench itself is the bottleneck."""
    others_cores: float | None = None
    """CPU use of all other processes on the machine."""
    resident_bytes: int | None = None
    bytes_per_connection: float | None = None
    """Growth of the server's memory since before the first connection, per open connection."""
    errors: dict[str, int] = {}
    broken: str | None = None
    """How the level violated the service level; None if it held."""

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class FloodTally(Struct, kw_only=True):
    """What a tenant that floods has got."""

    connections: int
    seconds: float = 0.0
    turns: int = 0
    refusals: dict[str, int] = {}
    """Requests that were refused, by status and code."""
    with_retry_after: int = 0
    """Refusals that say when to try again."""
    refused_ms: Percentiles | None = None
    """Time from a request to its refusal."""
    failures: dict[str, int] = {}
    """Responses that failed after they had begun, and connections that were not opened or were lost."""


class FloodResult(Struct, kw_only=True):
    """What users saw while another tenant flooded the server, and after that."""

    tally: FloodTally
    is_other_tenant: bool
    """Whether the flood had another key than the users."""
    during: Level
    after: Level
    recovery_s: float | None
    """Time from the end of the flood to the last violation of the service level; None: it was still violated
    at the end."""


class LoadRecord(Struct, kw_only=True):
    """Everything that one load measured."""

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
    processes: int = 1
    """Processes that generate the load."""
    levels: list[Level] = []
    bare: Level | None = None
    """A bare aiohttp socket that sends the same frames, with as many connections as the last level that
    held."""
    flood: "FloodResult | None" = None


def percentiles(values: Iterable[float]) -> Percentiles | None:
    ranked = sorted(values)
    if not ranked:
        return None
    p50, p95, p99 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.50, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99, high=ranked[-1], count=len(ranked))


def write(record: LoadRecord, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
