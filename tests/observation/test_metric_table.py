"""The table of metrics: names that Prometheus accepts, values that the rest of the code has."""

import re
from pathlib import Path
from typing import get_args

import pytest

from slipring.observation import metric_table as table
from slipring.protocol.turn_report import OWN_STAGES
from slipring.server.connections.slow_clients import DropReason
from slipring.server.observation.ended_turns import Transport
from slipring.server.state_lookup import Source
from tests.observation.reference import reference

BEGIN, END = "<!-- metrics: begin -->\n", "\n<!-- metrics: end -->"
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.mark.parametrize("metric", table.METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_by_the_conventions(metric: table.Metric) -> None:
    assert re.fullmatch(r"(slipring|process)_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_seconds") or metric.kind != "histogram"
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.merge == "sum" or metric.kind == "gauge"
    assert metric.help.endswith(".")
    for label in metric.labels:
        assert label.values or label.help, f"{label.name}: where do its values come from?"
        assert label.name not in ("le", "quantile", "job", "instance")
        if label is not table.FLAGGED_USER:  # digests, and only as many as an operator asks for
            assert not re.search(r"(^|_)id$|user|key|address|path", label.name), "labels are no ids"


def test_names_are_unique() -> None:
    assert len(table.BY_NAME) == len(table.METRICS)


def test_the_tables_values_are_those_of_the_code() -> None:
    assert get_args(Transport) == table.TRANSPORTS
    assert get_args(DropReason) == table.DROP_REASONS
    (label,) = table.CACHE_LOOKUPS.labels
    assert ("connection", *get_args(Source)) == label.values
    assert set(OWN_STAGES) < set(table.STAGES)


def test_fast_servers_can_be_told_apart() -> None:
    """A server that makes a thousand tokens per second needs buckets far below the usual first, 10 ms."""
    buckets = table.TOKEN_SECONDS.buckets
    assert (buckets[0], buckets[-1]) == (0.0001, 0.25)
    assert sum(bound <= 0.001 for bound in buckets) >= 4


def test_the_page_shows_the_table_that_the_code_generates() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    shown = page.partition(BEGIN)[2].partition(END)[0]
    assert shown == reference(), (
        "docs/metrics.md is out of date: paste the output of `python -m tests.observation.reference`"
        " between its two metrics markers"
    )
