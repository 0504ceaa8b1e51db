"""What a workload comes to, in words: the WebSocket against HTTP, and whether that is more than noise.

The words follow the figures: where repeats disagree about which mode is faster, or are too few, no difference
is claimed. Nor is one where a mode may have been fast because history was forgotten.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.bench.report import units
from slipring.bench.report.palette import HTTP
from slipring.bench.results import Checked, Record, Workload
from slipring.bench.statistics import ENOUGH, Comparison, Summary, compare, finished

MEASURE = "http-full"
"""The mode that all others are held against."""
NO_DIFFERENCE = "no difference beyond the spread"
TOO_FEW = "too few repeats to tell"
_CHECKS: dict[Checked, str] = {
    "digest": "by a digest",
    "tokens": "by counts of tokens",
    "none": "not at all",
}


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
    remarks = "".join(f" {each}" for each in (*_warnings(here, titles), history(here)) if each)
    if not here:
        said = "No mode was run in this workload."
        return Verdict(figure="not run", title=f"{workload.title}: not run", sentence=said)
    if not right:
        is_wrong = any(summary.wrongs for summary in here)
        said = "No mode answered rightly." if is_wrong else "No mode ran to its end."
        title = f"{workload.title}: {'wrong answers' if is_wrong else 'failed'}"
        return Verdict(figure="no figure", title=title, sentence=f"{said}{remarks}")
    socket = next((summary for summary in right if not summary.mode.startswith(HTTP)), None)
    others = [summary for summary in right if summary.mode.startswith(HTTP)]
    if socket is not None and others:
        told = _against(record, socket, others, titles)
    else:
        told = _alone(socket or others[0], titles, "there is nothing to hold it against")
    return Verdict(
        figure=told.figure, title=f"{workload.title}{told.title}", sentence=f"{told.sentence}{remarks}"
    )


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


def is_doubtful(record: Record, summary: Summary) -> bool:
    """Whether a mode may have been fast because history was forgotten: nobody could see it."""
    sends_history = {mode.name for mode in record.modes if mode.sends_history}
    return summary.history_checked == "none" and summary.mode not in sends_history


def held_against(record: Record, summary: Summary, against: Summary | None) -> Comparison | None:
    if against is None or against.mode == summary.mode or summary.wall_ms is None:
        return None
    if is_doubtful(record, summary) or is_doubtful(record, against):
        return None
    slow, fast = (finished(record.of(one.workload, one.mode)) for one in (against, summary))
    return compare(slow, fast)


def amount(compared: Comparison) -> str:
    """43 % less, or 5 % more, where repeats agree and are enough."""
    if compared.is_enough and not compared.is_clear:
        return NO_DIFFERENCE
    told = f"{units.percent(abs(compared.saved))} {'less' if compared.saved >= 0 else 'more'}"
    return told if compared.is_clear else f"\N{ALMOST EQUAL TO}{told}"


def range_of(compared: Comparison) -> str:
    """Between which figures the repeats lie."""
    if compared.repeats == 1:
        return f"one repeat: {TOO_FEW}"
    if compared.low > 0 or compared.high < 0:
        least, most = sorted((abs(compared.low), abs(compared.high)))
        told = units.span(least, most, units.percent)
    else:
        told = f"{units.percent(-compared.low)} more to {units.percent(compared.high)} less"
    return told if compared.is_enough else f"{told}: {TOO_FEW}"


def history(here: Sequence[Summary]) -> str:
    """How it was checked in each mode that the whole history was read; empty where that was not kept."""
    told: dict[Checked, list[str]] = {}
    for summary in here:
        if summary.history_checked is not None:
            told.setdefault(summary.history_checked, []).append(summary.mode)
    if not told:
        return ""
    if len(told) == 1 and sum(map(len, told.values())) == len(here):
        return f"History was checked {_CHECKS[next(iter(told))]}."
    each = (f"{_CHECKS[how]}: {', '.join(modes)}" for how, modes in told.items())
    return f"History was checked {'; '.join(each)}."


def failures(summary: Summary) -> str:
    """In how many repeats a mode has failed."""
    return f"failed in {summary.tried - summary.repeats} of {summary.tried}"


def _warnings(here: Sequence[Summary], titles: dict[str, str]) -> list[str]:
    wrong = [titles[summary.mode] for summary in here if summary.wrongs]
    failed = [summary for summary in here if summary.errors and not summary.wrongs]
    told = [f"Wrong answers, so no times: {'; '.join(wrong)}."] if wrong else []
    if failed:
        each = (f"{titles[summary.mode]} ({failures(summary)})" for summary in failed)
        told.append(f"Not all repeats ran to their end: {'; '.join(each)}.")
    return told


def _alone(one: Summary, titles: dict[str, str], why: str) -> Verdict:
    assert one.wall_ms is not None
    takes, name = units.duration(one.wall_ms.median), titles[one.mode]
    return Verdict(
        figure=takes,
        title=f": {takes} over {name}",
        sentence=f"Over {name} the loop takes {takes}; {why}.",
    )


def _against(record: Record, socket: Summary, others: Sequence[Summary], titles: dict[str, str]) -> Verdict:
    if is_doubtful(record, socket):
        why = "whether it has read the whole history could not be checked, so no saving is claimed"
        return _alone(socket, titles, why)
    phrases, figure, title, name = [], None, "", titles[socket.mode]
    is_enough = True
    for other in others:
        compared = held_against(record, socket, other)
        if compared is None:
            continue
        if figure is None:
            figure = _headline(compared)
            between = "than over" if compared.is_clear else "from"
            title = f" over {name}: {figure} {between} {titles[other.mode]}"
        is_enough &= compared.is_enough
        phrases.append(_phrase(compared, socket, other, titles[other.mode]))
    if figure is None:
        return _alone(socket, titles, "there is nothing to hold it against")
    if not is_enough:
        phrases.append(f"{_sentence(TOO_FEW)}: differences are named from {ENOUGH} on.")
    return Verdict(figure=figure, title=title, sentence=f"{name}: {' '.join(phrases)}")


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
    said = f"{took}; {range_of(compared)} over {compared.repeats} repeats"
    if compared.is_clear:
        return f"{amount(compared)} wall time than over {name} ({said})."
    return f"{_sentence(NO_DIFFERENCE)} from {name} ({said})."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"
