"""Reads values of snapshots."""

from collections.abc import Mapping

from slipring.observation.metric_counts import Snapshot
from slipring.observation.metric_table import Metric


def value_of(snapshot: Snapshot, metric: Metric, labels: Mapping[str, str] | None = None) -> int | float:
    """The sum of a counter or gauge over all series that have these labels; 0 if there are none."""
    wanted = labels or {}
    return sum(
        each.value
        for each in snapshot.values.get(metric.name, ())
        if wanted.items() <= dict(zip(metric.label_names, each.labels, strict=True)).items()
    )
