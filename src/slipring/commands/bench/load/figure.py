"""The levels of a load as one SVG file: loops at once against the time of their turns and first tokens."""

from pathlib import Path

from slipring.commands.bench.load.results import LoadRecord
from slipring.commands.bench.load.service_level import Level, Percentiles
from slipring.commands.bench.report import figure
from slipring.commands.bench.report.conditions import decoding, is_without_model, processor
from slipring.commands.bench.report.figure import Plot, Series, Style, Value
from slipring.commands.bench.report.units import duration

_TURN, _FIRST = Style("m3", None, "diamond"), Style("m0", "7 3", "circle")


def write(record: LoadRecord, path: Path) -> None:
    path.write_text(render(record), encoding="utf-8")


def render(record: LoadRecord) -> str:
    endpoint = record.endpoint
    levels = [level for level in record.levels if level.turn_ms and level.first_token_ms]
    served = f"no model: decoding {decoding(endpoint)}" if is_without_model(endpoint) else endpoint.model
    plots = [_plot(levels, served, record)] if levels else []
    words = " ".join(map(_sentence, levels))
    return figure.drawn(
        plots,
        title=f"{served}: turns of {levels[-1].connections} loops at once" if levels else "No turn has ended",
        about=words,
        subtitle=_sentence(levels[-1]) if levels else "",
        conditions=" · ".join(
            (
                record.when[:10],
                processor(record.machine),
                record.mode,
                f"pauses of {duration(record.think_ms)}",
                "medians, and the range up to p95",
            )
        ),
    )


def _plot(levels: list[Level], served: str, record: LoadRecord) -> Plot:
    lines = {"a whole turn": (_TURN, "turn_ms"), "its first token": (_FIRST, "first_token_ms")}
    return Plot(
        heading=f"Time of a turn, {record.hold_s:g} s for each number of loops",
        caption="loops at once",
        amounts=[level.connections for level in levels],
        series=[
            Series(name, style, [_value(getattr(level, field)) for level in levels])
            for name, (style, field) in lines.items()
        ],
    )


def _value(percentiles: Percentiles | None) -> Value:
    assert percentiles is not None
    return Value(percentiles.p50, percentiles.p50, percentiles.p95)


def _sentence(level: Level) -> str:
    assert level.turn_ms is not None
    turn = level.turn_ms
    broken = f"; the service level was violated: {level.broken}" if level.broken else ""
    return (
        f"{level.connections:,} loops: a turn takes {duration(turn.p50)}, {duration(turn.p95)} at p95,"
        f" {level.turns_per_s:.1f} turns a second{broken}."
    )
