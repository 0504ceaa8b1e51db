"""Prints the tables of all metrics for docs/metrics.md: ``python -m tests.observation.reference``.

A label whose values are the same wherever it stands is described once, below the metrics.
"""

from slipring.observation.metric_table import METRICS, Label, Metric


def _values(label: Label) -> str:
    return ", ".join(f"`{value}`" for value in label.values) or label.help


def _shared() -> dict[str, str]:
    """The values of the labels that several metrics have, and that are the same for all of them."""
    found: dict[str, list[str]] = {}
    for metric in METRICS:
        for label in metric.labels:
            found.setdefault(label.name, []).append(_values(label))
    return {name: each[0] for name, each in sorted(found.items()) if len(each) > 1 and len({*each}) == 1}


def _label_text(label: Label, shared: dict[str, str]) -> str:
    return f"`{label.name}`" if label.name in shared else f"`{label.name}`: {_values(label)}"


def _row(metric: Metric, shared: dict[str, str]) -> str:
    labels = "; ".join(_label_text(label, shared) for label in metric.labels)
    return "| " + " | ".join((f"`{metric.name}`", metric.kind, metric.help, labels)) + " |"


def reference() -> str:
    """Return the Markdown tables of all metrics, and of the labels that several have."""
    shared = _shared()
    return "\n".join(
        (
            "| Metric | Kind | Meaning | Labels |",
            "| --- | --- | --- | --- |",
            *(_row(metric, shared) for metric in METRICS),
            "",
            "| Label of several | Values |",
            "| --- | --- |",
            *(f"| `{name}` | {values} |" for name, values in shared.items()),
        )
    )


if __name__ == "__main__":
    print(reference())
