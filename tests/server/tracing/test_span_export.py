"""The thread that delivers spans: collectors that refuse, hang or do not exist, and a queue that is full."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slipring.protocol.requests import CreateRequest
from slipring.protocol.turn_report import Stage, TurnReport
from slipring.server.access.auth import Caller
from slipring.server.observation.ended_turns import EndedTurn, Origin, TurnContent
from slipring.server.tracing import span_export
from slipring.server.tracing.span_export import SpanExport
from slipring.server.tracing.turn_spans import TracedTurn, excerpt, new_context, spans_of
from tests.free_port import free_port
from tests.harness import serve
from tests.server.raw import until
from tests.server.tracing.collector import collect

STAGES = [Stage("decode", 0.0, 0.25), Stage("generate", 0.25, 10.0)]


def traced(stages: list[Stage] = STAGES, lane: str | None = None, content: str | None = None) -> TracedTurn:
    report = TurnReport("completed", 10, stages, total_ms=10.25, previous_response_id="resp_\ud800")
    turn = EndedTurn(report, lane, Caller("t"), Origin("websocket", 1), started_at=0.0)
    said = excerpt(TurnContent(CreateRequest(instructions=content))) if content is not None else None
    return TracedTurn(turn, new_context(), None, None, ended_ns=10**18, said=said)


class Answers(SpanExporter):
    """An exporter that answers as the test says."""

    def __init__(self, *answers: SpanExportResult | Exception) -> None:
        self.answers = list(answers)
        self.exported: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.exported.append(len(spans))
        answer = self.answers.pop(0) if self.answers else SpanExportResult.SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        pass


def exporting(exporter: SpanExporter) -> SpanExport:
    return SpanExport(exporter, Resource({}), "http://collector")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "_GATHER_S", 0.0)


async def test_a_collector_that_refuses_is_logged_once_until_it_accepts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with collect() as collector:
        async with serve(trace_endpoint=f"{collector.url}/v1/traces?key=abc", trace_sample=1.0) as server:
            counts = server.service.traces
            collector.status = 400
            for number in range(3):
                await server.post(input="hi")
                await until(lambda: counts.dropped == number + 1)  # noqa: B023
            collector.status = 200
            await server.post(input="hi")
            await until(lambda: counts.delivered == 1)
            async with server.http.get(f"{server.url.removesuffix('/v1')}/health") as answer:
                assert (await answer.json())["traces"] == {"delivered": 1, "dropped": 3}
        assert len(collector.turns) == 1
        failed, again = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
        assert failed.startswith(f"traces cannot be delivered to {collector.url}/v1/traces,")
        assert "400" in failed
        assert again.endswith("3 turns were lost")
        assert "abc" not in failed


async def test_without_a_collector_turns_run_and_the_server_stops(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "_STOP_S", 0.01)
    async with serve(trace_endpoint=f"http://127.0.0.1:{free_port()}", trace_sample=1.0) as server:
        counts = server.service.traces
        for _ in range(3):
            assert (await server.post(input="hi"))[0] == 200
    await until(lambda: counts.dropped == 3)
    lines = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert counts.delivered == 0


async def test_a_collector_that_does_not_answer_does_not_hold_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "_STOP_S", 0.01)
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        arrived.set()
        await answer.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", hang)
    async with TestServer(app, host="127.0.0.1") as collector:
        async with serve(trace_endpoint=f"http://127.0.0.1:{collector.port}", trace_sample=1.0) as server:
            await server.post(input="hi")
            await arrived.wait()
            await server.post(input="this one stays in the queue")
            counts = server.service.traces
        assert counts.dropped == 1
        answer.set()
        await until(lambda: counts.delivered == 1)


async def test_an_exporter_that_raises_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    export = exporting(Answers(RuntimeError("unexpected")))
    export.start()
    export.offer(traced())
    await until(lambda: export.counts.dropped == 1)
    export.offer(traced())
    await export.close()
    assert export.counts.delivered == 1
    assert "spans could not be exported" in caplog.messages


async def test_a_full_queue_drops_turns_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "_MOST_SPANS", 7)
    export = exporting(Answers())
    assert [export.offer(traced()) for _ in range(3)] == [True, True, False]
    assert export.counts.dropped == 1
    export.start()
    await export.close()
    assert export.counts.delivered == 2
    assert not export.offer(traced())


async def test_content_in_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "_MOST_CONTENT_BYTES", 100)
    export = exporting(Answers())
    said = [export.offer(traced(content="x" * 60)) for _ in range(2)]
    assert said == [True, False]
    export.start()
    await until(lambda: export.counts.delivered == 1)
    assert export.offer(traced(content="x" * 60))
    await export.close()
    assert export.counts.delivered == 2


async def test_spans_of_many_turns_are_sent_together_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "_SPANS_PER_REQUEST", 7)
    exporter = Answers()
    export = exporting(exporter)
    export.offer(traced(STAGES * 5))  # more than fit in one request
    for _ in range(3):
        export.offer(traced())
    export.start()
    await export.close()
    assert exporter.exported == [11, 6, 3]


async def test_text_that_cannot_be_encoded_loses_no_span() -> None:
    (turn, *_) = spans_of(traced(lane="lane-\udfff"), Resource({}))
    assert turn.attributes is not None
    assert turn.attributes["slipring.lane"] == "lane-?"
    assert turn.attributes["gen_ai.request.previous_response.id"] == "resp_?"


def test_stages_that_are_rounded_up_end_with_the_turn() -> None:
    stages = [Stage("generate", 0.25, 10.001), Stage("store", 10.251, 1.0)]
    turn, generate, store = spans_of(traced(stages), Resource({}))
    assert generate.end_time == store.start_time == store.end_time == turn.end_time
