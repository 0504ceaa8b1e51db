"""Shows a load: a table and the result."""

from rich.markup import escape
from rich.table import Table

from slipring.commands.bench.load.results import LoadRecord
from slipring.commands.bench.load.service_level import Level, Percentiles
from slipring.commands.bench.report.conditions import busy_warning, by_api, simulation
from slipring.commands.bench.report.terminal import wide_console

_BUSY_CORES = 0.85
_RANKS = "p50 / p95 / p99"


def show(record: LoadRecord) -> None:
    """Print the record to standard output."""
    endpoint = record.endpoint
    what = endpoint.url or f"a slipring server started by the bench, engine {endpoint.engine}"
    with wide_console() as console:
        if record.levels:
            console.print(_table(record))
        console.print(escape(f"Measured: {what}{by_api(endpoint)}; model {endpoint.model}."))
        if simulated := simulation(endpoint):
            console.print(escape(f"Simulated. {simulated}"))
        for line in (*verdict(record), *bare_verdict(record), *flood_verdict(record)):
            console.print(line)


def verdict(record: LoadRecord) -> list[str]:
    """The highest level that held, the one that did not, warnings, and errors."""
    lines = []
    held = [level for level in record.levels if level.broken is None]
    broken = next((level for level in record.levels if level.broken is not None), None)
    most = f"{_connections(held[-1])} ({held[-1].turns_per_s:.1f} turns/s)" if held else "no level"
    if broken is not None:
        lines.append(
            f"The service level holds with {most} and is violated with {broken.connections}:"
            f" {escape(broken.broken or '')}."
        )
    elif held:
        lines.append(f"The service level holds with {most}; more were not tried.")
    if any(level.client_cores > _BUSY_CORES * record.processes for level in record.levels):
        whole = "a whole core" if record.processes == 1 else "a whole core in each of its processes"
        lines.append(
            f"[yellow]The bench used {whole}: it may have slowed down the measurement itself.[/yellow]"
        )
    others_cores = max((level.others_cores or 0.0 for level in record.levels), default=0.0)
    if busy := busy_warning(others_cores, record.machine):
        lines.append(f"[yellow]Busy machine. {busy}[/yellow]")
    limit_ms = record.service_level.first_token_ms
    for level in record.levels:
        if level.waiting_late:
            lines.append(
                f"[red]{level.connections} connections, still waiting: {level.waiting_late}[/red] without a"
                f" first token after more than {limit_ms:,.0f} ms; counted with the time they have waited"
            )
        if level.stalled:
            lines.append(
                f"[red]{level.connections} connections, still waiting: {level.stalled}[/red] in the middle of"
                f" an answer, without an event for more than {limit_ms:,.0f} ms"
            )
        for reason, count in level.errors.items():
            lines.append(f"[red]{level.connections} connections, {count} ×[/red] {escape(reason)}")
    return lines


def bare_verdict(record: LoadRecord) -> list[str]:
    """The server beside the bare socket under the same load."""
    held = [level for level in record.levels if level.broken is None]
    bare = record.bare
    if bare is None or not held or bare.gap_ms is None or held[-1].gap_ms is None:
        return []
    ours, floor = held[-1].gap_ms, bare.gap_ms
    return [
        f"A bare aiohttp socket that sends the same frames over {_connections(bare)}: time per event at p99"
        f" {floor.p99:,.1f} ms, the server's {ours.p99:,.1f} ms ({ours.p99 / floor.p99:.2f} ×);"
        f" CPU {_cores(bare)}, the server's {_cores(held[-1])}."
    ]


def flood_verdict(record: LoadRecord) -> list[str]:
    """What users saw of a flood, what the flood got, and how long the server took to recover."""
    flood = record.flood
    if flood is None:
        return []
    tally, calm = flood.tally, record.levels[-1]
    who = "another tenant" if flood.is_other_tenant else "the same tenant"
    lines = [
        f"A flood by {who}, {tally.connections:,} connections without pauses for {tally.seconds:.0f} s:"
        f" {tally.turns:,} answers, {sum(tally.refusals.values()):,} refusals"
        + (f" ({_listed(tally.refusals)})" if tally.refusals else "")
        + (f", failures: {_listed(tally.failures)}" if tally.failures else "")
        + "."
    ]
    if tally.refused_ms is not None:
        lines.append(
            f"Refusals came after {_ranks(tally.refused_ms)} ms ({_RANKS});"
            f" {tally.with_retry_after:,} of {tally.refused_ms.count:,} said when to try again."
        )
    for what, level in (("before", calm), ("during", flood.during), ("after", flood.after)):
        lines.append(
            f"  users {what}: {level.turns_per_s:.1f} turns/s, first token {_ranks(level.first_token_ms)} ms,"
            f" gap {_ranks(level.gap_ms)} ms, {level.failed} errors"
            + (f" ({_listed(level.errors)})" if level.errors else "")
        )
    recovery = "did not recover" if flood.recovery_s is None else f"recovered within {flood.recovery_s:.1f} s"
    lines.append(f"After the flood the service level {recovery}.")
    return [escape(line) for line in lines]


def _connections(level: Level) -> str:
    idle = f" and {level.open_idle:,} idle ones" if level.idle else ""
    return f"{level.connections} connections{idle}"


def _cores(level: Level) -> str:
    return f"{level.server_cores:.2f} cores" if level.server_cores is not None else "unknown"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} × {what}" for what, count in counts.items())


def _table(record: LoadRecord) -> Table:
    table = Table(
        title=f"{record.mode}: a short chat over each connection, {record.think_ms:g} ms between turns",
        title_justify="left",
        title_style="bold",
    )
    has_idle = any(level.idle for level in record.levels)
    has_schedule = any(level.lag_ms is not None for level in record.levels)
    for heading in _row(record.levels[0], has_idle=has_idle, has_schedule=has_schedule):
        table.add_column(heading, justify="right")
    for level in record.levels:
        row = _row(level, has_idle=has_idle, has_schedule=has_schedule)
        table.add_row(*row.values(), style="red" if level.broken is not None else None)
    return table


def _row(level: Level, *, has_idle: bool, has_schedule: bool) -> dict[str, str]:
    """The cells of a level by their headings."""
    cores, memory, each = level.server_cores, level.resident_bytes, level.bytes_per_connection
    return {
        "connec-\ntions": f"{level.connections:,}",
        "open": f"{level.open_connections:,}",
        **({"idle": f"{level.open_idle:,}"} if has_idle else {}),
        "turns/s": f"{level.turns_per_s:,.1f}",
        f"first token ms\n{_RANKS}": _ranks(level.first_token_ms),
        f"gap ms\n{_RANKS}": _ranks(level.gap_ms),
        **({f"lag ms\n{_RANKS}": _ranks(level.lag_ms), "pace": _share(level.pace)} if has_schedule else {}),
        "server\ncores": f"{cores:.2f}" if cores is not None else "",
        "bench\ncores": f"{level.client_cores:.2f}",
        "memory": f"{memory / 1e6:,.0f} MB" if memory is not None else "",
        "per con-\nnection": f"{each / 1e3:,.0f} kB" if each is not None else "",
        "still\nwaiting": f"{level.waiting + level.stalled:,}",
        "errors": f"{level.failed:,}",
    }


def _share(found: float | None) -> str:
    return f"{found:.1%}" if found is not None else ""


def _ranks(found: Percentiles | None) -> str:
    return " / ".join(f"{rank:,.1f}" for rank in (found.p50, found.p95, found.p99)) if found else ""
