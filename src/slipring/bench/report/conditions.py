"""What a record was measured on, in words."""

from collections.abc import Sequence

from slipring.bench.engines import is_simulated
from slipring.bench.report import units
from slipring.bench.results import Record
from slipring.bench.statistics import Summary, summarise


def subject(record: Record) -> str:
    """In one line."""
    endpoint = record.endpoint
    where = endpoint.url or "a slipring that the bench started itself"
    engine = f", engine {endpoint.engine}" if endpoint.engine else ""
    return f"Model {endpoint.model}, at {where}{engine}. {machine(record)}. {_when(record)}."


def simulation(record: Record) -> str | None:
    """What has to be known before any figure is read; None where nothing is known to be simulated."""
    endpoint = record.endpoint
    if not is_without_model(record):
        return None
    tokenizing = "" if "vocabulary=" in (endpoint.engine or "") else " Nothing was tokenized."
    if endpoint.tokens_per_s is None:
        return (
            f"No model was run, and more than the decoding is made up: the engine was {endpoint.engine}."
            f"{tokenizing}"
        )
    speed = endpoint.tokens_per_s
    pace = f"tokens come at {speed:g} per second" if speed else "tokens come as fast as they can be sent"
    return (
        f"No model was run: {pace} in every mode. What differs between modes is around the model: the wire,"
        f" the server, the context that is read again or is not.{tokenizing}"
    )


def is_without_model(record: Record) -> bool:
    """Whether it is known that no model was run."""
    endpoint = record.endpoint
    return endpoint.tokens_per_s is not None or (
        endpoint.engine is not None and is_simulated(endpoint.engine)
    )


def conditions(record: Record) -> list[tuple[str, str]]:
    endpoint, settings = record.endpoint, record.settings
    told = [
        ("Endpoint", endpoint.url or "a slipring that the bench started itself"),
        ("Model", endpoint.model),
        ("Engine", endpoint.engine or "not known"),
        ("Decoding", decoding(record)),
        ("Machine", machine(record)),
        ("When", _when(record)),
        ("Repeats", repeats(record, summarise(record))),
        ("Time of tools", _or_none(settings.tool_ms, "not counted in loops")),
        ("Round trip added", _or_none(settings.rtt_ms)),
        ("Lanes side by side", f"{settings.lanes}, in modes that have lanes"),
        (
            "Versions",
            ", ".join(f"{name} {version}" for name, version in record.versions.items()) or "not known",
        ),
    ]
    return told


def decoding(record: Record) -> str:
    endpoint = record.endpoint
    if is_without_model(record):
        speed = endpoint.tokens_per_s
        if speed is None:
            return f"simulated, as {endpoint.engine} says"
        return f"simulated at {speed:g} tokens per second" if speed else "simulated, at unlimited speed"
    return "by the engine" if endpoint.engine else "not known: by whatever answers there"


def repeats(record: Record, summaries: Sequence[Summary]) -> str:
    """Those that ran to their end, and those that were asked for where that is not the same."""
    asked, told = record.settings.repeats, counted(summaries)
    return told if told == _repeats(asked) else f"{told} of {asked} that were asked for"


def counted(summaries: Sequence[Summary]) -> str:
    """Repeats that figures are of, from the mode with the fewest to that with the most."""
    counts = sorted({summary.repeats for summary in summaries if summary.wall_ms is not None} or {0})
    return _repeats(counts[0]) if len(counts) == 1 else f"{counts[0]} to {_repeats(counts[-1])}"


def _repeats(count: int) -> str:
    return "one repeat" if count == 1 else f"{count} repeats"


def _or_none(ms: float, note: str = "") -> str:
    if not ms:
        return "none"
    return f"{units.duration(ms)}, {note}" if note else units.duration(ms)


def machine(record: Record) -> str:
    here = record.machine
    return f"{processor(record)}, {here.memory_gib:.3g}{units.SPACE}GiB, {here.system}"


def processor(record: Record) -> str:
    here = record.machine
    return f"{here.cpu}, {'1 core' if here.cores == 1 else f'{here.cores} cores'}"


def _when(record: Record) -> str:
    """2026-11-15T12:00:00Z as 2026-11-15, 12:00 UTC; what is written otherwise as it is."""
    day, _, time = record.when.partition("T")
    return f"{day}, {time[:5]} UTC" if record.when.endswith("Z") and len(time) >= 5 else record.when
