"""Compares modes and states the result of a workload in words.

A difference is claimed only if there are enough repeats and all of them agree, and only for modes that were
verified to have read the whole history. Percentages follow from the medians as they are shown.
"""

import statistics
from collections.abc import Sequence

from msgspec import Struct, structs

from slipring.commands.bench.report import units
from slipring.commands.bench.report.charts import HTTP
from slipring.commands.bench.results import BenchRecord, Checked, LoopResult, Workload
from slipring.commands.bench.statistics import Summary, finished, wall_by_repeat

BASELINE = "http-full"
"""The mode that the tables compare all other modes with."""
NO_DIFFERENCE = "no difference beyond the spread"
TOO_FEW = "too few repeats for a conclusion"
_NOTHING_ELSE = "there is nothing to compare it with"
_CHECKS: dict[Checked, str] = {
    "digest": "verified by digest",
    "tokens": "verified by token counts",
    "none": "not verified",
}


ENOUGH = 5
"""Fewest repeats for which a difference is claimed: with fewer, all of them agree by chance too often."""


class Comparison(Struct, frozen=True, kw_only=True):
    """How much less wall time one mode takes than another: 0.4 is 40 % less, -0.1 is 10 % more."""

    saved: float
    """From the medians of both modes."""
    low: float
    high: float
    """The range of the repeats. Each compares two loops that ran one after the other, because a machine that
    slows down for a while slows down both."""
    repeats: int

    @property
    def is_enough(self) -> bool:
        """Whether there are at least ``ENOUGH`` repeats."""
        return self.repeats >= ENOUGH

    @property
    def is_clear(self) -> bool:
        """Whether there are enough repeats and all of them, and the medians, agree on the faster mode."""
        is_less = self.low > 0 and self.saved > 0
        is_more = self.high < 0 and self.saved < 0
        return self.is_enough and (is_less or is_more)


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of a workload."""

    figure: str
    """A few words, as in "31 % less time"."""
    title: str
    """One line that also names what is compared."""
    sentence: str
    """Everything, with figures and warnings."""


def verdict(record: BenchRecord, summaries: Sequence[Summary], workload: Workload) -> Verdict:
    titles = {mode.name: mode.title for mode in record.modes}
    here = [summary for summary in summaries if summary.workload == workload.name]
    correct = [summary for summary in here if summary.wall_ms is not None]
    remarks = "".join(f" {each}" for each in (*_warnings(here, titles), history(here)) if each)
    if not here:
        text = "No mode was run in this workload."
        return Verdict(figure="not run", title=f"{workload.title}: not run", sentence=text)
    if not correct:
        has_faults = any(summary.faults for summary in here)
        text = "No mode answered correctly." if has_faults else "No mode finished."
        title = f"{workload.title}: {'wrong answers' if has_faults else 'failed'}"
        return Verdict(figure="no figure", title=title, sentence=f"{text}{remarks}")
    socket = next((summary for summary in correct if not summary.mode.startswith(HTTP)), None)
    others = [summary for summary in correct if summary.mode.startswith(HTTP)]
    if socket is not None and others:
        found = _compared(record, socket, others, titles)
    else:
        found = _alone(socket or others[0], titles, _NOTHING_ELSE)
    return Verdict(
        figure=found.figure, title=f"{workload.title}{found.title}", sentence=f"{found.sentence}{remarks}"
    )


def baseline_of(summaries: Sequence[Summary], workload: Workload) -> Summary | None:
    """The summary of the baseline in a workload; None if it was not run or is faulty."""
    return next(
        (
            summary
            for summary in summaries
            if summary.workload == workload.name and summary.mode == BASELINE and summary.wall_ms is not None
        ),
        None,
    )


def baseline_note(record: BenchRecord, baseline: Summary | None) -> str:
    """Names the baseline in words."""
    if baseline is None:
        return f"no ratios: the baseline, {BASELINE}, has no figures here"
    title = next((mode.title for mode in record.modes if mode.name == BASELINE), BASELINE)
    return f"ratios are to the baseline: {title} ({BASELINE})"


def is_unverified(record: BenchRecord, summary: Summary) -> bool:
    """Whether a mode may be fast only because the server lost history: nothing could verify it."""
    sends_history = {mode.name for mode in record.modes if mode.sends_history}
    return summary.history_checked == "none" and summary.mode not in sends_history


def compare(slow: Sequence[LoopResult], fast: Sequence[LoopResult]) -> Comparison | None:
    """Compare the repeats that both modes ran; None if there are none."""
    slow_ms, fast_ms = wall_by_repeat(slow), wall_by_repeat(fast)
    pairs = [(slow_ms[repeat], fast_ms[repeat]) for repeat in slow_ms if repeat in fast_ms]
    if not pairs or min(slow_ms.values()) <= 0:
        return None
    each = [1 - fast_one / slow_one for slow_one, fast_one in pairs]
    medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
    return Comparison(saved=1 - medians[1] / medians[0], low=min(each), high=max(each), repeats=len(each))


def compare_with(record: BenchRecord, summary: Summary, other: Summary | None) -> Comparison | None:
    """Compare a mode with another; None if either has no times or is unverified.

    ``saved`` is the ratio of the two medians as they are shown, the range is that of the repeats.
    """
    if other is None or other.mode == summary.mode or summary.wall_ms is None or other.wall_ms is None:
        return None
    if is_unverified(record, summary) or is_unverified(record, other):
        return None
    slow, fast = (finished(record.of(one.workload, one.mode)) for one in (other, summary))
    compared = compare(slow, fast)
    ratio = units.shown_ratio(summary.wall_ms.median, other.wall_ms.median, units.duration)
    return structs.replace(compared, saved=1 - ratio) if compared and ratio is not None else None


def amount(compared: Comparison) -> str:
    """43 % less, or 5 % more; marked with ≈ if there are too few repeats."""
    if compared.is_enough and not compared.is_clear:
        return NO_DIFFERENCE
    text = _less_or_more(compared.saved)
    return text if compared.is_clear else f"\N{ALMOST EQUAL TO}{text}"


def range_of(compared: Comparison) -> str:
    """The range of the repeats."""
    if compared.repeats == 1:
        return f"one repeat: {TOO_FEW}"
    if compared.low > 0 or compared.high < 0:
        least, most = sorted((abs(compared.low), abs(compared.high)))
        text = f"{units.span(least, most, units.percent)} {'less' if compared.low > 0 else 'more'}"
    else:
        text = f"{units.percent(-compared.low)} more to {units.percent(compared.high)} less"
    return text if compared.is_enough else f"{text}: {TOO_FEW}"


def history(here: Sequence[Summary]) -> str:
    """States how history was verified in each mode; empty if the record does not say."""
    modes: dict[Checked, list[str]] = {}
    for summary in here:
        if summary.history_checked is not None:
            modes.setdefault(summary.history_checked, []).append(summary.mode)
    if not modes:
        return ""
    if len(modes) == 1 and sum(map(len, modes.values())) == len(here):
        return f"History was {_CHECKS[next(iter(modes))]}."
    each = (f"{_CHECKS[how]} in {', '.join(names)}" for how, names in modes.items())
    return f"History was {'; '.join(each)}."


def failures(summary: Summary) -> str:
    """In how many repeats a mode failed."""
    return f"failed in {summary.tried - summary.repeats} of {summary.tried}"


def _less_or_more(saved: float) -> str:
    return f"{units.percent(abs(saved))} {'less' if saved >= 0 else 'more'}"


def _warnings(here: Sequence[Summary], titles: dict[str, str]) -> list[str]:
    faulty = [titles[summary.mode] for summary in here if summary.faults]
    failed = [summary for summary in here if summary.errors and not summary.faults]
    warnings = [f"Wrong answers, so no times: {'; '.join(faulty)}."] if faulty else []
    if failed:
        each = (f"{titles[summary.mode]} ({failures(summary)})" for summary in failed)
        warnings.append(f"Some repeats failed: {'; '.join(each)}.")
    return warnings


def _alone(one: Summary, titles: dict[str, str], reason: str) -> Verdict:
    assert one.wall_ms is not None
    takes, name = units.duration(one.wall_ms.median), titles[one.mode]
    return Verdict(
        figure=takes,
        title=f": {takes} over {name}",
        sentence=f"Over {name} the loop takes {takes}; {reason}.",
    )


def _compared(
    record: BenchRecord, socket: Summary, others: Sequence[Summary], titles: dict[str, str]
) -> Verdict:
    """Compare the first WebSocket mode with every HTTP mode; the first comparison is the headline."""
    if is_unverified(record, socket):
        reason = "the bench could not verify that it read the whole history, so no saving is claimed"
        return _alone(socket, titles, reason)
    name = titles[socket.mode]
    found = [(other, compared) for other in others if (compared := compare_with(record, socket, other))]
    if not found:
        return _alone(socket, titles, _NOTHING_ELSE)
    phrases = [_phrase(compared, socket, other, titles[other.mode]) for other, compared in found]
    if not all(compared.is_enough for _, compared in found):
        phrases.append(f"{_sentence(TOO_FEW)}: a difference is claimed from {ENOUGH} repeats on.")
    first, headline = found[0]
    figure = _headline(headline)
    between = "than over" if headline.is_clear else "from"
    return Verdict(
        figure=figure,
        title=f" over {name}: {figure} {between} {titles[first.mode]}",
        sentence=f"{name}: {' '.join(phrases)}",
    )


def _headline(compared: Comparison) -> str:
    if not compared.is_enough:
        return TOO_FEW
    return f"{amount(compared)} time" if compared.is_clear else NO_DIFFERENCE


def _phrase(compared: Comparison, socket: Summary, other: Summary, name: str) -> str:
    assert socket.wall_ms is not None
    assert other.wall_ms is not None
    took = f"{units.duration(socket.wall_ms.median)} instead of {units.duration(other.wall_ms.median)}"
    if not compared.is_enough:
        count = "one repeat" if compared.repeats == 1 else f"{compared.repeats} repeats"
        return f"\N{ALMOST EQUAL TO}{took} over {name} ({count})."
    details = f"{took}; {range_of(compared)} over {compared.repeats} repeats"
    if compared.is_clear:
        return f"{amount(compared)} wall time than over {name} ({details})."
    return f"{_sentence(NO_DIFFERENCE)} from {name} ({details})."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"
