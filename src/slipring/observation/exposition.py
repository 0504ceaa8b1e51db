"""The text of ``GET /metrics``, in the Prometheus text format or as OpenMetrics.

Imports prometheus_client, which takes a while: import this module only where metrics are served.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from slipring.observation.metric_counts import Distribution, Snapshot, Value
from slipring.observation.metric_table import METRICS, NANOSECONDS, Metric

_OPEN_METRICS = "application/openmetrics-text"
_TEXT = "text/plain"


def expose(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """A snapshot as a response body, and its content type: OpenMetrics for clients whose ``Accept`` header
    prefers it, else the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    # Not the header itself: prometheus_client would repeat what it says about versions.
    encode, content_type = choose_encoder(_OPEN_METRICS if _prefers_open_metrics(accept) else _TEXT)
    return encode(registry), content_type


def _prefers_open_metrics(accept: str) -> bool:
    weights = dict(reversed([_weighted(part) for part in accept.split(",")]))
    return weights.get(_OPEN_METRICS, 0.0) > 0 and weights[_OPEN_METRICS] >= weights.get(_TEXT, 0.0)


def _weighted(part: str) -> tuple[str, float]:
    """A media type of an ``Accept`` header and its weight."""
    kind, *parameters = (each.strip() for each in part.split(";"))
    given = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    try:
        return kind.lower(), float(given)
    except ValueError:
        return kind.lower(), 0.0


class _SnapshotCollector(Collector):
    """Hands a snapshot to prometheus_client. Every metric of the table is described, also without values."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric.kind == "histogram":
                yield _histogram(metric, self._snapshot.distributions.get(metric.name, ()))
            else:
                yield _simple(metric, self._snapshot.values.get(metric.name, ()))


def _simple(metric: Metric, values: Iterable[Value]) -> Family:
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.label_names)
    for each in values:
        family.add_metric(each.labels, each.value / metric.parts)
    return family


def _histogram(metric: Metric, distributions: Iterable[Distribution]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.label_names)
    bounds = [*map(repr, metric.buckets), "+Inf"]
    for each in distributions:
        buckets = list(zip(bounds, accumulate(each.counts), strict=True))
        family.add_metric(each.labels, buckets, each.nanoseconds / NANOSECONDS)
    return family
