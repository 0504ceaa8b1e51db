"""The records of a load: figures of each level, or of whole loops at once. Field names carry their units."""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from slipring.commands.bench.load.service_level import Level, Percentiles, ServiceLevel
from slipring.commands.bench.results import Checked, Endpoint, Machine, ModeDescription, Workload

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


class LoopsRun(Struct, kw_only=True, omit_defaults=True):
    """Loops that began together, each on a connection of its own, and ran to their ends."""

    way: str
    """The name of one of the ``ways`` of the record."""
    at_once: int
    wall_ms: float
    """From the beginning of all to the end of the last, with the pauses."""
    loop_ms: Percentiles | None = None
    """The turns of a loop together, without the pauses."""
    turn_ms: Percentiles | None = None
    first_token_ms: Percentiles | None = None
    last_first_token_ms: Percentiles | None = None
    """In the last five turns of each loop, whose contexts are the longest."""
    input_tokens: int = 0
    cached_tokens: int = 0
    history_checked: Checked | None = None
    """The weakest check of any loop."""
    server_cores: float | None = None
    client_cores: float = 0.0
    faults: dict[str, int] = {}
    """How often: wrong answers, and why loops ended early. If there are any, the times mean nothing."""


class LoopsRecord(Struct, kw_only=True):
    """Everything that ``--loops`` measured."""

    format: int = FORMAT
    when: str
    versions: dict[str, str]
    machine: Machine
    endpoint: Endpoint
    beside: Endpoint | None
    """Another server over which the same loops ran."""
    workload: Workload
    think_ms: float
    ways: list[ModeDescription] = []
    """The mode of each server, in display order."""
    skipped: dict[str, str] = {}
    """Mode of the server to the reason why it could not be measured."""
    runs: list[LoopsRun] = []
    others_cores: float | None = None
    """CPU used by processes that are neither the bench nor the server; None if unknown."""

    def of(self, way: str, at_once: int) -> list[LoopsRun]:
        """The runs without faults."""
        return [run for run in self.runs if (run.way, run.at_once) == (way, at_once) and not run.faults]


def percentiles(values: Iterable[float]) -> Percentiles | None:
    ranked = sorted(values)
    if not ranked:
        return None
    p50, p95, p99 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.50, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99, high=ranked[-1], count=len(ranked))


def write(record: LoadRecord | LoopsRecord, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
