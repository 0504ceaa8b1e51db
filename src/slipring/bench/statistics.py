"""Figures about figures: medians, percentiles, spreads, and what they say of two modes side by side.

Everything here is made from a ``Record``; nothing is measured. A mode with a wrong answer has no times: what
answers wrongly is not fast. Of a mode that fails at times, figures are of the repeats that ran to their end.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from slipring.bench.results import Checked, Loop, Record, Turn

ENOUGH = 5
"""Repeats from which on a difference is claimed: of fewer, all agree by chance too often."""
_WEAKEST: tuple[Checked | None, ...] = (None, "none", "tokens", "digest")


class Spread(Struct, frozen=True, kw_only=True):
    """Many figures, in few."""

    median: float
    p95: float
    low: float
    high: float
    count: int


class Summary(Struct, frozen=True, kw_only=True):
    """One mode in one workload."""

    workload: str
    mode: str
    wrongs: tuple[str, ...] = ()
    """What was wrong, loop by loop; where there is anything, there are no times."""
    errors: tuple[str, ...] = ()
    """Why loops ended before their end, though no answer was wrong."""
    tried: int = 0
    """Repeats that were begun."""
    repeats: int = 0
    """Repeats that ran to their end: all figures are of these."""
    history_checked: Checked | None = None
    """In the loop where it was checked least; None where that was not kept."""
    wall_ms: Spread | None = None
    """Of whole loops, over the repeats; with lanes, the mean of those that ran at once."""
    turn_ms: Spread | None = None
    created_ms: Spread | None = None
    first_token_ms: Spread | None = None
    cpu_ms: Spread | None = None
    """Of the server, per turn, over the repeats."""
    sent_bytes: float = 0.0
    """In a whole loop, median."""
    received_bytes: float = 0.0
    cached_share: float | None = None
    """Of all input tokens of a loop, those that were cached."""
    stages_ms: tuple[tuple[str, float], ...] = ()
    """Mean per turn by stage, in the server's order, over all turns."""
    outside_ms: float | None = None
    """Mean per turn that is in none of these: the way there and back. None where there are no stages."""


class Comparison(Struct, frozen=True, kw_only=True):
    """How much less wall time one mode takes than another: 0.4 is 40 % less, -0.1 is 10 % more."""

    saved: float
    low: float
    high: float
    """Repeat by repeat, the median, the least and the most: what disturbs a machine for a while disturbs both
    modes."""
    repeats: int

    @property
    def is_enough(self) -> bool:
        """Whether there are repeats enough to tell anything."""
        return self.repeats >= ENOUGH

    @property
    def is_clear(self) -> bool:
        """Whether every repeat says the same, and there are enough of them."""
        return self.is_enough and (self.low > 0 or self.high < 0)


def spread(values: Iterable[float]) -> Spread | None:
    """None for nothing. Percentiles are those of the nearest rank: a figure that was measured."""
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


def summarise(record: Record) -> list[Summary]:
    """Every mode of every workload that was run, in the record's order."""
    return [
        _summary(workload.name, mode.name, loops)
        for workload in record.workloads
        for mode in record.modes
        if (loops := record.of(workload.name, mode.name))
    ]


def finished(loops: Sequence[Loop]) -> list[Loop]:
    """Those of the repeats that ran to their end. Where one lane fails, the others have had more room."""
    failed = {loop.repeat for loop in loops if loop.error is not None}
    return [loop for loop in loops if loop.repeat not in failed]


def compare(slow: Sequence[Loop], fast: Sequence[Loop]) -> Comparison | None:
    """None where there is no repeat in which both were run. Lanes of a repeat count by their mean."""
    slow_ms, fast_ms = _by_repeat(slow), _by_repeat(fast)
    pairs = [(slow_ms[repeat], fast_ms[repeat]) for repeat in slow_ms if repeat in fast_ms]
    if not pairs or min(slow_ms.values()) <= 0:
        return None
    each = [1 - fast_one / slow_one for slow_one, fast_one in pairs]
    return Comparison(saved=statistics.median(each), low=min(each), high=max(each), repeats=len(each))


def cumulative(loops: Sequence[Loop]) -> list[tuple[int, Spread]]:
    """The time spent in turns until the end of each, by its number, over the repeats."""
    values: dict[int, list[float]] = {}
    for loop in loops:
        spent_ms = itertools.accumulate(turn.total_ms for turn in loop.turns)
        for turn, until_ms in zip(loop.turns, spent_ms, strict=True):
            values.setdefault(turn.number, []).append(until_ms)
    return [(number, found) for number in sorted(values) if (found := spread(values[number])) is not None]


def by_turn(loops: Sequence[Loop], figure: str) -> list[tuple[int, Spread]]:
    """A figure of each turn by its number, over the repeats."""
    values: dict[int, list[float]] = {}
    for loop in loops:
        for turn in loop.turns:
            value = getattr(turn, figure)
            if value is not None:
                values.setdefault(turn.number, []).append(value)
    return [(number, found) for number in sorted(values) if (found := spread(values[number])) is not None]


def _summary(workload: str, mode: str, found: list[Loop]) -> Summary:
    loops = finished(found)
    checked = min((loop.history_checked for loop in found), key=_WEAKEST.index)
    told = Summary(
        workload=workload,
        mode=mode,
        wrongs=tuple(wrong for loop in found for wrong in loop.wrongs),
        errors=tuple(loop.error for loop in found if loop.error is not None),
        tried=len({loop.repeat for loop in found}),
        repeats=len({loop.repeat for loop in loops}),
        history_checked=checked,
    )
    return told if told.wrongs or not loops else _figures(told, loops)


def _figures(told: Summary, loops: list[Loop]) -> Summary:
    turns = [turn for loop in loops for turn in loop.turns]
    asked = sum(turn.input_tokens for turn in turns)
    return structs.replace(
        told,
        wall_ms=spread(_by_repeat(loops).values()),
        turn_ms=spread(turn.total_ms for turn in turns),
        created_ms=spread(turn.created_ms for turn in turns if turn.created_ms is not None),
        first_token_ms=spread(turn.first_token_ms for turn in turns if turn.first_token_ms is not None),
        cpu_ms=spread(
            loop.cpu_ms / len(loop.turns) for loop in loops if loop.cpu_ms is not None and loop.turns
        ),
        sent_bytes=statistics.median(sum(turn.sent_bytes for turn in loop.turns) for loop in loops),
        received_bytes=statistics.median(sum(turn.received_bytes for turn in loop.turns) for loop in loops),
        cached_share=sum(turn.cached_tokens for turn in turns) / asked if asked else None,
        stages_ms=(stages := _stages(turns)),
        outside_ms=_outside(turns, sum(spent_ms for _, spent_ms in stages)) if stages else None,
    )


def _by_repeat(loops: Sequence[Loop]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for loop in loops:
        values.setdefault(loop.repeat, []).append(loop.wall_ms)
    return {repeat: statistics.fmean(found) for repeat, found in values.items()}


def _outside(turns: list[Turn], inside_ms: float) -> float:
    """Two clocks were read, so that what is left may be a little less than nothing."""
    return max(0.0, statistics.fmean(turn.total_ms for turn in turns) - inside_ms)


def _stages(turns: list[Turn]) -> tuple[tuple[str, float], ...]:
    """A turn without a stage has spent no time in it."""
    totals: dict[str, float] = {}
    for turn in turns:
        for name, spent_ms in turn.stages_ms.items():
            totals[name] = totals.get(name, 0.0) + spent_ms
    return tuple((name, total / len(turns)) for name, total in totals.items())
