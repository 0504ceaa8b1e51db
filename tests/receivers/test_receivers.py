"""Traces of real servers in a real receiver, MLflow, as its own API shows them.

``SLIPRING_TEST_TRACES`` names the directory of its executables. Run by ``make test-traces``.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from slipring import __version__
from slipring.server.random_ids import node_of
from tests.commands.test_cli import Process, launched
from tests.harness import WEATHER, Socket
from tests.receivers.mlflow_server import Experiment, Mlflow, Span, Trace, mlflow

pytestmark = [pytest.mark.traces, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

Step = dict[str, Any]
CALL: list[Step] = [{"function_call": {"name": "get_weather", "arguments": {"city": "secret-city"}}}]
ANSWER: list[Step] = [{"reasoning": "secret-thought"}, {"text": "secret-answer"}]
FAILURE: list[Step] = [{"text": "secret-beginning"}, {"error": {"message": "secret-reason"}}]
TOOL = {**WEATHER, "description": "secret-tool"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mlflow]:
    async with mlflow(tmp_path_factory.mktemp("mlflow")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def experiment(receiver: Mlflow, request: pytest.FixtureRequest) -> Experiment:
    return await receiver.experiment(request.node.name)


def traced(experiment: Experiment, *arguments: str) -> AbstractAsyncContextManager[Process]:
    """A server that traces all turns without a ``traceparent``, and those with one that asks for it."""
    return launched(
        *("--trace-endpoint", experiment.url, "--trace-sample", "1", *arguments),
        OTEL_EXPORTER_OTLP_HEADERS=experiment.headers_variable,
    )


def scripted(directory: Path, *answers: list[Step]) -> tuple[str, ...]:
    """The arguments of a server that gives these answers."""
    script = directory / "script.jsonl"
    script.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return "--store", "memory", "--engine", f"simulated:tokens_per_s=0,script={script}"


async def call_weather(url: str, traceparent: str) -> list[dict[str, Any]]:
    """Run an agent's loop over one WebSocket until its model calls no more tools. Returns the responses."""
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/responses", headers={"traceparent": traceparent}) as ws,
    ):
        socket = Socket(ws, frozenset())
        responses = [
            await socket.response(input="secret-question", instructions="secret-instructions", tools=[TOOL])
        ]
        while (called := responses[-1]["output"][-1])["type"] == "function_call":
            output = {"type": "function_call_output", "call_id": called["call_id"], "output": "secret-output"}
            previous = responses[-1]["id"]
            responses.append(
                await socket.response(input=[output], tools=[TOOL], previous_response_id=previous)
            )
        return responses


def assert_has_stages(trace: Trace, turn: Span, *names: str) -> None:
    """The children of a turn lie within it, and some of them have these names, in this order."""
    stages = trace.children(turn)
    assert [stage.name for stage in stages if stage.name in names] == list(names)
    for stage in stages:
        assert turn.start_ns <= stage.start_ns <= stage.end_ns <= turn.end_ns


def tokens(span: Span) -> dict[str, Any]:
    prefix = "gen_ai.usage."
    return {name[len(prefix) :]: n for name, n in span.attributes.items() if name.startswith(prefix)}


async def test_a_loop_is_one_trace_below_the_span_of_its_client(
    experiment: Experiment, tmp_path: Path
) -> None:
    exporter = OTLPSpanExporter(f"{experiment.url}/v1/traces", headers=experiment.headers)
    client = TracerProvider()
    client.add_span_processor(SimpleSpanProcessor(exporter))
    async with traced(experiment, *scripted(tmp_path, CALL, CALL, ANSWER)) as server:
        with client.get_tracer("agent").start_as_current_span("agent") as span:
            root = span.get_span_context()
            traceparent = f"00-{root.trace_id:032x}-{root.span_id:016x}-01"
            responses = await call_weather(server.url, traceparent)
        (trace,) = await experiment.until(lambda traces: [len(each.turns) for each in traces] == [3])
        assert await server.stop() == 0
    client.shutdown()
    assert trace.trace_id == f"{root.trace_id:032x}"
    assert trace.state == "OK"
    assert (trace.tags["service.name"], trace.tags["service.version"]) == ("slipring", __version__)
    assert {turn.parent_id for turn in trace.turns} == {f"{root.span_id:016x}"}
    for turn, response in zip(trace.turns, responses, strict=True):
        usage, model = response["usage"], response["model"]
        assert turn.name == f"chat {model}"
        assert not turn.is_error
        said = turn.attributes
        assert said["gen_ai.operation.name"] == "chat"
        assert said["gen_ai.provider.name"] == "slipring"
        assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == model
        assert said["gen_ai.response.id"] == response["id"]
        assert said.get("gen_ai.request.previous_response.id") == response["previous_response_id"]
        assert said["slipring.transport"] == "websocket"
        assert tokens(turn) == {
            "input_tokens": usage["input_tokens"],
            "cache_read.input_tokens": usage["input_tokens_details"]["cached_tokens"],
            "output_tokens": usage["output_tokens"],
            "reasoning.output_tokens": usage["output_tokens_details"]["reasoning_tokens"],
        }
        assert_has_stages(trace, turn, "decode", "queue", "render", "prefill", "generate", "store")
    assert tokens(trace.turns[2])["cache_read.input_tokens"] > 0
    assert tokens(trace.turns[2])["reasoning.output_tokens"] > 0
    first, second, third = trace.turns
    assert [turn.links for turn in trace.turns] == [
        [],
        [(trace.trace_id, first.span_id)],
        [(trace.trace_id, second.span_id)],
    ]
    assert third.attributes["slipring.history_bytes"] > second.attributes["slipring.history_bytes"] > 0
    # What MLflow itself makes of the attributes.
    counted = json.loads(trace.metadata["mlflow.trace.tokenUsage"])
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert counted[name] == sum(response["usage"][name] for response in responses)
    assert {turn.attributes["mlflow.spanType"] for turn in trace.turns} == {"CHAT_MODEL"}
    assert "secret" not in trace.text
    assert "get_weather" not in trace.text


async def test_a_streamed_request_is_a_trace_of_its_own(experiment: Experiment, tmp_path: Path) -> None:
    async with traced(experiment, *scripted(tmp_path, ANSWER)) as server, aiohttp.ClientSession() as http:
        create = {"input": "secret-question", "stream": True}
        async with http.post(f"{server.url}/responses", json=create) as answer:
            assert "response.completed" in await answer.text()
        (trace,) = await experiment.until(bool)
    assert trace.state == "OK"
    (turn,) = trace.turns
    assert turn.parent_id is None
    assert turn.attributes["slipring.transport"] == "sse"
    assert turn.attributes["gen_ai.request.stream"] is True
    assert json.loads(trace.metadata["mlflow.trace.tokenUsage"])["output_tokens"] > 0
    assert_has_stages(trace, turn, "decode", "prefill", "generate", "store")
    assert "secret" not in trace.text


async def test_failed_and_refused_requests_are_errors(experiment: Experiment, tmp_path: Path) -> None:
    parent = "b7ad6b7169203331"
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with traced(experiment, *scripted(tmp_path, FAILURE)) as server, aiohttp.ClientSession() as http:
        url = f"{server.url}/responses"
        async with http.post(url, json={"input": "secret-question", "stream": True}) as answer:
            assert "response.failed" in await answer.text()
        headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
        async with http.post(url, data=b'{"input": "secret-quest', headers=headers) as answer:
            assert answer.status == 400
        traces = await experiment.until(lambda traces: len(traces) == 2)
    refused, failed = sorted(traces, key=lambda trace: trace.trace_id != trace_id)
    assert failed.state == "ERROR"
    assert refused.state == "IN_PROGRESS", "its root is the client's, which this test does not send"
    (failure,), (refusal,) = failed.turns, refused.turns
    assert failure.is_error
    assert failure.attributes["slipring.status"] == "failed"
    assert failure.attributes["error.type"] == "server_error"
    assert_has_stages(failed, failure, "decode", "prefill", "generate")
    assert refusal.is_error
    assert (refusal.name, refusal.parent_id) == ("chat", parent)
    assert refusal.attributes["slipring.status"] == "refused"
    assert [stage.name for stage in refused.children(refusal)] == ["decode"]
    assert not [trace for trace in traces if "secret" in trace.text]


async def test_a_worker_sends_its_own_spans(experiment: Experiment, tmp_path: Path) -> None:
    shared = f"sqlite:{tmp_path}/store.db"
    async with (
        traced(experiment, "--workers", "2", "--store", shared) as server,
        aiohttp.ClientSession() as http,
    ):
        async with http.post(f"{server.url}/responses", json={"input": "hi"}) as answer:
            response = await answer.json()
        (trace,) = await experiment.until(bool)
        assert await server.stop() == 0
    (turn,) = trace.turns
    assert trace.state == "OK"
    assert turn.attributes["gen_ai.response.id"] == response["id"]
    assert turn.attributes["slipring.transport"] == "http"
    assert trace.tags["service.instance.id"] == node_of(response["id"])
    assert_has_stages(trace, turn, "decode", "prefill", "generate", "store")
