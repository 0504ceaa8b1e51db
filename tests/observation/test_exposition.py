"""The formats of ``/metrics``, read by prometheus_client's own parsers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from slipring.observation import metric_table as table
from slipring.observation.exposition import expose
from slipring.observation.metric_counts import Registry, Snapshot

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        (PROMETHEUS, OPEN),
        ("application/openmetrics-text", OPEN),
        ("Application/OpenMetrics-Text; version=99.9", OPEN),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=x", TEXT),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", TEXT),
        ("text/plain, application/openmetrics-text;q=0.9", TEXT),
        (";;;,,=;q=", TEXT),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, content_type: str) -> None:
    body, chosen = expose(Snapshot("", {}, {}), accept)
    assert chosen == content_type
    assert body.endswith(b"# EOF\n") == (content_type == OPEN)


@settings(max_examples=25, deadline=None)
@given(st.text())
def test_no_accept_header_is_an_error(accept: str) -> None:
    assert expose(Snapshot("", {}, {}), accept)[1] in (TEXT, OPEN)


@settings(max_examples=25, deadline=None)
@given(st.text(), st.integers(0, 2**70), st.floats(0, 1e6))
def test_any_label_value_survives(value: str, count: int, seconds: float) -> None:
    # Models and tenants have any names; lone surrogates cannot be in JSON, and not in names.
    model = value.encode(errors="replace").decode()
    registry = Registry("p")
    registry.counter(table.TURNS)[model, "completed", "http", "responses"] += count
    registry.histogram(table.TOKEN_SECONDS).observe((model,), seconds)
    snapshot = registry.snapshot([(table.CPU_SECONDS, (), 1_500_000_000)])
    for read, accept in ((read_open_metrics, OPEN), (read_text, "")):
        families = {family.name: family for family in read(expose(snapshot, accept)[0].decode())}
        (turns,) = families["slipring_turns"].samples
        assert turns.labels == {
            "model": model,
            "status": "completed",
            "transport": "http",
            "api": "responses",
        }
        assert turns.value == float(count)
        assert {sample.labels["model"] for sample in families[table.TOKEN_SECONDS.name].samples} == {model}
        (cpu,) = families["process_cpu_seconds"].samples
        assert cpu.value == 1.5


def test_buckets_are_cumulative_and_end_with_infinity() -> None:
    registry = Registry("p")
    for seconds in (0.0003, 0.02, 4.0):
        registry.histogram(table.OVERHEAD_SECONDS).observe(("m",), seconds)
    text = expose(registry.snapshot())[0].decode()
    family = next(each for each in read_text(text) if each.name == table.OVERHEAD_SECONDS.name)
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if "le" in sample.labels}
    assert list(map(float, buckets)) == [*table.OVERHEAD_SECONDS.buckets, float("inf")]
    assert (buckets["0.0001"], buckets["0.0005"], buckets["0.025"], buckets["+Inf"]) == (0, 1, 2, 3)
    total = next(sample.value for sample in family.samples if sample.name.endswith("_sum"))
    assert total == 4.0203


def test_every_metric_is_described_even_without_values() -> None:
    for accept in (OPEN, ""):
        text = expose(Snapshot("", {}, {}), accept)[0].decode()
        for metric in table.METRICS:
            assert f"# HELP {metric.name.removesuffix('_total')}" in text
