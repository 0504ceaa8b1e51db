"""Prints the table of all metrics for docs/metrics.md: ``python -m tests.observation.reference``."""

from slipring.observation.metric_table import METRICS, Label, Metric


def _label_text(label: Label) -> str:
    values = ", ".join(f"`{value}`" for value in label.values) or label.help
    return f"`{label.name}`: {values}"


def _row(metric: Metric) -> str:
    labels = "; ".join(map(_label_text, metric.labels))
    return "| " + " | ".join((f"`{metric.name}`", metric.kind, metric.help, labels)) + " |"


def reference() -> str:
    """Return the Markdown table of all metrics."""
    head = "| Metric | Kind | Meaning | Labels |"
    rule = "| --- | --- | --- | --- |"
    return "\n".join((head, rule, *map(_row, METRICS)))


if __name__ == "__main__":
    print(reference())
