"""What a record was measured on, in words."""

from slipring.bench.report import units
from slipring.bench.results import Record


def subject(record: Record) -> str:
    """In one line."""
    endpoint = record.endpoint
    where = endpoint.url or "a slipring that the bench started itself"
    engine = f", engine {endpoint.engine}" if endpoint.engine else ""
    return f"Model {endpoint.model}, at {where}{engine}. {machine(record)}. {_when(record)}."


def simulation(record: Record) -> str | None:
    """What has to be known before any figure is read; None where a model was run."""
    speed = record.endpoint.tokens_per_s
    if speed is None:
        return None
    pace = f"tokens come at {speed:g} per second" if speed else "tokens come as fast as they can be sent"
    return (
        f"No model was run: {pace} in every mode. What differs between modes is around the model: the wire,"
        " the server, the context that is read again or is not."
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
        ("Repeats", str(settings.repeats)),
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
    speed = record.endpoint.tokens_per_s
    if speed is None:
        return "as the model does it"
    return f"simulated at {speed:g} tokens per second" if speed else "simulated, at unlimited speed"


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
