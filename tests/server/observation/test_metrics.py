"""Metrics of a running server: what is counted, what is read, and which labels there can be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from msgspec import UNSET, UnsetType
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Sample

from slipring.base.errors import ServerError
from slipring.config.settings import Config
from slipring.core.limits import Limits
from slipring.observation import metric_table as table
from slipring.observation.exposition import expose
from slipring.protocol.turn_report import Mark, Stage, TokenCounts, TurnReport
from slipring.server.access.auth import Caller
from slipring.server.observation.ended_turns import EndedTurn, Origin, Transport
from slipring.server.observation.metrics import Metrics
from slipring.server.process.event_loop import LoopLag
from slipring.server.service import Service
from tests.api import Api
from tests.engines.fakes.server import in_front_of
from tests.engines.fakes.vllm import FakeVllm
from tests.harness import PuppetEngine, Running, serve
from tests.observation.snapshot_values import value_of
from tests.server.admin.watching import ANY_PORT, admin_url
from tests.server.raw import gone, open_raw

OPEN = "application/openmetrics-text"


def samples(server: Running) -> dict[str, list[Sample]]:
    """The samples by name, as OpenMetrics and as text, which must agree."""
    snapshot = server.server.metrics.snapshot()
    found: dict[str, list[Sample]] = {}
    for family in read_open_metrics(expose(snapshot, OPEN)[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    for family in read_text(expose(snapshot)[0].decode()):
        for sample in family.samples:
            assert (sample.labels, sample.value) in [
                (other.labels, other.value) for other in found[sample.name]
            ]
    return found


def value(server: Running, metric: table.Metric, **labels: str) -> float:
    return value_of(server.server.metrics.snapshot(), metric, labels)


def observations(server: Running, metric: table.Metric, **labels: str) -> int:
    """How many observations a histogram has."""
    kept = server.server.metrics.snapshot().distributions.get(metric.name, [])
    return sum(
        sum(each.counts)
        for each in kept
        if labels.items() <= dict(zip(metric.label_names, each.labels, strict=True)).items()
    )


@asynccontextmanager
async def every_kind_of_turn(**settings: Any) -> AsyncIterator[Running]:
    """A server that has had turns of every status and transport."""
    engine = PuppetEngine()
    async with serve(engine, **settings) as server:
        async with server.connect() as socket:
            await socket.create(input="completed")
            performance = await engine.next()
            performance.say("a", "b", "c")
            performance.finish(input_tokens=10, cached_tokens=4, output_tokens=3, reasoning_tokens=1)
            first = (await socket.until("response.completed"))[-1]["response"]["id"]
            await socket.create(input="incomplete", previous_response_id=first)
            (await engine.next()).finish("length")
            await socket.until("response.incomplete")
            await socket.create(input="failed")
            performance = await engine.next()
            performance.say("hi")
            performance.fail(ServerError("broken"))
            await socket.until("response.failed")
            await socket.error(input="refused", model="unknown")
            await socket.send(type="response.unknown")
            await socket.until("error")
        async with open_raw(server) as raw:
            await raw.create(input="cancelled")
            await engine.next()
            await raw.receive_event()
            raw.drop()
            await gone(server)
        post = asyncio.create_task(server.post(input="http"))
        (await engine.next()).finish()
        assert (await post)[0] == 200
        streamed = asyncio.create_task(server.stream(input="sse"))
        (await engine.next()).finish()
        await streamed
        api = Api(server)
        begun = await api.begin(input="background")
        (await engine.next()).finish()
        await api.ended(begun["id"])
        assert (await api.call("POST", "/responses", json={"input": 3}))[0] == 400
        assert (await api.call("GET", "/responses/resp_unknown"))[0] == 404
        yield server


async def test_turns_of_every_status_and_transport_are_counted_and_both_formats_are_valid() -> None:
    async with every_kind_of_turn() as server:
        turns = {
            tuple(sample.labels[name] for name in ("model", "status", "transport")): sample.value
            for sample in samples(server)["slipring_turns_total"]
            if sample.value
        }
        assert turns == {
            ("puppet", "completed", "websocket"): 1,
            ("puppet", "incomplete", "websocket"): 1,
            ("puppet", "failed", "websocket"): 1,
            ("puppet", "cancelled", "websocket"): 1,
            ("other", "refused", "websocket"): 1,
            ("puppet", "completed", "http"): 1,
            ("puppet", "completed", "sse"): 1,
            ("puppet", "completed", "background"): 1,
            ("other", "refused", "http"): 1,
        }
        assert value(server, table.TURN_ERRORS, model="puppet", code="server_error") == 1
        assert value(server, table.TURN_ERRORS, model="other", code="model_not_found") == 1
        # A refused turn counts once, also if it was refused while its body was read.
        refusals = {
            sample.labels["code"]: sample.value for sample in samples(server)["slipring_refusals_total"]
        }
        assert refusals == {
            "model_not_found": 1,
            "unsupported_event_type": 1,
            "invalid_type": 1,
            "not_found": 1,
        }
        assert value(server, table.TOKENS, kind="cached") == 4
        assert value(server, table.TOKENS, kind="reasoning") == 1
        assert value(server, table.HISTORY_BYTES_SAVED, transport="websocket") > 0
        assert value(server, table.MARKED_TURNS, mark="background") == 1
        assert value(server, table.CACHE_LOOKUPS, result="connection") == 1
        assert value(server, table.SOCKETS_OPENED) == 2
        assert observations(server, table.TURN_SECONDS) == 9
        assert observations(server, table.STAGE_SECONDS, stage="prefill") >= 5
        assert observations(server, table.SEND_BLOCKED_SECONDS, transport="websocket") == 4
        assert observations(server, table.STORE_COMMIT_SECONDS) >= 5
        assert value(server, table.ENGINE_UP, engine="puppet") == 1
        assert value(server, table.CPU_SECONDS) > 0


async def test_the_admin_listener_serves_them() -> None:
    async with serve(admin=ANY_PORT) as server:
        await server.post(input="hello")
        url = f"{admin_url(server)}metrics"
        async with server.http.get(url) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            names = {family.name for family in read_text(await answer.text())}
        async with server.http.get(url, headers={"Accept": OPEN}) as answer:
            assert answer.content_type == OPEN
            assert {family.name for family in read_open_metrics(await answer.text())} == names
        assert len(names) == len(table.METRICS)


async def test_gauges_show_what_is_there_now() -> None:
    engine = PuppetEngine()
    limits = Limits(connection_cache_bytes=1_000_000, parked_s=60)
    async with serve(engine, limits=limits) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="x" * 1000, store=False)
            (await engine.next()).finish()
            await socket.until("response.completed")
            await socket.create(input="runs", stream_id="a")
            await socket.create(input="waits", stream_id="a")
            await engine.next()
            assert value(server, table.IN_FLIGHT) == 1
            assert value(server, table.QUEUED) == 1
            assert value(server, table.LANES) == 2
            assert value(server, table.CONNECTIONS, transport="websocket") == 1
            assert 1000 < value(server, table.CACHE_BYTES, scope="connection") < 20_000
            assert value(server, table.CACHE_LIMIT_BYTES, scope="connection") == 1_000_000
            assert value(server, table.MEMORY_BYTES, use="requests") > 0
        await gone(server)
        assert value(server, table.CONNECTIONS, transport="websocket") == 0
        assert value(server, table.IN_FLIGHT) == value(server, table.QUEUED) == 0
        assert value(server, table.DRAINING) == 0


async def test_lookups_say_where_a_response_was_found() -> None:
    async with serve() as server:
        async with server.connect() as socket:
            stored = await socket.response(input="a")
            kept = await socket.response(input="b", store=False)
            await socket.response(input="c", previous_response_id=kept["id"])
            transport = socket.ws._response.connection
            assert transport is not None
            assert transport.transport is not None
            transport.transport.abort()
        await gone(server)
        async with server.connect() as socket:
            await socket.response(input="d", previous_response_id=kept["id"], store=False)
            await socket.response(input="e", previous_response_id=stored["id"], store=False)
            await socket.error(input="f", previous_response_id="resp_unknown")
        assert (await server.post(input="g", previous_response_id=stored["id"]))[0] == 200
        found = {
            sample.labels["result"]: sample.value
            for sample in samples(server)["slipring_cache_lookups_total"]
        }
        assert found == {"connection": 1, "parked": 1, "store": 2, "peer": 0, "miss": 1}


@pytest.mark.parametrize(
    ("limits", "scope"),
    [
        (Limits(connection_cache_bytes=30_000), "connection"),
        (Limits(tenant_cache_bytes=30_000), "tenant"),
        (Limits(process_cache_bytes=30_000), "process"),
    ],
)
async def test_evictions_are_counted_by_the_limit_that_was_exceeded(limits: Limits, scope: str) -> None:
    async with serve(limits=limits) as server, server.connect() as socket:
        for _ in range(3):
            await socket.response(input="x" * 10_000, store=False)
        for each in table.SCOPES:
            assert bool(value(server, table.CACHE_EVICTIONS, scope=each)) == (each == scope)


async def test_clients_cannot_add_labels() -> None:
    async with serve(api_key=("a:key-a", "b:key-b", "c:key-c"), metrics_tenants=2) as server:
        for number in range(3):
            key = f"key-{'abc'[number]}"
            await server.post(key=key, input="x")
            await server.post(key=key, input="x", model=f'evil"{number}\n')
            async with server.http.get(f"{server.url}/{number}") as answer:
                assert answer.status == 404
        for name, found in samples(server).items():
            metric = table.BY_NAME.get(name)
            for label in metric.labels if metric is not None else ():
                values = {sample.labels[label.name] for sample in found}
                assert not label.values or values <= set(label.values), name
        assert {sample.labels["model"] for sample in samples(server)["slipring_turns_total"]} == {
            "simulated",
            "other",
        }
        tenants = {
            (sample.labels["tenant"], sample.labels["status"]): sample.value
            for sample in samples(server)["slipring_tenant_turns_total"]
        }
        assert tenants == {
            (name, status): 1 for name in "a b other".split() for status in "completed refused".split()
        }
        assert value(server, table.TENANT_TOKENS, tenant="other", kind="output") == 5


async def test_tenants_have_no_labels_unless_they_are_asked_for() -> None:
    async with serve(api_key=("acme:key-a",)) as server:
        await server.post(key="key-a", input="x")
        assert b"acme" not in expose(server.server.metrics.snapshot())[0]


REPORT = TurnReport(
    status="completed",
    request_bytes=72,
    stages=[
        Stage("decode", 0.0, 1.0),
        Stage("queue", 1.0, 500.0),
        Stage("render", 501.0, 2.0),
        Stage("prefill", 503.0, 40.0),
        Stage("generate", 543.0, 20.0),
        Stage("client", 563.0, 5000.0),
        Stage("render", 5563.0, 3.0),
        Stage("prefill", 5566.0, 40.0),
        Stage("generate", 5606.0, 10.0),
        Stage("terminal", 5616.0, 1.0),
    ],
    total_ms=5617.0,
    response_id="resp_1",
    model="simulated",
    send_ms=0.0,
    tokens=TokenCounts(rendered=134, input=1234, cached=1100, output=32),
    marks=("rollout",),
)


def seconds(metrics: Metrics, metric: table.Metric) -> float:
    (kept,) = metrics.snapshot().distributions[metric.name]
    return kept.nanoseconds / table.NANOSECONDS


async def counting(**settings: Any) -> tuple[Service, Metrics]:
    async with serve(**settings) as server:
        metrics = Metrics(server.service)
        metrics.start(LoopLag(lambda: True))
        return server.service, metrics


async def test_the_times_of_a_turn() -> None:
    _, metrics = await counting()
    metrics.observe(EndedTurn(REPORT, None, Caller("t"), Origin("websocket", 1), 0.0))
    assert seconds(metrics, table.TURN_SECONDS) == 5.617
    assert seconds(metrics, table.FIRST_TOKEN_SECONDS) == 0.543
    assert seconds(metrics, table.TOKEN_SECONDS) == 0.001, "30 ms for 30 gaps: each answer has a first token"
    assert seconds(metrics, table.OVERHEAD_SECONDS) == 0.007


async def test_items_that_are_withheld_are_counted_by_check() -> None:
    _, metrics = await counting()
    for withheld in ({"guard": 2}, {"guard": 1, "words": 1}):
        report = TurnReport("completed", 9, [], 1.0, withheld=withheld)
        metrics.observe(EndedTurn(report, None, Caller("t"), Origin("websocket", 1), 0.0))
    assert value_of(metrics.snapshot(), table.WITHHELD_ITEMS, {"check": "guard"}) == 3
    assert value_of(metrics.snapshot(), table.AUDITS, {"outcome": "lost"}) == 0


async def test_users_who_were_flagged_are_counted_by_a_digest_if_that_is_asked_for() -> None:
    flagged: list[tuple[str, tuple[str, ...] | UnsetType]]
    flagged = [("1f", ("guard",)), ("1f", ("guard", "words")), ("2e", UNSET), ("3d", ("guard",))]
    for most, expected in ((0, {}), (1, {"1f": 2, "other": 1})):
        _, metrics = await counting(metrics_safety_ids=most)
        for name, checks in flagged:
            report = TurnReport("completed", 9, [], 1.0, flagged_by=checks, safety_id=name)
            metrics.observe(EndedTurn(report, None, Caller("t"), Origin("websocket", 1), 0.0))
        counted = metrics.snapshot().values.get(table.FLAGGED_TURNS.name, ())
        assert {each.labels[0]: each.value for each in counted} == expected


async def test_a_warmup_has_no_first_token() -> None:
    _, metrics = await counting()
    marks: tuple[Mark, ...] = ("warmup",)
    stages = [Stage("render", 0.0, 2.0), Stage("prefill", 2.0, 40.0), Stage("generate", 42.0, 0.0)]
    tokens = TokenCounts(rendered=9, input=9, cached=0, output=0)
    report = TurnReport("completed", 9, stages, 42.0, model="simulated", tokens=tokens, marks=marks)
    metrics.observe(EndedTurn(report, None, Caller("t"), Origin("websocket", 1), 0.0))
    assert table.FIRST_TOKEN_SECONDS.name not in {
        name for name, kept in metrics.snapshot().distributions.items() if kept
    }
    assert value_of(metrics.snapshot(), table.MARKED_TURNS, {"mark": "warmup"}) == 1


async def test_what_the_code_invents_is_bounded_too() -> None:
    service, metrics = await counting()
    transport: Transport = "http"
    for number in range(500):
        report = TurnReport("refused", 9, [], 1.0, model=f"m{number}", error_code=f"code_{number}")
        metrics.observe(EndedTurn(report, None, Caller(f"t{number}"), Origin(transport), 0.0))
        service.render_fallbacks[f"reason {number}"] += 1
        service.refusals[f"status_{number}"] += 1
    snapshot = metrics.snapshot()
    assert {each.labels[0] for each in snapshot.values[table.TURN_ERRORS.name]} == {"other"}
    for metric in (table.TURN_ERRORS, table.REFUSALS, table.RENDER_FALLBACKS):
        assert len(snapshot.values[metric.name]) <= 65
    assert value_of(snapshot, table.REFUSALS) == 1000
    assert value_of(snapshot, table.RENDER_FALLBACKS) == 500


class LateLoop:
    """An event loop that runs timers later and later."""

    def __init__(self, late_s: list[float]) -> None:
        self._late_s = late_s
        self._due = 0.0

    def time(self) -> float:
        return self._due + self._late_s.pop(0)

    def call_at(self, due: float, call: Any, loop: Any) -> None:
        self._due = due


def test_the_lag_is_how_late_each_timer_runs() -> None:
    lag, seen = LoopLag(lambda: True), []
    lag.observers.append(seen.append)
    loop: Any = LateLoop([0.0, 0.5, 0.125])
    for _ in range(3):
        lag._measure(loop)
    assert seen == [0.0, 0.5, 0.125]
    assert lag.longest_s == 0.5


def test_the_lag_is_sampled_four_times_a_second_and_at_rest_when_a_second_begins() -> None:
    is_busy = True
    lag = LoopLag(lambda: is_busy)
    loop: Any = LateLoop([0.375, 0.0, 0.0])
    lag._measure(loop)
    assert lag._due == 0.625
    is_busy = False
    for due in (1.0, 2.0):
        lag._measure(loop)
        assert lag._due == due


def test_the_setting_is_off_by_default() -> None:
    assert Config().metrics_tenants == 0


async def test_other_machines_and_pages_cannot_read_them() -> None:
    async with serve(admin=ANY_PORT, admin_key="secret") as server:
        url = f"{admin_url(server)}metrics"
        for headers, status in (({}, 401), ({"Authorization": "Bearer secret"}, 200)):
            async with server.http.get(url, headers=headers) as answer:
                assert answer.status == status
        async with aiohttp.ClientSession() as http, http.get(url, headers={"Origin": "http://x"}) as answer:
            assert answer.status == 403


async def test_loops_of_an_engine_without_slots_are_counted() -> None:
    async with in_front_of(FakeVllm(), kv_tokens=4000) as (_, server), server.connect() as socket:
        await socket.response(input="hi", store=False)
        found = samples(server)
        loops = {each.labels["state"]: each.value for each in found["slipring_engine_loops"]}
        assert loops == {"running": 0, "paused": 1, "waiting": 0}
        tokens = {each.labels["state"]: each.value for each in found["slipring_engine_loop_tokens"]}
        assert sum(tokens.values()) == 3800
        assert tokens["held"] > 0
