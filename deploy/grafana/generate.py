"""Writes the Grafana dashboard and the Prometheus alert rules, from the table of metrics.

    python deploy/grafana/generate.py

Queries name metrics through ``slipring.observation.metric_table``, so that a renamed metric is renamed
here too. A test parses every query, and compares the files with what this script would write.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders.common import StackingConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from slipring.observation import metric_table as table
from slipring.observation.metric_table import Metric

HERE = Path(__file__).parent
DASHBOARD, ALERTS = HERE / "dashboard.json", HERE / "alerts.yaml"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_SERVERS = 'job=~"$job",instance=~"$instance"'


# Queries.


def selector(metric: Metric, where: str = "", suffix: str = "") -> str:
    """The series of the chosen servers; of the chosen models, if the metric has models."""
    models = 'model=~"$model"' if table.MODEL in metric.labels else ""
    return f"{metric.name}{suffix}{{{','.join(filter(None, (_SERVERS, models, where)))}}}"


def total(metric: Metric, by: str = "", where: str = "") -> str:
    return f"sum{_by(by)}({selector(metric, where)})"


def rate(metric: Metric, by: str = "", where: str = "", suffix: str = "") -> str:
    return f"sum{_by(by)}(rate({selector(metric, where, suffix)}[$__rate_interval]))"


def quantile(q: float, metric: Metric, by: str = "", where: str = "") -> str:
    names = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({q}, {rate(metric, names, where, '_bucket')})"


def mean(metric: Metric, by: str = "", where: str = "") -> str:
    return f"{rate(metric, by, where, '_sum')} / {rate(metric, by, where, '_count')}"


def _by(names: str) -> str:
    return f" by ({names}) " if names else ""


# The dashboard.


@dataclass(frozen=True)
class Shown:
    """One panel: what it shows, in which unit, and its queries with their legends."""

    title: str
    help: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    is_stat: bool = False
    stacks: bool = False
    width: int = 8


def _quantiles(metric: Metric, *qs: float, where: str = "") -> tuple[tuple[str, str], ...]:
    return tuple((quantile(q, metric, where=where), f"p{q * 100:g}") for q in qs)


def _stat(title: str, help: str, unit: str, query: str, legend: str = "") -> Shown:
    return Shown(title, help, unit, ((query, legend),), is_stat=True, width=4)


_FAILED, _COMPLETED = 'status="failed"', 'status="completed"'
_PROCESS = 'scope="process"'
_INPUT, _CACHED = 'kind="input"', 'kind="cached"'

ROWS: dict[str, tuple[Shown, ...]] = {
    "Overview": (
        _stat("Turns", "Turns that end per second.", "reqps", rate(table.TURNS)),
        _stat(
            "Failed",
            "Share of turns that failed.",
            "percentunit",
            f"{rate(table.TURNS, where=_FAILED)} / {rate(table.TURNS)}",
        ),
        _stat("Running", "Turns that run now.", "short", total(table.IN_FLIGHT)),
        _stat(
            "WebSockets", "Open WebSockets.", "short", total(table.CONNECTIONS, where='transport="websocket"')
        ),
        _stat(
            "Cached",
            "Share of input tokens that the engine did not have to read again.",
            "percentunit",
            f"{rate(table.TOKENS, where=_CACHED)} / {rate(table.TOKENS, where=_INPUT)}",
        ),
        _stat(
            "Version",
            "What runs.",
            "short",
            f"count by (version) ({selector(table.BUILD_INFO)})",
            "{{version}}",
        ),
    ),
    "How long turns take": (
        Shown(
            "Time to first token",
            table.FIRST_TOKEN_SECONDS.help,
            "s",
            _quantiles(table.FIRST_TOKEN_SECONDS, 0.5, 0.95, 0.99),
        ),
        Shown(
            "Time per output token",
            table.TOKEN_SECONDS.help,
            "s",
            _quantiles(table.TOKEN_SECONDS, 0.5, 0.95, 0.99),
        ),
        Shown(
            "Whole turns",
            "Completed turns, from the arrival of the request to the terminal event.",
            "s",
            _quantiles(table.TURN_SECONDS, 0.5, 0.95, 0.99, where=_COMPLETED),
        ),
        Shown(
            "slipring's own time",
            table.OVERHEAD_SECONDS.help,
            "s",
            _quantiles(table.OVERHEAD_SECONDS, 0.5, 0.95, 0.99),
        ),
        Shown(
            "Where the time goes",
            "Turns in each stage at once, on average: seconds spent in the stage per second.",
            "short",
            ((rate(table.STAGE_SECONDS, "stage", suffix="_sum"), "{{stage}}"),),
            stacks=True,
        ),
        Shown(
            "Waiting for clients to read",
            table.SEND_BLOCKED_SECONDS.help,
            "s",
            (
                (quantile(0.99, table.SEND_BLOCKED_SECONDS, "transport"), "p99 {{transport}}"),
                (mean(table.SEND_BLOCKED_SECONDS), "mean"),
            ),
        ),
    ),
    "What is asked": (
        Shown(
            "Turns by status",
            table.TURNS.help,
            "reqps",
            ((rate(table.TURNS, "status"), "{{status}}"),),
            stacks=True,
        ),
        Shown(
            "Turns by transport and API",
            "Turns that end per second.",
            "reqps",
            ((rate(table.TURNS, "transport, api"), "{{transport}} {{api}}"),),
            stacks=True,
        ),
        Shown("Tokens", table.TOKENS.help, "short", ((rate(table.TOKENS, "kind"), "{{kind}} per second"),)),
        Shown(
            "Bytes that clients sent and saved",
            table.HISTORY_BYTES_SAVED.help,
            "Bps",
            ((rate(table.REQUEST_BYTES), "sent"), (rate(table.HISTORY_BYTES_SAVED), "saved")),
        ),
        Shown(
            "Special turns",
            table.MARKED_TURNS.help,
            "reqps",
            (
                (rate(table.MARKED_TURNS, "mark"), "{{mark}}"),
                (rate(table.RECOGNISED_TURNS), "recognised history"),
            ),
        ),
        Shown(
            "Contexts rendered in full",
            table.RENDER_FALLBACKS.help,
            "reqps",
            ((rate(table.RENDER_FALLBACKS, "reason"), "{{reason}}"),),
        ),
        Shown(
            "Failures",
            table.TURN_ERRORS.help,
            "reqps",
            ((rate(table.TURN_ERRORS, "code"), "{{code}}"),),
            width=12,
        ),
        Shown(
            "Refusals", table.REFUSALS.help, "reqps", ((rate(table.REFUSALS, "code"), "{{code}}"),), width=12
        ),
    ),
    "Connections": (
        Shown(
            "Open connections",
            "Against their limit.",
            "short",
            (
                (total(table.CONNECTIONS, "transport"), "{{transport}}"),
                (total(table.CONNECTIONS_LIMIT), "limit"),
            ),
        ),
        Shown(
            "Turns and lanes",
            "Turns that run, turns that wait in their lane, and lanes.",
            "short",
            (
                (total(table.IN_FLIGHT), "running"),
                (total(table.QUEUED), "waiting"),
                (total(table.LANES), "lanes"),
            ),
        ),
        Shown(
            "Opened and dropped",
            table.CONNECTIONS_DROPPED.help,
            "cps",
            (
                (rate(table.SOCKETS_OPENED), "WebSockets opened"),
                (rate(table.CONNECTIONS_DROPPED, "reason"), "dropped: {{reason}}"),
            ),
        ),
    ),
    "Memory": (
        Shown(
            "States, against their limits",
            table.CACHE_BYTES.help,
            "percentunit",
            (
                (
                    f"max by (scope) ({selector(table.CACHE_BYTES)})"
                    f" / max by (scope) ({selector(table.CACHE_LIMIT_BYTES)})",
                    "{{scope}}",
                ),
            ),
        ),
        Shown(
            "Memory that clients fill",
            table.MEMORY_BYTES.help,
            "bytes",
            ((total(table.MEMORY_BYTES, "use"), "{{use}}"),),
        ),
        Shown(
            "The same, against its limits",
            table.MEMORY_LIMIT_BYTES.help,
            "percentunit",
            ((f"{total(table.MEMORY_BYTES, 'use')} / {total(table.MEMORY_LIMIT_BYTES, 'use')}", "{{use}}"),),
        ),
        Shown(
            "Where continued responses were found",
            table.CACHE_LOOKUPS.help,
            "reqps",
            ((rate(table.CACHE_LOOKUPS, "result"), "{{result}}"),),
            stacks=True,
        ),
        Shown(
            "Evictions and compressions",
            f"{table.CACHE_EVICTIONS.help} {table.CACHE_COMPRESSIONS.help}",
            "ops",
            (
                (rate(table.CACHE_EVICTIONS, "scope"), "{{scope}}"),
                (rate(table.CACHE_COMPRESSIONS), "compressed"),
            ),
        ),
        Shown(
            "Parked",
            "States of dropped connections, and how many connections they belong to.",
            "short",
            ((total(table.PARKED_BYTES), "bytes"), (total(table.PARKED_SESSIONS), "sessions")),
        ),
    ),
    "Engines and store": (
        Shown(
            "Engines",
            table.ENGINE_UP.help,
            "short",
            ((f"min by (engine) ({selector(table.ENGINE_UP)})", "{{engine}}"),),
        ),
        Shown(
            "Jobs",
            table.ENGINE_JOBS.help,
            "short",
            ((total(table.ENGINE_JOBS, "engine, state"), "{{engine}} {{state}}"),),
        ),
        Shown(
            "Slots",
            table.ENGINE_SLOTS.help,
            "short",
            ((total(table.ENGINE_SLOTS, "engine, state"), "{{engine}} {{state}}"),),
            stacks=True,
        ),
        Shown(
            "Saved contexts",
            table.ENGINE_SAVED_BYTES.help,
            "bytes",
            ((total(table.ENGINE_SAVED_BYTES, "engine"), "{{engine}}"),),
        ),
        Shown(
            "Loops",
            table.ENGINE_LOOPS.help,
            "short",
            ((total(table.ENGINE_LOOPS, "engine, state"), "{{engine}} {{state}}"),),
        ),
        Shown(
            "KV cache of loops",
            table.ENGINE_LOOP_TOKENS.help,
            "short",
            ((total(table.ENGINE_LOOP_TOKENS, "engine, state"), "{{engine}} {{state}}"),),
            stacks=True,
        ),
        Shown(
            "Commits",
            table.STORE_COMMIT_SECONDS.help,
            "s",
            _quantiles(table.STORE_COMMIT_SECONDS, 0.5, 0.99),
        ),
        Shown("Store errors", table.STORE_ERRORS.help, "ops", ((rate(table.STORE_ERRORS), "errors"),)),
        Shown(
            "Recorded turns",
            table.RECORDED_TURNS.help,
            "reqps",
            ((rate(table.RECORDED_TURNS, "result"), "{{result}}"),),
        ),
    ),
    "Safety checks": (
        Shown(
            "Checks",
            table.CHECK_UP.help,
            "short",
            ((f"min by (check) ({selector(table.CHECK_UP)})", "{{check}}"),),
            width=6,
        ),
        Shown(
            "Texts",
            table.CHECK_TEXTS.help,
            "ops",
            ((rate(table.CHECK_TEXTS, "check, outcome"), "{{check}} {{outcome}}"),),
            width=6,
        ),
        Shown(
            "Without an answer",
            table.CHECK_FAILED.help,
            "ops",
            ((rate(table.CHECK_FAILED, "check, reason"), "{{check}} {{reason}}"),),
            width=6,
        ),
        Shown(
            "Time per call",
            "Mean time of the calls of a check's source.",
            "s",
            ((f"{rate(table.CHECK_SECONDS, 'check')} / {rate(table.CHECK_CALLS, 'check')}", "{{check}}"),),
            width=6,
        ),
        Shown(
            "Withheld items",
            table.WITHHELD_ITEMS.help,
            "ops",
            ((rate(table.WITHHELD_ITEMS, "check"), "{{check}}"),),
        ),
        Shown(
            "Flagged turns by user (with metrics_safety_ids)",
            table.FLAGGED_TURNS.help,
            "reqps",
            ((f"topk(10, {rate(table.FLAGGED_TURNS, 'user')})", "{{user}}"),),
        ),
        Shown(
            "Audits",
            table.AUDITS.help,
            "ops",
            ((rate(table.AUDITS, "outcome"), "{{outcome}}"),),
        ),
    ),
    "Hosted tools": (
        Shown(
            "Calls",
            table.TOOL_CALLS.help,
            "reqps",
            ((rate(table.TOOL_CALLS, "server, ending"), "{{server}} {{ending}}"),),
            stacks=True,
            width=12,
        ),
        Shown(
            "Time of a call",
            table.TOOL_SECONDS.help,
            "s",
            ((quantile(0.95, table.TOOL_SECONDS, "server"), "{{server}} p95"),),
            width=12,
        ),
    ),
    "Processes": (
        Shown(
            "Event loop lag",
            table.LOOP_LAG_SECONDS.help,
            "s",
            _quantiles(table.LOOP_LAG_SECONDS, 0.5, 0.99),
        ),
        Shown(
            "CPU", table.CPU_SECONDS.help, "short", ((rate(table.CPU_SECONDS, "instance"), "{{instance}}"),)
        ),
        Shown(
            "Resident memory",
            table.RESIDENT_BYTES.help,
            "bytes",
            ((total(table.RESIDENT_BYTES, "instance"), "{{instance}}"),),
        ),
        Shown(
            "File descriptors",
            table.OPEN_FDS.help,
            "short",
            ((total(table.OPEN_FDS, "instance"), "{{instance}}"),),
        ),
        Shown("Tasks", table.TASKS.help, "short", ((total(table.TASKS, "instance"), "{{instance}}"),)),
        Shown(
            "Serving and stopping processes",
            "Workers that serve, and those that finish their last responses.",
            "short",
            ((total(table.PROCESSES), "serving"), (total(table.DRAINING), "stopping")),
        ),
        Shown(
            "Uptime",
            "Of the oldest process of each server.",
            "s",
            ((f"time() - {selector(table.START_TIME)}", "{{instance}}"),),
        ),
    ),
    "Tenants (with metrics_tenants)": (
        Shown(
            "Turns by tenant",
            table.TENANT_TURNS.help,
            "reqps",
            ((f"topk(10, {rate(table.TENANT_TURNS, 'tenant')})", "{{tenant}}"),),
            width=12,
        ),
        Shown(
            "Tokens by tenant",
            table.TENANT_TOKENS.help,
            "short",
            ((f"topk(10, {rate(table.TENANT_TOKENS, 'tenant, kind')})", "{{tenant}} {{kind}}"),),
            width=12,
        ),
    ),
}


def _panel(shown: Shown) -> Stat | TimeSeries:
    panel = Stat() if shown.is_stat else TimeSeries().fill_opacity(10)
    if shown.stacks and isinstance(panel, TimeSeries):
        panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    panel.title(shown.title).description(shown.help).unit(shown.unit).datasource(_SOURCE)
    panel.span(shown.width).height(4 if shown.is_stat else 8)
    if not shown.is_stat:
        panel.min(0)
    for number, (query, legend) in enumerate(shown.queries):
        target = Dataquery().expr(query).ref_id(chr(ord("A") + number)).datasource(_SOURCE)
        panel.with_target(target.legend_format(legend or shown.title))
    return panel


def _choice(name: str, metric: Metric, where: str = "") -> boards.QueryVariable:
    """A variable for the values of a label."""
    variable = boards.QueryVariable(name).datasource(_SOURCE)
    variable.query(f"label_values({metric.name}{where}, {name})")
    return (
        variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True).all_value(".*")
    )


def dashboard() -> str:
    """The dashboard as JSON."""
    board = (
        boards.Dashboard("slipring")
        .uid("slipring")
        .description("Turns, connections, memory, engines and processes of slipring servers.")
        .tags(["slipring", "llm"])
        .time("now-1h", "now")
        .refresh("30s")
        .with_variable(boards.DatasourceVariable("datasource").type("prometheus").label("Data source"))
        .with_variable(_choice("job", table.BUILD_INFO))
        .with_variable(_choice("instance", table.BUILD_INFO, '{job=~"$job"}'))
        .with_variable(_choice("model", table.TURNS, f"{{{_SERVERS}}}"))
    )
    for title, panels in ROWS.items():
        board.with_row(boards.Row(title))
        for shown in panels:
            board.with_panel(_panel(shown))
    encoded = json.loads(JSONEncoder().encode(board.build()))
    for number, panel in enumerate(encoded["panels"], 1):
        panel["id"] = number
        if panel.get("options", ()) is None:
            del panel["options"]  # the panel's own defaults
    return json.dumps(encoded, indent=1, sort_keys=True) + "\n"


# The alert rules. They hold for all servers of a Prometheus: its own labels tell which one it is.


@dataclass(frozen=True)
class Alert:
    """A rule: when it fires, after which time, and what to do then."""

    name: str
    query: str
    lasting: str
    severity: str
    summary: str
    advice: str


def _late(q: float, metric: Metric, by: str = "") -> str:
    names = ", ".join(filter(None, ("le", "job", "instance", by)))
    return f"histogram_quantile({q}, sum by ({names}) (rate({metric.name}_bucket[5m])))"


def _per_s(metric: Metric, by: str = "", where: str = "", within: str = "5m") -> str:
    names = ", ".join(filter(None, ("job", "instance", by)))
    matched = f"{{{where}}}" if where else ""
    return f"sum by ({names}) (rate({metric.name}{matched}[{within}]))"


RULES = (
    Alert(
        "SlipringAbsent",
        f"absent({table.BUILD_INFO.name})",
        "2m",
        "critical",
        "No slipring server reports metrics.",
        "See whether the server runs, and whether Prometheus reaches its admin address.",
    ),
    Alert(
        "SlipringServerUnreachable",
        f"up == 0 and on (job) {table.BUILD_INFO.name}",
        "2m",
        "critical",
        "{{ $labels.instance }} reports no metrics; other servers of {{ $labels.job }} do.",
        "See whether it runs, and whether Prometheus reaches its admin address with the right key.",
    ),
    Alert(
        "SlipringEngineDown",
        f"{table.ENGINE_UP.name} == 0",
        "1m",
        "critical",
        "The engine {{ $labels.engine }} of {{ $labels.instance }} cannot generate.",
        "/health says why. Requests for its models are refused until it answers.",
    ),
    Alert(
        "SlipringCheckDown",
        f"{table.CHECK_UP.name} == 0",
        "1m",
        "critical",
        "The safety check {{ $labels.check }} of {{ $labels.instance }} gives no answers.",
        "/health says why. on_error decides whether turns go on without it.",
    ),
    Alert(
        "SlipringTurnsFail",
        f"{_per_s(table.TURNS, 'model', _FAILED)} / {_per_s(table.TURNS, 'model')} > 0.05",
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the turns of {{ $labels.model }} fail.",
        f"{table.TURN_ERRORS.name} has their codes, the log the errors.",
    ),
    Alert(
        "SlipringStoreDown",
        f"{table.STORE_UP.name} == 0",
        "1m",
        "critical",
        "{{ $labels.instance }} cannot use its store.",
        "/health says why. Requests with store: false are served.",
    ),
    Alert(
        "SlipringStoreFails",
        f"{_per_s(table.STORE_ERRORS)} > 0",
        "1m",
        "critical",
        "{{ $labels.instance }} cannot write to its store.",
        "Responses that are to be stored fail. The log has the database's error.",
    ),
    Alert(
        "SlipringStoreSlow",
        f"{_late(0.99, table.STORE_COMMIT_SECONDS)} > 1",
        "10m",
        "warning",
        "Writes to the store of {{ $labels.instance }} take up to {{ $value | humanizeDuration }}.",
        "Terminal events of stored responses wait for the commit. Look at the disk or at PostgreSQL.",
    ),
    Alert(
        "SlipringEventLoopLate",
        f"{_late(0.99, table.LOOP_LAG_SECONDS)} > 0.25",
        "5m",
        "warning",
        "The event loop of {{ $labels.instance }} is {{ $value | humanizeDuration }} late.",
        "All connections of the process wait that long. Use more workers, or find what takes the processor.",
    ),
    Alert(
        "SlipringOverheadHigh",
        f"{_late(0.95, table.OVERHEAD_SECONDS, 'model')} > 0.25",
        "10m",
        "warning",
        "slipring itself takes {{ $value | humanizeDuration }} for turns of {{ $labels.model }}.",
        f"{table.STAGE_SECONDS.name} says in which stage.",
    ),
    Alert(
        "SlipringFirstTokenSlow",
        f"{_late(0.95, table.FIRST_TOKEN_SECONDS, 'model')} > 30",
        "10m",
        "warning",
        "First tokens of {{ $labels.model }} take {{ $value | humanizeDuration }}.",
        "Compare the stages queue, engine_queue and prefill. Set the threshold to what your users expect.",
    ),
    Alert(
        "SlipringJobsWait",
        f'min_over_time({table.ENGINE_JOBS.name}{{state="waiting"}}[10m]) > 0',
        "0m",
        "warning",
        "Jobs have waited for {{ $labels.engine }} at {{ $labels.instance }} for ten minutes.",
        "The engine has less capacity than is asked for.",
    ),
    Alert(
        "SlipringConnectionsNearLimit",
        f"sum by (job, instance) ({table.CONNECTIONS.name})"
        f" / sum by (job, instance) ({table.CONNECTIONS_LIMIT.name}) > 0.9",
        "5m",
        "warning",
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of the connections that it accepts.",
        "Raise max_connections and the limit on file descriptors, or add a server.",
    ),
    Alert(
        "SlipringMemoryNearLimit",
        f"{table.MEMORY_BYTES.name} / {table.MEMORY_LIMIT_BYTES.name} > 0.9",
        "10m",
        "warning",
        "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of the limit on {{ $labels.use }}.",
        "Above the limit, states are evicted and requests are refused.",
    ),
    Alert(
        "SlipringProcessEvicts",
        f"{_per_s(table.CACHE_EVICTIONS, where=_PROCESS, within='15m')} > 0",
        "15m",
        "warning",
        "{{ $labels.instance }} evicts states because process_cache_bytes is exceeded.",
        "Chains that are not stored cannot be continued after that. Raise the limit, or add a server.",
    ),
    Alert(
        "SlipringWorkerMissing",
        f"{table.PROCESSES.name} < max_over_time({table.PROCESSES.name}[1h])",
        "2m",
        "warning",
        "{{ $labels.instance }} has fewer workers than before.",
        "The log says why a worker ended. The supervisor starts another one, with growing pauses.",
    ),
    Alert(
        "SlipringRendersInFull",
        f"{_per_s(table.RENDER_FALLBACKS, within='15m')} / {_per_s(table.TURNS, within='15m')} > 0.2",
        "30m",
        "info",
        "{{ $value | humanizePercentage }} of the turns of {{ $labels.instance }} render everything.",
        "The label reason says why, docs/dialects.md what can be done.",
    ),
)


def alerts() -> str:
    """The rules as YAML. Strings in double quotes are the same in YAML and JSON."""
    lines = ["# Written by generate.py.", "groups:", "  - name: slipring", "    rules:"]
    for alert in RULES:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.query)}",
            f"        for: {alert.lasting}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.advice)}",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
    ALERTS.write_text(alerts(), encoding="utf-8")
