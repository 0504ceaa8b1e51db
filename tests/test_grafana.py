"""The dashboard and the alert rules: generated from the table of metrics, and every query is valid."""

import json
import re
import runpy
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from slipring.observation import metric_table as table
from tests.test_deploy import DEPLOY

GENERATOR: dict[str, Any] = runpy.run_path(str(DEPLOY / "grafana" / "generate.py"))
BOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to everything that it scrapes."""
UP = "up"
"""What Prometheus itself says of each server: whether it could be scraped."""


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard and the rules, with its place."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    found += [(alert.name, alert.query) for alert in GENERATOR["RULES"]]
    return [(title, re.sub(r"\$__rate_interval", "5m", query)) for title, query in found]


def nodes(query: Any) -> Iterator[Any]:
    """A parsed query and all its parts."""
    yield query
    parts = [getattr(query, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    for part in [*parts, *getattr(query, "args", ())]:
        if part is not None and not isinstance(part, str | float):
            yield from nodes(part)


def metric_of(name: str) -> table.Metric:
    """The metric that has series of this name."""
    if name in table.BY_NAME:
        assert table.BY_NAME[name].kind != "histogram", f"{name} has no series of its own"
        return table.BY_NAME[name]
    metric = table.BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
    assert metric.kind == "histogram"
    return metric


def selectors(query: Any) -> list[Any]:
    return [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]


def labels_of(selector: Any) -> set[str]:
    own = set(metric_of(selector.name).label_names) if selector.name != UP else set[str]()
    return own | OF_PROMETHEUS | ({"le"} if selector.name.endswith("_bucket") else set())


@pytest.mark.parametrize(("title", "text"), queries())
def test_a_query_parses_and_names_what_is_exported(title: str, text: str) -> None:
    query = promql_parser.parse(text)
    assert selectors(query)
    for selector in selectors(query):
        labels = labels_of(selector)
        if selector.name == UP:
            continue
        known = {label.name: label.values for label in metric_of(selector.name).labels}
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{title}: {selector.name} has no label {matcher.name}"
            if known.get(matcher.name) and not matcher.value.startswith("$"):
                assert matcher.value in known[matcher.name]
    for node in nodes(query):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            for selector in selectors(node.expr):
                assert set(node.modifier.labels) <= labels_of(selector), f"{title}: {text}"
        if isinstance(node, promql_parser.Call) and node.func.name == "rate":
            (selector,) = selectors(node)
            assert metric_of(selector.name).kind != "gauge", f"{title}: the rate of a gauge"
        if isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile":
            assert all(selector.name.endswith("_bucket") for selector in selectors(node))


def test_every_metric_is_shown() -> None:
    shown = {
        metric_of(each.name).name
        for _, text in queries()
        for each in selectors(promql_parser.parse(text))
        if each.name != UP
    }
    assert shown == set(table.BY_NAME)


def test_legends_and_variables_name_labels_that_exist() -> None:
    for panel in panels():
        for target in panel["targets"]:
            query = promql_parser.parse(target["expr"].replace("$__rate_interval", "5m"))
            labels = set[str]().union(*map(labels_of, selectors(query)))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "instance", "model"}
    for name in ("job", "instance", "model"):
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variables[name]["query"]).groups()
        (parsed,) = selectors(promql_parser.parse(selector))
        assert label in labels_of(parsed)


def test_panels_fit_the_grid_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_rules_say_what_is_wrong_and_what_to_do() -> None:
    names = [alert.name for alert in GENERATOR["RULES"]]
    assert len(set(names)) == len(names)
    for alert in GENERATOR["RULES"]:
        assert alert.severity in ("critical", "warning", "info")
        assert re.fullmatch(r"\d+m", alert.lasting)
        query = promql_parser.parse(alert.query)
        labels = set[str]().union(*map(labels_of, selectors(query)))
        named = re.findall(r"\$labels\.(\w+)", alert.summary + alert.advice)
        assert set(named) <= labels, alert.name


@pytest.mark.parametrize(("file", "make"), [("dashboard.json", "dashboard"), ("alerts.yaml", "alerts")])
def test_the_files_are_those_that_the_script_writes(file: str, make: str) -> None:
    kept = (DEPLOY / "grafana" / file).read_text(encoding="utf-8")
    assert kept == GENERATOR[make](), "run: python deploy/grafana/generate.py"
