"""The table of metrics: the name, kind, meaning, labels and buckets of everything that ``/metrics`` exports.

Names and labels are an interface: dashboards and alerts of operators use them. Each is written here and
nowhere else; docs/metrics.md and deploy/grafana are generated from this table. Label values are bounded:
they come from a fixed list, from the configuration, or from the code, and never from a client. Ids are never
labels.
"""

from typing import Literal, get_args

from msgspec import Struct

from slipring.protocol.turn_report import OWN_STAGES, Mark, StageName, TokenCounts

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max", "min"]

OTHER = "other"
"""The label value for everything that has no value of its own."""


class Label(Struct, frozen=True):
    name: str
    values: tuple[str, ...] = ()
    """All values that it can have; empty: they depend on the configuration."""
    help: str = ""
    """Where the values come from, if they are not listed."""


class Metric(Struct, frozen=True):
    """One metric. Counters and histograms only grow, also when processes end."""

    name: str
    """As queries use it; of a histogram, without ``_bucket``, ``_sum`` and ``_count``."""
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in seconds, without infinity."""
    merge: Merge = "sum"
    """How the gauges of several processes become one."""
    parts: int = 1
    """Of a counter: how many of its whole numbers make 1. Times are counted in nanoseconds, because sums of
    whole numbers do not depend on their order: a sum of fractions may get smaller by rounding when processes
    end, and Prometheus would read that as a restart."""

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


def _counter(name: str, help: str, *labels: Label, parts: int = 1) -> Metric:
    return Metric(name, "counter", help, labels, parts=parts)


def _gauge(name: str, help: str, *labels: Label, merge: Merge = "sum") -> Metric:
    return Metric(name, "gauge", help, labels, merge=merge)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: Label) -> Metric:
    return Metric(name, "histogram", help, labels, buckets)


NANOSECONDS = 10**9
"""Parts of a second."""

STATUSES = ("completed", "incomplete", "failed", "cancelled", "refused")
TRANSPORTS = ("websocket", "sse", "http", "background")
APIS = ("responses", "chat_completions", "messages")
API_TRANSPORTS = tuple(
    (api, transport)
    for api in APIS
    for transport in TRANSPORTS
    if api == "responses" or transport in ("sse", "http")
)
"""The transports of each API."""
STAGES: tuple[str, ...] = get_args(StageName)
MARKS: tuple[str, ...] = get_args(Mark)
TOKEN_KINDS: tuple[str, ...] = TokenCounts.__struct_fields__

MODEL = Label("model", help="the models that the server offers, and `other`")
STATUS = Label("status", STATUSES)
TRANSPORT = Label("transport", TRANSPORTS)
API = Label("api", APIS)
ENGINE = Label("engine", help="the engines of the server, by kind; the second of a kind ends with `-2`")
CODE = Label("code", help="the codes of the [API's errors](compatibility/errors.md)")
MCP_SERVER = Label("server", help="the [registered](hosted-tools.md) MCP servers, and `other`")
TENANT = Label("tenant", help="the first `metrics_tenants` tenants that had a turn, and `other`")
FLAGGED_USER = Label(
    "user",
    help="digests of the first `metrics_safety_ids` values of `safety_identifier` that had a flagged turn,"
    " and `other`",
)

_TURN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_TOKEN_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0025, 0.005),
    *(0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25),
)
_OVERHEAD_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)
_STAGE_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
_BLOCKED_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
_COMMIT_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LAG_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

# Turns: counted when they end.

TURNS = _counter(
    "slipring_turns_total",
    "Turns that have ended. `refused`: without a response; `cancelled`: the client left.",
    MODEL,
    STATUS,
    TRANSPORT,
    API,
)
TURN_ERRORS = _counter("slipring_turn_errors_total", "Turns that failed or were refused.", MODEL, CODE)
MARKED_TURNS = _counter(
    "slipring_marked_turns_total",
    "Turns that differ from ordinary ones; a turn may have several marks.",
    Label("mark", MARKS),
)
RECOGNISED_TURNS = _counter(
    "slipring_recognised_turns_total",
    "Turns whose input began with a history that the engine had processed before.",
    MODEL,
)
TURN_SECONDS = _histogram(
    "slipring_turn_seconds",
    "Time from the arrival of a request to its terminal event.",
    _TURN_BUCKETS,
    MODEL,
    STATUS,
)
FIRST_TOKEN_SECONDS = _histogram(
    "slipring_time_to_first_token_seconds",
    "Time from the arrival of a request to the first token of its answer.",
    _FIRST_TOKEN_BUCKETS,
    MODEL,
)
TOKEN_SECONDS = _histogram(
    "slipring_time_per_output_token_seconds",
    "Time between two tokens of an answer: one mean per turn.",
    _TOKEN_BUCKETS,
    MODEL,
)
OVERHEAD_SECONDS = _histogram(
    "slipring_overhead_seconds",
    f"Time that slipring itself took for a turn: its stages {', '.join(OWN_STAGES)}.",
    _OVERHEAD_BUCKETS,
    MODEL,
)
STAGE_SECONDS = _histogram(
    "slipring_stage_seconds",
    "Time in each stage of a turn. Rollouts go through some stages several times.",
    _STAGE_BUCKETS,
    Label("stage", STAGES),
)
SEND_BLOCKED_SECONDS = _histogram(
    "slipring_send_blocked_seconds",
    "Time in which an answer waited for its client to read.",
    _BLOCKED_BUCKETS,
    TRANSPORT,
)
TOKENS = _counter(
    "slipring_tokens_total",
    "Tokens of turns. `cached` is part of `input`, `reasoning` part of `output`; `rendered`: tokens of new"
    " items that slipring made.",
    MODEL,
    Label("kind", TOKEN_KINDS),
)
REQUEST_BYTES = _counter("slipring_request_bytes_total", "Bytes of requests that created turns.", TRANSPORT)
HISTORY_BYTES_SAVED = _counter(
    "slipring_history_bytes_saved_total",
    "Bytes of earlier items that clients did not send, because their turns continued responses.",
    TRANSPORT,
)
RENDER_FALLBACKS = _counter(
    "slipring_render_fallbacks_total",
    "Contexts that were rendered in full although the parent was known.",
    Label("reason", help="as `fallback` in [timing](timing.md); the reasons: [dialects](dialects.md)"),
)

# Hosted tools.

TOOL_ENDINGS = ("completed", "tool_error", "failed", "unknown", "cancelled")
TOOL_CALLS = _counter(
    "slipring_tool_calls_total",
    "Calls of hosted tools that have ended. `tool_error`: the tool says that it failed; `failed`: it did not"
    " run, or its server says that it failed; `unknown`: it may have run.",
    MCP_SERVER,
    Label("ending", TOOL_ENDINGS),
)
TOOL_SECONDS = _histogram(
    "slipring_tool_call_seconds",
    "Time of a call of a hosted tool, from its start to its result.",
    _TURN_BUCKETS,
    MCP_SERVER,
)

# Tenants: exported with the setting `metrics_tenants` only.

TENANT_TURNS = _counter("slipring_tenant_turns_total", "Turns that have ended, by tenant.", TENANT, STATUS)
TENANT_TOKENS = _counter(
    "slipring_tenant_tokens_total", "Tokens of turns, by tenant.", TENANT, Label("kind", TOKEN_KINDS)
)

# Requests and connections.

REFUSALS = _counter(
    "slipring_refusals_total",
    "Requests, messages and handshakes that were answered with an error, refused turns included.",
    CODE,
)
CONNECTIONS = _gauge("slipring_connections", "Open connections.", Label("transport", ("websocket", "http")))
CONNECTIONS_LIMIT = _gauge("slipring_connections_limit", "Connections that may be open at once.")
SOCKETS_OPENED = _counter("slipring_websockets_opened_total", "WebSockets that have been opened.")
DROP_REASONS = ("head_timeout", "made_room", "unread", "message_timeout", "message_memory")
CONNECTIONS_DROPPED = _counter(
    "slipring_connections_dropped_total",
    "Connections that the server closed because of their client. `unread`: it did not read in time or left"
    " too much unread; `made_room`: it was idle or had no key when others needed its place.",
    Label("reason", DROP_REASONS),
)
LANES = _gauge("slipring_lanes", "Lanes of open WebSockets.")
IN_FLIGHT = _gauge("slipring_in_flight", "Turns that run.")
QUEUED = _gauge("slipring_queued", "Turns that wait for an earlier turn of their lane.")

# Memory.

SCOPES = ("connection", "tenant", "process")
CACHE_BYTES = _gauge(
    "slipring_cache_bytes",
    "States of earlier responses in memory: of the connection that has the most, of such a tenant, and of"
    " the process. The three count the same bytes, except that those of a connection are without what is"
    " compressed, which its limit does not include.",
    Label("scope", SCOPES),
    merge="max",
)
CACHE_LIMIT_BYTES = _gauge(
    "slipring_cache_limit_bytes", "The limit on each of them.", Label("scope", SCOPES), merge="max"
)
CACHE_LOOKUPS = _counter(
    "slipring_cache_lookups_total",
    "Where the response was found that a turn continues. `connection`: in the memory of its connection.",
    Label("result", ("connection", "parked", "store", "peer", "miss")),
)
CACHE_EVICTIONS = _counter(
    "slipring_cache_evictions_total",
    "States that were evicted, by the limit that was exceeded.",
    Label("scope", SCOPES),
)
CACHE_COMPRESSIONS = _counter(
    "slipring_cache_compressions_total",
    "States that were compressed because a chain that is not stored exceeded `connection_cache_bytes`.",
)
MEMORY_USES = ("states", "parked", "recognised", "requests", "unread", "compiled", "documents", "verdicts")
MEMORY_BYTES = _gauge(
    "slipring_memory_bytes",
    "Memory that clients fill. `states` includes `parked`.",
    Label("use", MEMORY_USES),
)
MEMORY_LIMIT_BYTES = _gauge(
    "slipring_memory_limit_bytes", "The limit on each of them.", Label("use", MEMORY_USES)
)
PARKED_BYTES = _gauge("slipring_parked_bytes", "States of dropped connections.")
PARKED_SESSIONS = _gauge("slipring_parked_sessions", "Dropped connections whose states are kept.")

# Engines and the store.

ENGINE_UP = _gauge("slipring_engine_up", "1 while the engine can generate, else 0.", ENGINE, merge="min")
ENGINE_JOBS = _gauge(
    "slipring_engine_jobs",
    "Jobs at the engine, and jobs that wait for it.",
    ENGINE,
    Label("state", ("running", "waiting")),
)
ENGINE_SLOTS = _gauge(
    "slipring_engine_slots", "Slots of the embedded engine.", ENGINE, Label("state", ("idle", "busy"))
)
ENGINE_SAVED_BYTES = _gauge(
    "slipring_engine_saved_bytes", "KV that the engine has saved beside its slots.", ENGINE
)
ENGINE_LOOPS = _gauge(
    "slipring_engine_loops",
    "Loops whose turn runs, those between two turns whose context is kept, and turns that wait for room.",
    ENGINE,
    Label("state", ("running", "paused", "waiting")),
)
ENGINE_LOOP_TOKENS = _gauge(
    "slipring_engine_loop_tokens",
    "Tokens of the engine's KV cache that loops hold, and those that are left for them.",
    ENGINE,
    Label("state", ("held", "free")),
)
# Safety checks.

CHECK = Label("check", help="the configured checks")
CHECK_OUTCOMES = ("passed", "flagged", "remembered")
CHECK_FAILURES = ("timeout", "source", "breaker", "overload", "invalid", "error", "closed")
CHECK_UP = _gauge("slipring_check_up", "Whether a safety check gives answers.", CHECK, merge="min")
CHECK_TEXTS = _counter(
    "slipring_check_texts_total",
    "Texts with a verdict of a check. `remembered`: it was known, so that the check was not asked.",
    CHECK,
    Label("outcome", CHECK_OUTCOMES),
)
CHECK_FAILED = _counter(
    "slipring_check_failures_total",
    "Texts without an answer of a check.",
    CHECK,
    Label("reason", CHECK_FAILURES),
)
CHECK_CALLS = _counter(
    "slipring_check_calls_total", "Calls of a check's source, each with one text or more.", CHECK
)
CHECK_SECONDS = _counter(
    "slipring_check_seconds_total", "Time that these calls took.", CHECK, parts=NANOSECONDS
)

AUDIT_OUTCOMES = ("passed", "refused", "lost")
AUDITS = _counter(
    "slipring_audits_total",
    "Responses that were inspected after their end. `lost`: the server has ended before.",
    Label("outcome", AUDIT_OUTCOMES),
)
# Exported with the setting `metrics_safety_ids` only.
FLAGGED_TURNS = _counter(
    "slipring_flagged_turns_total",
    "Turns that a safety check has flagged, by the user of the client whom its `safety_identifier` names.",
    FLAGGED_USER,
)
WITHHELD_ITEMS = _counter(
    "slipring_withheld_items_total",
    "Items of histories that a check had refused before, so that the model got a placeholder instead.",
    CHECK,
)

STORE_COMMIT_SECONDS = _histogram(
    "slipring_store_commit_seconds",
    "Time of a write to the store, from the call to the commit.",
    _COMMIT_BUCKETS,
)
STORE_UP = _gauge(
    "slipring_store_up",
    "1 if the store could be used the last time, else 0. Asking for `/health` tries it out.",
    merge="min",
)
STORE_ERRORS = _counter(
    "slipring_store_errors_total", "Writes that failed because the store could not be used."
)

# What observes turns.

RECORDING_RESULTS = ("written", "dropped")
RECORDED_TURNS = _counter(
    "slipring_recorded_turns_total",
    "Turns that were to be recorded (`--record`). `dropped`: too many at once, or no room for them.",
    Label("result", RECORDING_RESULTS),
)

# Processes.

LOOP_LAG_SECONDS = _histogram(
    "slipring_event_loop_lag_seconds",
    "How late the event loop is, sampled four times a second, at rest once a second.",
    _LAG_BUCKETS,
)
TASKS = _gauge(
    "slipring_tasks", "Tasks of the event loop. Their number follows that of connections and running turns."
)
PROCESSES = _gauge("slipring_processes", "Processes that serve clients.")
DRAINING = _gauge("slipring_draining", "Processes that stop and finish their last responses.")
BUILD_INFO = _gauge(
    "slipring_build_info",
    "Always 1; the labels say what runs.",
    Label("version", help="of slipring"),
    Label("python", help="its version"),
    merge="max",
)
CPU_SECONDS = _counter(
    "process_cpu_seconds_total",
    "CPU time of slipring's processes. An embedded engine is not included.",
    parts=NANOSECONDS,
)
RESIDENT_BYTES = _gauge("process_resident_memory_bytes", "Resident memory of the same processes.")
OPEN_FDS = _gauge("process_open_fds", "Open file descriptors of the same processes.")
START_TIME = _gauge(
    "process_start_time_seconds", "Unix time at which the oldest of the processes started.", merge="min"
)

METRICS: tuple[Metric, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All metrics, in the order of this file."""
BY_NAME = {metric.name: metric for metric in METRICS}
