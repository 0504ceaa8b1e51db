"""The totals that the live view shows, from counted metrics."""

from collections import Counter
from collections.abc import Iterable, Mapping

from slipring.observation import metrics as table
from slipring.observation.live import Totals
from slipring.observation.metric_counts import Labels, Snapshot

SHOWN = (table.TURNS, table.TOKENS, table.REQUEST_BYTES, table.HISTORY_BYTES_SAVED, table.RENDER_FALLBACKS)
"""The metrics that totals are made from."""


def totals(counts: Mapping[str, Iterable[tuple[Labels, int]]]) -> Totals:
    """``counts``: of each metric in ``SHOWN``, by name."""
    tokens: Counter[str] = Counter(dict.fromkeys(table.TOKEN_KINDS, 0))
    tokens.update(_by(table.TOKENS, "kind", counts))
    return Totals(
        turns={status: count for status, count in _by(table.TURNS, "status", counts).items() if count},
        tokens=dict(tokens),
        request_bytes=sum(count for _, count in counts[table.REQUEST_BYTES.name]),
        history_bytes=sum(count for _, count in counts[table.HISTORY_BYTES_SAVED.name]),
        fallbacks=dict(_by(table.RENDER_FALLBACKS, "reason", counts)),
    )


def totals_of(snapshot: Snapshot) -> Totals:
    """The totals of a process, from what it has counted."""
    return totals(
        {
            metric.name: [(each.labels, int(each.value)) for each in snapshot.values.get(metric.name, ())]
            for metric in SHOWN
        }
    )


def _by(metric: table.Metric, label: str, counts: Mapping[str, Iterable[tuple[Labels, int]]]) -> Counter[str]:
    """The counts of a metric by one of its labels."""
    place = metric.label_names.index(label)
    found: Counter[str] = Counter()
    for labels, count in counts[metric.name]:
        found[labels[place]] += count
    return found
