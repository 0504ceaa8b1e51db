"""What a workload comes to, in words: the WebSocket against HTTP, and whether that is more than noise.

The words follow the figures: where repeats disagree about which mode is faster, no difference is claimed.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.bench.report import units
from slipring.bench.report.palette import HTTP
from slipring.bench.results import Record, Workload
from slipring.bench.statistics import Comparison, Summary, compare

MEASURE = "http-full"
"""The mode that all others are held against."""
NO_DIFFERENCE = "no difference beyond the spread"


class Verdict(Struct, frozen=True, kw_only=True):
    figure: str
    """A few words."""
    title: str
    """One line, with what is compared."""
    sentence: str
    """All of it, with figures."""


def verdict(record: Record, summaries: Sequence[Summary], workload: Workload) -> Verdict:
    titles = {mode.name: mode.title for mode in record.modes}
    here = [summary for summary in summaries if summary.workload == workload.name]
    right = [summary for summary in here if summary.wall_ms is not None]
    wrong = [titles[summary.mode] for summary in here if summary.wrongs]
    warning = f" Wrong answers, so no times: {'; '.join(wrong)}." if wrong else ""
    socket = next((summary for summary in right if not summary.mode.startswith(HTTP)), None)
    others = [summary for summary in right if summary.mode.startswith(HTTP)]
    if socket is not None and others:
        told = _against(record, socket, others, titles)
        return Verdict(
            figure=told.figure,
            title=f"{workload.title}{told.title}",
            sentence=f"{told.sentence}{warning}",
        )
    if not here:
        said = "No mode was run in this workload."
        return Verdict(figure="not run", title=f"{workload.title}: not run", sentence=said)
    if not right:
        said = f"No mode answered rightly.{warning}"
        return Verdict(figure="no figure", title=f"{workload.title}: wrong answers", sentence=said)
    alone = socket or others[0]
    assert alone.wall_ms is not None
    told_ms = units.duration(alone.wall_ms.median)
    sentence = f"Over {titles[alone.mode]} the loop takes {told_ms}; there is nothing to hold it against."
    title = f"{workload.title}: {told_ms} over {titles[alone.mode]}"
    return Verdict(figure=told_ms, title=title, sentence=f"{sentence}{warning}")


def measure(summaries: Sequence[Summary], workload: Workload) -> Summary | None:
    """What the other modes of a workload are held against; None where that was not run or is wrong."""
    return next(
        (
            summary
            for summary in summaries
            if summary.workload == workload.name and summary.mode == MEASURE and summary.wall_ms is not None
        ),
        None,
    )


def held_against(record: Record, summary: Summary, against: Summary | None) -> Comparison | None:
    if against is None or against.mode == summary.mode or summary.wall_ms is None:
        return None
    return compare(record.of(against.workload, against.mode), record.of(summary.workload, summary.mode))


def amount(compared: Comparison) -> str:
    """43 % less, or 5 % more; of one repeat as it is, of several only where they agree."""
    if compared.repeats > 1 and not compared.is_clear:
        return NO_DIFFERENCE
    return f"{units.percent(abs(compared.saved))} {'less' if compared.saved >= 0 else 'more'}"


def range_of(compared: Comparison) -> str:
    """Between which figures the repeats lie."""
    if compared.repeats == 1:
        return "one repeat: spread not known"
    if compared.is_clear:
        least, most = sorted((abs(compared.low), abs(compared.high)))
        return units.span(least, most, units.percent)
    return f"{units.percent(-compared.low)} more to {units.percent(compared.high)} less"


def _against(record: Record, socket: Summary, others: Sequence[Summary], titles: dict[str, str]) -> Verdict:
    phrases, figure, title, name = [], None, "", titles[socket.mode]
    assert socket.wall_ms is not None
    takes = units.duration(socket.wall_ms.median)
    for other in others:
        compared = held_against(record, socket, other)
        if compared is None or other.wall_ms is None:
            continue
        if figure is None:
            is_same = amount(compared) == NO_DIFFERENCE
            figure = NO_DIFFERENCE if is_same else f"{amount(compared)} time"
            title = f" over {name}: {figure} {'from' if is_same else 'than over'} {titles[other.mode]}"
        over = f" over {compared.repeats} repeats" if compared.repeats > 1 else ""
        said = f"{takes} instead of {units.duration(other.wall_ms.median)}; {range_of(compared)}{over}"
        phrases.append(
            f"{NO_DIFFERENCE[0].upper()}{NO_DIFFERENCE[1:]} from {titles[other.mode]} ({said})."
            if amount(compared) == NO_DIFFERENCE
            else f"{amount(compared)} wall time than over {titles[other.mode]} ({said})."
        )
    if figure is None:
        said = f"Over {name} the loop takes {takes}; no repeat has a second mode."
        return Verdict(figure=takes, title=f" over {name}: {takes}", sentence=said)
    return Verdict(figure=figure, title=title, sentence=f"{name}: {' '.join(phrases)}")
