"""Formats the results as a table with a row for each client and transport."""

from collections.abc import Iterator, Sequence

from tests.clients.real.client import Report

_HEADINGS = ("client", "version", "transport", "checks passed")


def table(reports: Sequence[Report]) -> str:
    rows = [_HEADINGS, *(row for report in reports for row in _rows(report))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    if report.skipped:
        yield report.title, report.version, "", f"skipped: {report.skipped}"
    for transport in dict.fromkeys(outcome.check.transport for outcome in report.outcomes):
        here = [outcome for outcome in report.outcomes if outcome.check.transport == transport]
        passed = sum(outcome.passed for outcome in here)
        yield report.title, report.version, transport, f"{passed} of {len(here)}"


def failures(reports: Sequence[Report]) -> str:
    """Return all failures in full."""
    return "\n".join(
        f"FAILED {report.title}, {outcome.check.transport}: {outcome.check.what}\n{outcome.failure}"
        for report in reports
        for outcome in report.failures
    )
