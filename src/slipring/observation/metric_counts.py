"""Counts metrics in one process.

A process counts in a ``Registry``, in plain numbers. A ``Snapshot`` is all that it has counted since it
started, and travels as JSON; ``worker_metrics`` adds those of workers up.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from slipring.observation import metric_table as table
from slipring.observation.live_messages import Totals
from slipring.observation.metric_table import NANOSECONDS, Metric

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of the table."""
Reading = tuple[Metric, Labels, int | float]
"""The value of a counter or gauge that is read when a snapshot is taken."""
SHOWN = (table.TURNS, table.TOKENS, table.REQUEST_BYTES, table.HISTORY_BYTES_SAVED, table.RENDER_FALLBACKS)
"""The metrics that totals are made from."""


class Value(Struct, frozen=True, array_like=True):
    """A counter or a gauge. Counters are whole numbers."""

    labels: Labels
    value: int | float


class Distribution(Struct, frozen=True, array_like=True):
    labels: Labels
    counts: list[int]
    """How many observations were in each bucket and not in the one before; the last bucket is unbounded."""
    nanoseconds: int
    """The sum of all observations."""


class Snapshot(Struct, frozen=True, array_like=True):
    """What a process has counted since it started, and its gauges; or the sum over several processes.

    Counters and histograms are cumulative: a later snapshot of a process replaces an earlier one.
    """

    process: str
    """Different for each process that ever ran, also for two that had the same number; empty for a sum."""
    values: dict[str, list[Value]]
    """By name of the metric."""
    distributions: dict[str, list[Distribution]]


class _Series:
    """The observations of a histogram that have the same labels."""

    __slots__ = ("counts", "nanoseconds")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.nanoseconds = 0


class Histogram:
    """Counts observations by bucket."""

    __slots__ = ("_bounds", "series")

    def __init__(self, metric: Metric) -> None:
        self._bounds = [round(bound * NANOSECONDS) for bound in metric.buckets]
        self.series: dict[Labels, _Series] = {}

    def observe(self, labels: Labels, seconds: float) -> None:
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = _Series(len(self._bounds) + 1)
        nanoseconds = int(seconds * NANOSECONDS + 0.5)
        series.counts[bisect_left(self._bounds, nanoseconds)] += 1
        series.nanoseconds += nanoseconds


class Registry:
    """The counters and histograms of one process."""

    def __init__(self, process: str) -> None:
        """``process``: as in ``Snapshot``."""
        self._process = process
        self._counters: dict[str, defaultdict[Labels, int]] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, metric: Metric) -> "defaultdict[Labels, int]":
        """The counts of a metric by labels, to be increased by the caller."""
        counts = self._counters.get(metric.name)
        if counts is None:
            assert metric.kind == "counter"
            counts = self._counters[metric.name] = defaultdict(int)
        return counts

    def histogram(self, metric: Metric) -> Histogram:
        histogram = self._histograms.get(metric.name)
        if histogram is None:
            assert metric.kind == "histogram"
            histogram = self._histograms[metric.name] = Histogram(metric)
        return histogram

    def snapshot(self, readings: Iterable[Reading] = ()) -> Snapshot:
        """Everything counted so far, with the gauges and counters that were read elsewhere."""
        values: dict[str, list[Value]] = {
            name: [Value(labels, count) for labels, count in counts.items()]
            for name, counts in self._counters.items()
        }
        for metric, labels, value in readings:
            values.setdefault(metric.name, []).append(Value(labels, value))
        distributions = {
            name: [Distribution(labels, each.counts.copy(), each.nanoseconds) for labels, each in series]
            for name, series in ((name, kept.series.items()) for name, kept in self._histograms.items())
        }
        return Snapshot(self._process, values, distributions)


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


def _by(metric: Metric, label: str, counts: Mapping[str, Iterable[tuple[Labels, int]]]) -> Counter[str]:
    """The counts of a metric by one of its labels."""
    place = metric.label_names.index(label)
    found: Counter[str] = Counter()
    for labels, count in counts[metric.name]:
        found[labels[place]] += count
    return found
