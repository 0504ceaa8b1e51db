"""Describes in words what a record was measured on: endpoint, machine, simulation, repeats, other load."""

from collections.abc import Sequence

from slipring.commands.bench.report import units
from slipring.commands.bench.results import BenchRecord, BenchSettings, Endpoint, Machine
from slipring.commands.bench.statistics import Summary, summarise
from slipring.commands.bench.subject.simulated_engine import is_simulated

API_NAMES = {"responses": "Responses", "messages": "Messages", "chat": "Chat Completions"}
BUSY_SHARE = 0.1
"""From this share of all cores on, CPU use of other processes is reported as a warning."""


def subject(record: BenchRecord) -> str:
    """Endpoint, machine and date in one line."""
    endpoint = record.endpoint
    engine = f", engine {endpoint.engine}" if endpoint.engine else ""
    asked = f"{_where(endpoint)}{by_api(endpoint)}"
    return f"Model {endpoint.model}, at {asked}{engine}. {machine(record)}. {_when(record)}."


def by_api(endpoint: Endpoint) -> str:
    """By which API it was asked, if not by Responses."""
    return "" if endpoint.api == "responses" else f" by the {API_NAMES[endpoint.api]} API"


def simulation(endpoint: Endpoint) -> str | None:
    """What was simulated; None if nothing is known to be."""
    if not is_without_model(endpoint):
        return None
    tokenizing = "" if "vocabulary=" in (endpoint.engine or "") else " Nothing was tokenized."
    if endpoint.tokens_per_s is None:
        return (
            f"No model was run, and more than decoding was simulated: engine {endpoint.engine}.{tokenizing}"
        )
    speed = endpoint.tokens_per_s
    pace = f"tokens come at {speed:g} per second" if speed else "tokens come without delay"
    return (
        f"No model was run: {pace} in every mode. The modes differ in everything around the model: transport,"
        f" server, and how much of the context is processed again.{tokenizing}"
    )


def is_without_model(endpoint: Endpoint) -> bool:
    """Whether it is known that no model was run."""
    return endpoint.tokens_per_s is not None or (
        endpoint.engine is not None and is_simulated(endpoint.engine)
    )


def busy_warning(others_cores: float | None, machine: Machine) -> str | None:
    """A warning if other processes used at least ``BUSY_SHARE`` of the machine; None if not, or unknown."""
    if others_cores is None or others_cores < BUSY_SHARE * machine.cores:
        return None
    return (
        f"Other processes used {_cores(others_cores, machine)} during the measurement, so the figures are"
        " less reliable."
    )


def conditions(record: BenchRecord) -> list[tuple[str, str]]:
    """Names and values for a list of conditions."""
    endpoint, settings = record.endpoint, record.settings
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    others = record.others_cores
    return [
        ("Endpoint", _where(endpoint)),
        ("API", API_NAMES[endpoint.api]),
        ("Model", endpoint.model),
        ("Engine", endpoint.engine or "not known"),
        ("Decoding", decoding(endpoint)),
        ("Machine", machine(record)),
        ("Other processes", "not measured" if others is None else f"used {_cores(others, record.machine)}"),
        ("When", _when(record)),
        ("Repeats", repeats(record, summarise(record))),
        ("Time of tools", _tool_condition(settings)),
        ("Added round trip", _or_none(settings.rtt_ms)),
        ("Concurrent lanes", f"{settings.lanes}, in modes with lanes"),
        ("First events", "short, as requested" if settings.short_events else "as the endpoint sends them"),
        ("Versions", versions or "not known"),
    ]


def tool_time(settings: BenchSettings) -> str:
    """How long tools took."""
    return "as recorded" if settings.replays_pauses else f"{settings.tool_ms:g} ms"


def decoding(endpoint: Endpoint) -> str:
    if is_without_model(endpoint):
        speed = endpoint.tokens_per_s
        if speed is None:
            return f"simulated, as configured in {endpoint.engine}"
        return f"simulated at {speed:g} tokens per second" if speed else "simulated, at unlimited speed"
    return "by the engine" if endpoint.engine else "not known"


def repeats(record: BenchRecord, summaries: Sequence[Summary]) -> str:
    """The number of finished repeats, and of requested ones if that differs."""
    requested, text = record.settings.repeats, counted(summaries)
    return text if text == _repeats(requested) else f"{text} of {requested} requested"


def counted(summaries: Sequence[Summary]) -> str:
    """The fewest and the most finished repeats of a mode."""
    counts = sorted({summary.repeats for summary in summaries if summary.wall_ms is not None} or {0})
    return _repeats(counts[0]) if len(counts) == 1 else f"{counts[0]} to {_repeats(counts[-1])}"


def machine(record: BenchRecord) -> str:
    here = record.machine
    return f"{processor(here)}, {here.memory_gib:.3g}{units.SPACE}GiB, {here.system}"


def processor(machine: Machine) -> str:
    return f"{machine.cpu}, {'1 core' if machine.cores == 1 else f'{machine.cores} cores'}"


def _where(endpoint: Endpoint) -> str:
    return endpoint.url or "a slipring server started by the bench"


def _cores(used: float, machine: Machine) -> str:
    total = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    return f"{used:.2f} of {total} ({units.percent(used / machine.cores)})"


def _repeats(count: int) -> str:
    return "one repeat" if count == 1 else f"{count} repeats"


def _tool_condition(settings: BenchSettings) -> str:
    if settings.replays_pauses:
        return "as recorded, not counted in loops"
    return f"{units.duration(settings.tool_ms)}, not counted in loops" if settings.tool_ms else "none"


def _or_none(ms: float) -> str:
    return units.duration(ms) if ms else "none"


def _when(record: BenchRecord) -> str:
    """2026-11-15T12:00:00Z becomes 2026-11-15, 12:00 UTC; other formats are returned unchanged."""
    day, _, time = record.when.partition("T")
    return f"{day}, {time[:5]} UTC" if record.when.endswith("Z") and len(time) >= 5 else record.when
