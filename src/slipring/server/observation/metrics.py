"""The metrics of one process: counts ended turns, and reads the counts that caches, queues and engines keep.

Nothing is done per token. An ended turn is counted once; everything else is read when a snapshot is taken.

A server that serves its own ``/metrics`` exposes ``Metrics.snapshot()``. A worker sends its snapshots to the
supervisor, which adds them up with ``observation.metric_counts.Fold``, and those of its own process.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import get_args

from msgspec import UNSET

from slipring.engines.base import Engine
from slipring.observation import live_messages
from slipring.observation import metric_table as table
from slipring.observation.bounded_labels import BoundedNames, OfferedModels
from slipring.observation.metric_counts import Reading, Registry, Snapshot, totals
from slipring.protocol.turn_report import OWN_STAGES, TokenCounts, TurnReport
from slipring.safety.source_calls import CheckStatus, FailureKind
from slipring.server.connections.slow_clients import DropReason
from slipring.server.driver import Exchange
from slipring.server.hosted_tools.runner import EndedCall
from slipring.server.observation.ended_turns import EndedTurn
from slipring.server.process.event_loop import LoopLag
from slipring.server.process.process_metrics import new_process_id, process_readings
from slipring.server.service import Service
from slipring.server.transports.websocket import WebSocketConnection

_MOST_CODES = 64
_MOST_REASONS = 32
"""Codes and reasons are constants of the code. The bounds hold even if one should not be."""


class Metrics:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = Registry(new_process_id())
        self._counter, self._histogram = self._registry.counter, self._registry.histogram
        self._refused_turns: Counter[str] = Counter()
        self._codes = BoundedNames(_MOST_CODES)
        self._reasons = BoundedNames(_MOST_REASONS)
        self._tenants = BoundedNames(service.config.metrics_tenants)
        self._shows_tenants = service.config.metrics_tenants > 0
        self._safety_ids = BoundedNames(service.config.metrics_safety_ids)
        self._shows_safety_ids = service.config.metrics_safety_ids > 0
        self._models = OfferedModels()

    def start(self, lag: LoopLag) -> None:
        """Count turns, commits and the lag of the event loop from now on. The engines must have started."""
        catalog = self._service.catalog
        names = [model.name for model in catalog]
        self._models = OfferedModels(names, catalog.aliases)
        for model in (*names, table.OTHER):
            self._begin_at_zero(model)
        self._service.turn_observers.append(self.observe)
        runner = self._service.tool_runner
        for server in runner.registry.names:
            for ending in table.TOOL_ENDINGS:
                self._counter(table.TOOL_CALLS)[server, ending] += 0
        runner.observers.append(self._tool_called)
        self._service.store.watch_commits(partial(self._histogram(table.STORE_COMMIT_SECONDS).observe, ()))
        lag.observers.append(partial(self._histogram(table.LOOP_LAG_SECONDS).observe, ()))

    def _begin_at_zero(self, model: str) -> None:
        """Export the turns of a model before there are any: the rate of a counter that appears with its
        first turn lacks that turn."""
        for status in table.STATUSES:
            for api, transport in table.API_TRANSPORTS:
                self._counter(table.TURNS)[model, status, transport, api] += 0

    def snapshot(self) -> Snapshot:
        """Everything counted since the start, and the gauges as they are now."""
        return self._registry.snapshot((*self._counted(), *_readings(self._service), *process_readings()))

    def totals(self) -> live_messages.Totals:
        """What the live view shows of the turns since the start."""
        fallbacks = _by_name(table.RENDER_FALLBACKS, self._service.render_fallbacks, self._reasons)
        counted = (table.TURNS, table.TOKENS, table.REQUEST_BYTES, table.HISTORY_BYTES_SAVED)
        return totals(
            {metric.name: self._counter(metric).items() for metric in counted}
            | {table.RENDER_FALLBACKS.name: [(labels, int(count)) for _, labels, count in fallbacks]}
        )

    def _counted(self) -> Iterator[Reading]:
        refusals = self._service.refusals + self._refused_turns
        yield from _by_name(table.REFUSALS, refusals, self._codes)
        yield from _by_name(table.RENDER_FALLBACKS, self._service.render_fallbacks, self._reasons)

    # Called once per turn.

    def observe(self, turn: EndedTurn) -> None:
        """Count a turn that has ended."""
        report, transport = turn.report, turn.origin.transport
        model = self._models.of(report.model)
        self._counter(table.TURNS)[model, report.status, transport, turn.origin.api] += 1
        self._counter(table.REQUEST_BYTES)[transport,] += report.request_bytes
        self._histogram(table.TURN_SECONDS).observe((model, report.status), report.total_ms / 1000)
        if report.error_code is not UNSET:
            self._counter(table.TURN_ERRORS)[model, self._codes.of(report.error_code)] += 1
            if report.status == "refused":
                self._refused_turns[report.error_code] += 1
        if report.history_bytes is not UNSET:
            self._counter(table.HISTORY_BYTES_SAVED)[transport,] += report.history_bytes
        if report.recognised_items is not UNSET:
            self._counter(table.RECOGNISED_TURNS)[model,] += 1
        for mark in report.marks or ():
            self._counter(table.MARKED_TURNS)[mark,] += 1
        self._count_findings(report)
        if report.send_ms is not UNSET:
            self._histogram(table.SEND_BLOCKED_SECONDS).observe((transport,), report.send_ms / 1000)
        self._count_times(model, report)
        if report.tokens is not UNSET:
            self._count_tokens(model, turn.caller.tenant, report.tokens)
        if self._shows_tenants:
            self._counter(table.TENANT_TURNS)[self._tenants.of(turn.caller.tenant), report.status] += 1

    def _count_findings(self, report: TurnReport) -> None:
        """Count what safety checks have found."""
        for check, items in (report.withheld or {}).items():
            self._counter(table.WITHHELD_ITEMS)[check,] += items
        if self._shows_safety_ids and report.flagged_by and report.safety_id is not UNSET:
            self._counter(table.FLAGGED_TURNS)[self._safety_ids.of(report.safety_id),] += 1

    def _count_times(self, model: str, report: TurnReport) -> None:
        observe_stage = self._histogram(table.STAGE_SECONDS).observe
        own_ms = generating_ms = 0.0
        answers = 0
        for stage in report.stages:
            name, duration_ms = stage.name, stage.duration_ms
            observe_stage((name,), duration_ms / 1000)
            if name in OWN_STAGES:
                own_ms += duration_ms
            elif name == "generate":
                generating_ms += duration_ms
                answers += 1
        if report.tokens is UNSET:
            return  # it was refused, or ended before its answer: its times are not those of a whole turn
        self._histogram(table.OVERHEAD_SECONDS).observe((model,), own_ms / 1000)
        output = report.tokens.output
        if output and (first_token_ms := report.first_token_ms) is not None:
            self._histogram(table.FIRST_TOKEN_SECONDS).observe((model,), first_token_ms / 1000)
        # The first token of each answer ends a prefill; a rollout has several answers.
        if answers and output > answers:
            self._histogram(table.TOKEN_SECONDS).observe((model,), generating_ms / (output - answers) / 1000)

    def _count_tokens(self, model: str, tenant: str, tokens: TokenCounts) -> None:
        for kind in table.TOKEN_KINDS:
            self._counter(table.TOKENS)[model, kind] += getattr(tokens, kind)
        if self._shows_tenants:
            name = self._tenants.of(tenant)
            for kind in table.TOKEN_KINDS:
                self._counter(table.TENANT_TOKENS)[name, kind] += getattr(tokens, kind)

    def _tool_called(self, call: EndedCall) -> None:
        server = call.server or table.OTHER
        self._counter(table.TOOL_CALLS)[server, call.ending] += 1
        self._histogram(table.TOOL_SECONDS).observe((server,), call.seconds)


def _readings(service: Service) -> Iterator[Reading]:
    yield table.PROCESSES, (), 1
    yield table.DRAINING, (), int(service.draining)
    yield table.TASKS, (), len(asyncio.all_tasks())
    yield table.SOCKETS_OPENED, (), service.sockets_opened
    yield table.STORE_UP, (), int(service.store.trouble is None)
    yield table.STORE_ERRORS, (), service.store.failed_writes
    if (recorded := service.recorded) is not None:
        yield table.RECORDED_TURNS, ("written",), recorded.written
        yield table.RECORDED_TURNS, ("dropped",), recorded.dropped
    yield from _connections(service)
    yield from _caches(service)
    yield from _memory(service)
    for name, engine in _named(service.catalog.engines):
        yield from _engine(name, engine)
    for check in service.inspector.status():
        yield from _check(check)
    for outcome in table.AUDIT_OUTCOMES:
        yield table.AUDITS, (outcome,), getattr(service.audits, outcome)


def _connections(service: Service) -> Iterator[Reading]:
    connections = service.connections
    yield table.CONNECTIONS, ("websocket",), service.sockets
    yield table.CONNECTIONS, ("http",), max(connections.open - service.sockets, 0)
    yield table.CONNECTIONS_LIMIT, (), connections.room
    for reason in get_args(DropReason):
        yield table.CONNECTIONS_DROPPED, (reason,), connections.dropped[reason]
    lanes = in_flight = queued = largest_bytes = 0
    for client in service.clients:
        if isinstance(client, WebSocketConnection):
            session = client.driver.session
            lanes += session.lanes
            largest_bytes = max(largest_bytes, session.cache.limited_bytes)
        elif isinstance(client, Exchange):
            session = client.driver.session
        else:
            continue
        in_flight += session.in_flight
        queued += session.waiting
    yield table.LANES, (), lanes
    yield table.IN_FLIGHT, (), in_flight
    yield table.QUEUED, (), queued
    yield table.CACHE_BYTES, ("connection",), largest_bytes


def _caches(service: Service) -> Iterator[Reading]:
    limits, process, tenants = service.config.limits, service.scopes.process, service.scopes.tenants.values()
    yield table.CACHE_BYTES, ("tenant",), max((scope.used_bytes for scope in tenants), default=0)
    yield table.CACHE_BYTES, ("process",), process.used_bytes
    yield table.CACHE_LIMIT_BYTES, ("connection",), limits.connection_cache_bytes
    yield table.CACHE_LIMIT_BYTES, ("tenant",), limits.tenant_cache_bytes
    yield table.CACHE_LIMIT_BYTES, ("process",), process.limit_bytes
    yield table.CACHE_EVICTIONS, ("connection",), process.connection_evictions
    yield table.CACHE_EVICTIONS, ("tenant",), sum(scope.evictions for scope in tenants)
    yield table.CACHE_EVICTIONS, ("process",), process.evictions
    yield table.CACHE_COMPRESSIONS, (), process.compressions
    yield table.CACHE_LOOKUPS, ("connection",), process.hits
    for source in ("parked", "store", "peer", "miss"):
        yield table.CACHE_LOOKUPS, (source,), service.lookups[source]
    yield table.PARKED_BYTES, (), service.parking.used_bytes
    yield table.PARKED_SESSIONS, (), len(service.parking)


def memory_uses(service: Service) -> dict[str, live_messages.Memory]:
    """What the memory of a server is used for: bytes in use and their bound."""
    process, unread, requests = service.scopes.process, service.connections.unread, service.requests
    parking, sandbox, documents = service.parking, service.sandbox, service.documents.sandbox
    recognised = (service.known, service.heads, service.items)
    verdicts = service.inspector.cache
    return {
        "states": live_messages.Memory(process.used_bytes, process.limit_bytes),
        "parked": live_messages.Memory(parking.used_bytes, parking.limit_bytes),
        "recognised": live_messages.Memory(
            sum(each.used_bytes for each in recognised), sum(each.limit_bytes for each in recognised)
        ),
        "requests": live_messages.Memory(requests.used_bytes, requests.limit_bytes),
        "unread": live_messages.Memory(unread.used_bytes, unread.limit_bytes),
        "compiled": live_messages.Memory(sandbox.cached_bytes, sandbox.limits.cache_bytes),
        "documents": live_messages.Memory(documents.cached_bytes, documents.limits.cache_bytes),
        "verdicts": live_messages.Memory(verdicts.used_bytes, verdicts.limit_bytes),
    }


def _memory(service: Service) -> Iterator[Reading]:
    for use, memory in memory_uses(service).items():
        yield table.MEMORY_BYTES, (use,), memory.used_bytes
        yield table.MEMORY_LIMIT_BYTES, (use,), memory.limit_bytes


def _named(engines: Iterable[Engine]) -> Iterator[tuple[str, Engine]]:
    """Engines by kind. A server may have several of one kind, and their URLs may be private."""
    seen: Counter[str] = Counter()
    for engine in engines:
        seen[engine.name] += 1
        number = seen[engine.name]
        yield (engine.name if number == 1 else f"{engine.name}-{number}"), engine


def _engine(name: str, engine: Engine) -> Iterator[Reading]:
    status = engine.status()
    yield table.ENGINE_UP, (name,), int(status.trouble is None)
    yield table.ENGINE_JOBS, (name, "running"), status.running
    yield table.ENGINE_JOBS, (name, "waiting"), status.waiting
    if status.slots:
        busy = sum(slot.state == "busy" for slot in status.slots)
        yield table.ENGINE_SLOTS, (name, "busy"), busy
        yield table.ENGINE_SLOTS, (name, "idle"), len(status.slots) - busy
    if (loops := status.loops) is not None:
        yield table.ENGINE_LOOPS, (name, "running"), loops.running
        yield table.ENGINE_LOOPS, (name, "paused"), loops.paused
        yield table.ENGINE_LOOPS, (name, "waiting"), loops.waiting
        yield table.ENGINE_LOOP_TOKENS, (name, "held"), loops.held_tokens
        yield table.ENGINE_LOOP_TOKENS, (name, "free"), max(loops.capacity_tokens - loops.held_tokens, 0)
    if status.saved_memory is not None:
        yield table.ENGINE_SAVED_BYTES, (name,), status.saved_memory.used_bytes


def _check(status: CheckStatus) -> Iterator[Reading]:
    name = status.name
    yield table.CHECK_UP, (name,), int(status.trouble is None)
    for outcome in table.CHECK_OUTCOMES:
        yield table.CHECK_TEXTS, (name, outcome), getattr(status, outcome)
    for reason in get_args(FailureKind):
        yield table.CHECK_FAILED, (name, reason), status.failures.get(reason, 0)
    yield table.CHECK_CALLS, (name,), status.calls
    yield table.CHECK_SECONDS, (name,), round(status.busy_s * table.NANOSECONDS)


def _by_name(metric: table.Metric, counts: Counter[str], names: BoundedNames) -> Iterator[Reading]:
    """The counts of a metric with one label, whose further values become ``other``."""
    bounded: Counter[str] = Counter()
    for name, count in counts.items():
        bounded[names.of(name)] += count
    for name, count in bounded.items():
        yield metric, (name,), count
