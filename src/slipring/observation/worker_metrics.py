"""The metrics of all workers together: sums over the running ones and over those that have ended."""

from slipring.observation.bounded_labels import BoundedLabels
from slipring.observation.metric_counts import Distribution, Labels, Snapshot, Value
from slipring.observation.metric_table import BY_NAME, Metric


class _Sum:
    def __init__(self, bounds: BoundedLabels) -> None:
        self._bounds = bounds
        self._values: dict[tuple[str, Labels], int | float] = {}
        self._counts: dict[tuple[str, Labels], list[int]] = {}
        self._nanoseconds: dict[tuple[str, Labels], int] = {}

    def add(self, snapshot: Snapshot, *, gauges: bool) -> None:
        """Add a snapshot, with or without its gauges. Metrics that the table does not have are left out."""
        for name, values in snapshot.values.items():
            metric = BY_NAME.get(name)
            if metric is not None and (gauges or metric.kind == "counter"):
                for each in values:
                    self._add_value(metric, self._bounds.of(metric, each.labels), each.value)
        for name, distributions in snapshot.distributions.items():
            if (metric := BY_NAME.get(name)) is not None:
                for each_distribution in distributions:
                    self._add_distribution(metric, each_distribution)

    def _add_value(self, metric: Metric, labels: Labels, value: int | float) -> None:
        key = (metric.name, labels)
        before = self._values.get(key)
        if before is None:
            self._values[key] = value
        elif metric.merge == "max":
            self._values[key] = max(before, value)
        elif metric.merge == "min":
            self._values[key] = min(before, value)
        else:
            self._values[key] = before + value

    def _add_distribution(self, metric: Metric, added: Distribution) -> None:
        key = (metric.name, self._bounds.of(metric, added.labels))
        before = self._counts.get(key, [0] * len(added.counts))
        self._counts[key] = [one + other for one, other in zip(before, added.counts, strict=True)]
        self._nanoseconds[key] = self._nanoseconds.get(key, 0) + added.nanoseconds

    def snapshot(self) -> Snapshot:
        values: dict[str, list[Value]] = {}
        for (name, labels), value in self._values.items():
            values.setdefault(name, []).append(Value(labels, value))
        distributions: dict[str, list[Distribution]] = {}
        for (name, labels), counts in self._counts.items():
            added = Distribution(labels, counts, self._nanoseconds[name, labels])
            distributions.setdefault(name, []).append(added)
        return Snapshot("", values, distributions)


class Fold:
    """The metrics of all workers, those that have ended included: what the supervisor exports.

    The supervisor calls ``update`` with each snapshot that a worker sends, ``end`` when the worker has
    ended, and ``snapshot`` for each scrape. A worker that takes the number of another is a process of its
    own, even if the end of the other was never reported. Counters and histograms of the result never fall;
    its gauges are those of the living workers.
    """

    def __init__(self, bounds: BoundedLabels | None = None) -> None:
        """Workers have the same bounds each; together they may have more names."""
        self._bounds = bounds if bounds is not None else BoundedLabels()
        self._living: dict[int, Snapshot] = {}
        self._ended = _Sum(self._bounds)
        self._last_ended: dict[int, str] = {}

    def update(self, worker: int, snapshot: Snapshot) -> None:
        """Replace the last snapshot of a worker. One of a process that has ended is ignored."""
        if self._last_ended.get(worker) == snapshot.process:
            return
        before = self._living.get(worker)
        if before is not None and before.process != snapshot.process:
            self.end(worker)
        self._living[worker] = snapshot

    def end(self, worker: int) -> None:
        """The worker has ended: keep what it has counted, and forget its gauges."""
        last = self._living.pop(worker, None)
        if last is not None:
            self._ended.add(last, gauges=False)
            self._last_ended[worker] = last.process

    def snapshot(self, own: Snapshot | None = None) -> Snapshot:
        """The sum. ``own``: the snapshot of the supervisor itself."""
        total = _Sum(self._bounds)
        total.add(self._ended.snapshot(), gauges=False)
        for each in (*self._living.values(), *((own,) if own is not None else ())):
            total.add(each, gauges=True)
        return total.snapshot()
