"""The record of a load: figures of each level. Field names carry their units."""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from slipring.commands.bench.load.service_level import Level, Percentiles, ServiceLevel
from slipring.commands.bench.results import Endpoint, Machine

FORMAT = 1


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
