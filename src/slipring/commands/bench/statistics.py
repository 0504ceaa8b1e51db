"""Statistics over a record: medians, percentiles and spreads.

A mode with a faulty answer gets no times. If some repeats of a mode failed, its figures cover the others.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from slipring.commands.bench.results import BenchRecord, Checked, LoopResult, TurnResult

_WEAKEST: tuple[Checked | None, ...] = (None, "none", "tokens", "digest")


class Spread(Struct, frozen=True, kw_only=True):
    """Median, 95th percentile and range of some values."""

    median: float
    p95: float
    low: float
    high: float
    count: int


class Summary(Struct, frozen=True, kw_only=True):
    """Figures of one mode in one workload."""

    workload: str
    mode: str
    faults: tuple[str, ...] = ()
    """Faults of all loops. If there are any, the summary has no times."""
    errors: tuple[str, ...] = ()
    """Why loops ended early without a faulty answer."""
    tried: int = 0
    """Repeats that were started."""
    repeats: int = 0
    """Repeats that finished; all figures cover only these."""
    history_checked: Checked | None = None
    """The weakest check among the loops; None if the record does not say."""
    wall_ms: Spread | None = None
    """Loop time over the repeats; with lanes, the mean of the loops that ran at the same time."""
    turn_ms: Spread | None = None
    created_ms: Spread | None = None
    first_token_ms: Spread | None = None
    cpu_ms: Spread | None = None
    """CPU time of the server per turn, over the repeats."""
    sent_bytes: float = 0.0
    """Per loop, median."""
    received_bytes: float = 0.0
    """Per loop, median."""
    output_tokens: float | None = None
    """Per loop, median; None if the server does not count them."""
    cached_share: float | None = None
    """Cached tokens as a share of all input tokens."""
    stages_ms: tuple[tuple[str, float], ...] = ()
    """Mean time per turn by stage, in the server's order."""
    outside_ms: float | None = None
    """Mean time per turn that no stage covers, mostly transport; None if the server reports no stages."""


def weakest(loops: Iterable[LoopResult]) -> Checked | None:
    """The weakest check of any of these loops."""
    return min((loop.history_checked for loop in loops), key=_WEAKEST.index)


def spread(values: Iterable[float]) -> Spread | None:
    """None without values. The 95th percentile is by nearest rank, so it is one of the values."""
    ranked = sorted(values)
    if not ranked:
        return None
    return Spread(
        median=statistics.median(ranked),
        p95=ranked[math.ceil(0.95 * len(ranked)) - 1],
        low=ranked[0],
        high=ranked[-1],
        count=len(ranked),
    )


def summarise(record: BenchRecord) -> list[Summary]:
    """A summary of every mode in every workload that was run, in the order of the record."""
    return [
        _summary(workload.name, mode.name, loops)
        for workload in record.workloads
        for mode in record.modes
        if (loops := record.of(workload.name, mode.name))
    ]


def finished(loops: Sequence[LoopResult]) -> list[LoopResult]:
    """The loops of repeats without an error. If one lane fails, the whole repeat is excluded, because the
    other lanes ran with less competition."""
    failed = {loop.repeat for loop in loops if loop.error is not None}
    return [loop for loop in loops if loop.repeat not in failed]


def cumulative(loops: Sequence[LoopResult]) -> list[tuple[int, Spread]]:
    """For each turn number, the time spent in turns up to its end, over the repeats."""
    return _by_number(loops, lambda loop: list(itertools.accumulate(turn.total_ms for turn in loop.turns)))


def by_turn(loops: Sequence[LoopResult], figure: str) -> list[tuple[int, Spread]]:
    """For each turn number, the field ``figure`` of its turns, over the repeats."""
    return _by_number(loops, lambda loop: [getattr(turn, figure) for turn in loop.turns])


def _by_number(
    loops: Sequence[LoopResult], figures: Callable[[LoopResult], Sequence[float | None]]
) -> list[tuple[int, Spread]]:
    values: dict[int, list[float]] = {}
    for loop in loops:
        for turn, value in zip(loop.turns, figures(loop), strict=True):
            if value is not None:
                values.setdefault(turn.number, []).append(value)
    return [(number, found) for number in sorted(values) if (found := spread(values[number])) is not None]


def _summary(workload: str, mode: str, found: list[LoopResult]) -> Summary:
    loops = finished(found)
    summary = Summary(
        workload=workload,
        mode=mode,
        faults=tuple(fault for loop in found for fault in loop.faults),
        errors=tuple(loop.error for loop in found if loop.error is not None),
        tried=len({loop.repeat for loop in found}),
        repeats=len({loop.repeat for loop in loops}),
        history_checked=weakest(found),
    )
    return summary if summary.faults or not loops else _with_figures(summary, loops)


def _with_figures(summary: Summary, loops: list[LoopResult]) -> Summary:
    turns = [turn for loop in loops for turn in loop.turns]
    input_tokens = sum(turn.input_tokens for turn in turns)
    outputs = [sum(turn.output_tokens for turn in loop.turns) for loop in loops]
    return structs.replace(
        summary,
        wall_ms=spread(wall_by_repeat(loops).values()),
        turn_ms=spread(turn.total_ms for turn in turns),
        created_ms=spread(turn.created_ms for turn in turns if turn.created_ms is not None),
        first_token_ms=spread(turn.first_token_ms for turn in turns if turn.first_token_ms is not None),
        cpu_ms=spread(
            loop.cpu_ms / len(loop.turns) for loop in loops if loop.cpu_ms is not None and loop.turns
        ),
        sent_bytes=statistics.median(sum(turn.sent_bytes for turn in loop.turns) for loop in loops),
        received_bytes=statistics.median(sum(turn.received_bytes for turn in loop.turns) for loop in loops),
        output_tokens=statistics.median(outputs) if any(outputs) else None,
        cached_share=sum(turn.cached_tokens for turn in turns) / input_tokens if input_tokens else None,
        stages_ms=(stages := _stages(turns)),
        outside_ms=_outside(turns, sum(spent_ms for _, spent_ms in stages)) if stages else None,
    )


def wall_by_repeat(loops: Sequence[LoopResult]) -> dict[int, float]:
    """The wall time of each repeat; one with lanes counts as the mean of its lanes."""
    values: dict[int, list[float]] = {}
    for loop in loops:
        values.setdefault(loop.repeat, []).append(loop.wall_ms)
    return {repeat: statistics.fmean(found) for repeat, found in values.items()}


def _outside(turns: list[TurnResult], inside_ms: float) -> float:
    """Not below 0: client and server read different clocks, so the difference can be slightly negative."""
    return max(0.0, statistics.fmean(turn.total_ms for turn in turns) - inside_ms)


def _stages(turns: list[TurnResult]) -> tuple[tuple[str, float], ...]:
    """Mean per stage over all turns; a turn without a stage counts as 0 ms."""
    totals: dict[str, float] = {}
    for turn in turns:
        for name, spent_ms in turn.stages_ms.items():
            totals[name] = totals.get(name, 0.0) + spent_ms
    return tuple((name, total / len(turns)) for name, total in totals.items())
