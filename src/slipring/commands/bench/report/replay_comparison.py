"""A replayed loop beside the times that were recorded with it, turn by turn."""

from collections.abc import Sequence

from msgspec import Struct

from slipring.commands.bench.report import units
from slipring.commands.bench.results import BenchRecord, RecordedTimes, Workload
from slipring.commands.bench.statistics import Spread, Summary, by_turn, finished

TITLE = "Recorded against replayed, turn by turn"
NOTE = (
    "pause: time of the client before the turn; tokens: of the answer, which differs between models; first:"
    " time to the first token. Recorded times are those of the server, from the arrival of the request; those"
    " of the replay are its client's, as medians, with their ratio to the recorded time"
)
_NOT_THERE = "–"


class ReplayTable(Struct, frozen=True, kw_only=True):
    """A table of texts: one row for each turn, then one for all of them."""

    columns: list[str]
    rows: list[list[str]]
    total: list[str]


def replay_table(record: BenchRecord, here: Sequence[Summary], workload: Workload) -> ReplayTable | None:
    """The comparison for a workload; None if it replays no recording with times, or no mode has times."""
    modes = [summary.mode for summary in here if summary.wall_ms is not None]
    if not workload.recorded or not modes:
        return None
    loops = {mode: finished(record.of(workload.name, mode)) for mode in modes}
    replayed = {mode: _medians(by_turn(found, "total_ms")) for mode, found in loops.items()}
    tokens = _medians(by_turn([loop for found in loops.values() for loop in found], "output_tokens"))
    rows = [
        [
            str(turn.number),
            _NOT_THERE if turn.pause_ms is None else units.duration(turn.pause_ms),
            f"{turn.output_tokens}",
            f"{tokens.get(turn.number, 0):.0f}",
            _NOT_THERE if turn.first_token_ms is None else units.duration(turn.first_token_ms),
            units.duration(turn.total_ms),
            *(_replayed(turn, replayed[mode].get(turn.number)) for mode in modes),
        ]
        for turn in workload.recorded
    ]
    return ReplayTable(
        columns=["turn", "pause", "tokens recorded", "tokens replayed", "first recorded", "recorded", *modes],
        rows=rows,
        total=_total(workload.recorded, [replayed[mode] for mode in modes], tokens),
    )


def _total(
    recorded: Sequence[RecordedTimes], replayed: Sequence[dict[int, float]], tokens: dict[int, float]
) -> list[str]:
    all_ms = sum(turn.total_ms for turn in recorded)
    whole = RecordedTimes(number=0, total_ms=all_ms)
    return [
        "all",
        units.duration(sum(turn.pause_ms or 0.0 for turn in recorded)),
        f"{sum(turn.output_tokens for turn in recorded)}",
        f"{sum(tokens.values()):.0f}",
        "",
        units.duration(all_ms),
        *(
            _replayed(whole, sum(found.values()) if len(found) == len(recorded) else None)
            for found in replayed
        ),
    ]


def _medians(figures: Sequence[tuple[int, Spread]]) -> dict[int, float]:
    return {number: found.median for number, found in figures}


def _replayed(turn: RecordedTimes, total_ms: float | None) -> str:
    if total_ms is None:
        return _NOT_THERE
    ratio = units.shown_ratio(total_ms, turn.total_ms, units.duration)
    shown = units.duration(total_ms)
    return shown if ratio is None else f"{shown} {units.ratio(ratio)}"
