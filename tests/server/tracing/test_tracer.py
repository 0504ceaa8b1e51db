"""Traces of real turns, as a collector receives them. A server delivers its last spans when it stops."""

import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from slipring import __version__
from slipring.base.errors import ServerError, StartupError
from slipring.config.settings import Config
from slipring.core.generation import Accepted, CallArguments, CallStarted, Finished
from slipring.engines.base import Engine
from slipring.server.process.server import Server
from slipring.server.tracing import tracer
from tests.api import Api
from tests.harness import FAST, WEATHER, PuppetEngine, Running, serve
from tests.server.tracing.collector import Collector, Received, collect

SRC = Path(__file__).parents[3] / "src" / "slipring"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SECRETS = (
    "secret-instructions",
    "secret-input",
    "secret-tool",
    "secret-metadata",
    "secret-user",
    "secret-answer",
)


def traceparent(flags: str = "01", trace: str = TRACE) -> str:
    return f"00-{trace}-{PARENT}-{flags}"


@asynccontextmanager
async def traced(
    collector: Collector, engine: str | Engine = FAST, sample: float = 1.0, **settings: Any
) -> AsyncIterator[Running]:
    async with serve(engine, trace_endpoint=collector.url, trace_sample=sample, **settings) as server:
        yield server


def nests(collector: Collector, turn: Received) -> bool:
    """Whether the stages lie within the turn, in its trace and one after the other."""
    last = turn.span.start_time_unix_nano
    for child in collector.children(turn):
        span = child.span
        if not last <= span.start_time_unix_nano <= span.end_time_unix_nano <= turn.span.end_time_unix_nano:
            return False
        if span.trace_id != turn.span.trace_id:
            return False
        last = span.start_time_unix_nano
    return True


async def test_a_chain_becomes_linked_spans_with_their_stages() -> None:
    async with collect() as collector:
        async with traced(collector, api_key=("team:test-key",)) as server, server.connect() as socket:
            first = await socket.response(input="one", stream_id="lane-1")
            await socket.response(input="two", previous_response_id=first["id"], stream_id="lane-1")
        one, two = collector.turns
        usage = first["usage"]
        assert one.name == f"chat {first['model']}"
        assert one.attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "slipring",
            "gen_ai.request.model": first["model"],
            "gen_ai.response.model": first["model"],
            "gen_ai.response.id": first["id"],
            "gen_ai.request.stream": True,
            "gen_ai.usage.input_tokens": usage["input_tokens"],
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.usage.output_tokens": usage["output_tokens"],
            "gen_ai.usage.reasoning.output_tokens": 0,
            "slipring.rendered_tokens": usage["input_tokens"],
            "slipring.status": "completed",
            "slipring.transport": "websocket",
            "slipring.api": "responses",
            "slipring.connection": 1,
            "slipring.lane": "lane-1",
            "slipring.tenant": "team",
            "slipring.request_bytes": one.attributes["slipring.request_bytes"],
            "slipring.input_items": 1,
            "slipring.send_ms": one.attributes["slipring.send_ms"],
        }
        assert two.attributes["gen_ai.request.previous_response.id"] == first["id"]
        assert two.attributes["slipring.history_bytes"] > 0
        names = [child.name for child in collector.children(one)]
        assert names[0] == "decode"
        assert names[-1] == "terminal"
        assert {"render", "prefill", "generate", "store"} <= set(names)
        assert nests(collector, one)
        assert nests(collector, two)
        assert not one.span.parent_span_id
        assert not one.span.links
        (link,) = two.span.links
        assert (link.trace_id, link.span_id) == (one.span.trace_id, one.span.span_id)
        assert two.span.trace_id != one.span.trace_id
        assert one.resource["service.name"] == "slipring"
        assert one.resource["service.version"] == __version__
        assert one.resource["service.instance.id"] == server.service.node_id


async def test_a_trace_has_no_content() -> None:
    engine = PuppetEngine()
    tool = {**WEATHER, "name": "secret-tool"}
    async with collect() as collector:
        async with traced(collector, engine) as server, server.connect() as socket:
            await socket.create(
                input="secret-input",
                instructions="secret-instructions",
                tools=[tool],
                metadata={"secret-metadata": "secret-metadata"},
                safety_identifier="secret-user",
            )
            performance = await engine.next()
            performance.say("secret-answer")
            performance.finish()
            await socket.until("response.completed")
        assert len(collector.turns) == 1
        for secret in (*SECRETS, "test-key"):
            assert not [body for body in collector.bodies if secret.encode() in body]


@pytest.mark.parametrize("transport", ["handshake", "http", "request"])
async def test_the_parent_is_the_span_of_the_client(transport: str) -> None:
    async with collect() as collector:
        async with traced(collector, sample=0) as server:
            if transport == "http":
                headers = {"Authorization": "Bearer test-key", "traceparent": traceparent()}
                await server.http.post(f"{server.url}/responses", json={"input": "hi"}, headers=headers)
            elif transport == "handshake":
                async with server.connect(headers={"traceparent": traceparent()}) as socket:
                    await socket.response(input="hi")
            else:
                own = {"ws_request_header_traceparent": traceparent()}
                other = traceparent(trace="f" * 32, flags="00")
                async with server.connect(headers={"traceparent": other}) as socket:
                    await socket.response(input="hi", client_metadata=own)
                    await socket.response(input="this one is not sampled")
        (turn,) = collector.turns
        assert turn.span.trace_id.hex() == TRACE
        assert turn.span.parent_span_id.hex() == PARENT
        assert turn.attributes["slipring.transport"] == ("http" if transport == "http" else "websocket")


@pytest.mark.parametrize("path", ["responses", "responses/compact", "responses/input_tokens"])
async def test_a_request_that_cannot_be_decoded_has_the_parent_that_its_header_names(path: str) -> None:
    async with collect() as collector:
        async with traced(collector, sample=0) as server:
            headers = {"Authorization": "Bearer test-key", "traceparent": traceparent()}
            async with server.http.post(f"{server.url}/{path}", data=b"{", headers=headers) as answer:
                assert answer.status == 400
        (turn,) = collector.turns
        assert (turn.span.trace_id.hex(), turn.span.parent_span_id.hex()) == (TRACE, PARENT)
        assert turn.attributes["slipring.status"] == "refused"


@pytest.mark.parametrize(
    ("sample", "follows", "flags", "is_traced"),
    [
        (1.0, True, None, True),
        (0.0, True, None, False),
        (0.0, True, "01", True),
        (1.0, True, "00", False),
        (0.0, False, "01", False),
        (1.0, False, "00", True),
    ],
)
async def test_share_and_client_decide_what_is_sampled(
    sample: float, follows: bool, flags: str | None, is_traced: bool
) -> None:
    headers = {"traceparent": traceparent(flags)} if flags is not None else {}
    async with collect() as collector:
        async with (
            traced(collector, sample=sample, trace_client_sampling=follows) as server,
            server.connect(headers=headers) as socket,
        ):
            await socket.response(input="hi")
        assert len(collector.turns) == is_traced
        assert bool(collector.bodies) == is_traced


async def test_there_is_no_link_to_a_response_that_was_not_sampled() -> None:
    async with collect() as collector:
        async with traced(collector) as server:
            async with server.connect(headers={"traceparent": traceparent("00")}) as socket:
                first = await socket.response(input="one")
            async with server.connect() as socket:
                await socket.response(input="two", previous_response_id=first["id"])
        (turn,) = collector.turns
        assert turn.attributes["gen_ai.request.previous_response.id"] == first["id"]
        assert not turn.span.links


HOSTILE = [
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-01-more",
    f"00-{TRACE.upper()}-{PARENT}-01",
    "00-" + "a" * 5000,
    "nonsense",
]


async def test_a_traceparent_that_is_none_is_ignored() -> None:
    async with collect() as collector:
        async with traced(collector) as server:
            for hostile in HOSTILE:
                async with server.connect(headers={"traceparent": hostile}) as socket:
                    await socket.response(
                        input="hi", client_metadata={"ws_request_header_traceparent": hostile}
                    )
        assert len(collector.turns) == len(HOSTILE)
        assert not [turn for turn in collector.turns if turn.span.parent_span_id]


async def test_refused_failed_and_cancelled_turns_are_traced() -> None:
    engine = PuppetEngine()
    async with collect() as collector:
        async with traced(collector, engine) as server:
            async with server.connect(abandoned=True) as socket:
                await socket.error(input="hi", previous_response_id="resp_unknown")
                await socket.create(input="hi")
                (await engine.next()).fail(ServerError("secret-answer"))
                await socket.until("response.failed")
                await socket.create(input="hi")
                stopped = (await engine.next()).stopped
            await stopped.wait()
            status, _ = await server.post(input=7)
            assert status == 400
        refused, failed, cancelled, unreadable = collector.turns
        assert refused.name == unreadable.name == "chat"
        assert refused.attributes["slipring.status"] == "refused"
        assert refused.attributes["error.type"] == "previous_response_not_found"
        assert failed.attributes["slipring.status"] == "failed"
        assert failed.attributes["error.type"] == "server_error"
        assert [refused.span.status.code, failed.span.status.code] == [Status.STATUS_CODE_ERROR] * 2
        assert cancelled.attributes["slipring.status"] == cancelled.attributes["error.type"] == "cancelled"
        assert cancelled.span.status.code == Status.STATUS_CODE_UNSET
        assert all(nests(collector, turn) for turn in collector.turns)
        assert b"secret-answer" not in b"".join(collector.bodies)


async def test_the_waits_of_a_rollout_for_its_client_are_spans() -> None:
    engine = PuppetEngine()
    async with collect() as collector:
        async with (
            traced(collector, engine) as server,
            server.connect(headers={"OpenAI-Beta": "slipring_rollout=v1"}) as socket,
        ):
            await socket.create(input="hi", tools=[WEATHER], rollout=True)
            performance = await engine.next()
            performance.emit(CallStarted("function", "get_weather"), CallArguments('{"city": "Rome"}'))
            performance.finish()
            done = (await socket.until("response.done"))[-1]
            call_id = done["required_input"][0]["call_id"]
            output = {"type": "function_call_output", "call_id": call_id, "output": "Sunny."}
            await socket.send(type="response.append", response_id=done["response_id"], input=[output])
            (await engine.next()).finish()
            await socket.until("response.completed")
        (turn,) = collector.turns
        names = [child.name for child in collector.children(turn)]
        assert names.index("generate") < names.index("client") < len(names) - names[::-1].index("generate")
        assert turn.attributes["slipring.marks"] == ["rollout"]
        assert nests(collector, turn)


async def test_fallbacks_and_other_marks_are_attributes() -> None:
    engine = PuppetEngine()
    engine.accepts = False
    async with collect() as collector:
        async with traced(collector, engine) as server:
            begun = await Api(server).begin(input="hi")
            performance = await engine.next()
            performance.emit(Accepted(fallback="the template is not appendable"), Finished("stop", 9, 4, 2))
            await Api(server).ended(begun["id"])
        (turn,) = collector.turns
        assert turn.attributes["slipring.fallback"] == "the template is not appendable"
        assert turn.attributes["slipring.marks"] == ["background"]
        assert turn.attributes["slipring.transport"] == "background"
        assert turn.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
        assert "gen_ai.request.stream" not in turn.attributes


async def test_content_is_written_if_it_is_switched_on() -> None:
    engine = PuppetEngine()
    async with collect() as collector:
        async with traced(collector, engine, trace_content=True) as server, server.connect() as socket:
            long = {"role": "user", "content": "x" * 70_000}
            await socket.create(
                instructions="Be brief.", input=[long, {"role": "user", "content": "How is the weather?"}]
            )
            performance = await engine.next()
            performance.say("Sunny.")
            performance.finish()
            await socket.until("response.completed")
            await server.post(input=7)
        turn, refused = collector.turns
        assert json.loads(turn.attributes["gen_ai.system_instructions"]) == [
            {"type": "text", "content": "Be brief."}
        ]
        assert json.loads(turn.attributes["gen_ai.input.messages"]) == [
            {"role": "user", "parts": [{"type": "text", "content": "How is the weather?"}]}
        ]
        assert json.loads(turn.attributes["gen_ai.output.messages"]) == [
            {"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}]}
        ]
        assert turn.attributes["slipring.content.omitted_items"] == 1
        assert "gen_ai.input.messages" not in refused.attributes


async def test_each_process_has_its_own_instance_id() -> None:
    async with collect() as collector:
        for _ in range(2):
            async with traced(collector) as server, server.connect() as socket:
                await socket.response(input="hi")
        assert len({turn.resource["service.instance.id"] for turn in collector.turns}) == 2


async def test_variables_of_opentelemetry_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collect() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "agents")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        async with serve(trace_sample=1.0) as server, server.connect() as socket:
            await socket.response(input="hi")
        (turn,) = collector.turns
        assert collector.headers[0]["x-key"] == "abc"
        assert turn.resource["service.name"] == "agents"
        assert turn.resource["deployment.environment.name"] == "test"


@pytest.mark.parametrize(
    ("endpoint", "environ", "url"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("https://c/", {}, "https://c/v1/traces"),
        ("https://c/api/otlp", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "https://c/api/otlp"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d/base/"}, "http://d/base/v1/traces"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e/x"},
            "http://e/x",
        ),
        ("", {}, "http://localhost:4318/v1/traces"),
    ],
)
def test_where_spans_are_sent(endpoint: str, environ: dict[str, str], url: str) -> None:
    assert tracer.traces_url(endpoint, environ) == url


def test_the_log_shows_no_secrets_of_a_url() -> None:
    assert tracer.without_secrets("https://me:pass@c:1/v1/traces?key=abc") == "https://c:1/v1/traces"


async def test_the_log_says_at_the_start_what_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    async with collect() as collector:
        with caplog.at_level(logging.INFO, "slipring"):
            async with traced(collector, sample=0.25, trace_content=True):
                pass
        (line,) = [message for message in caplog.messages if message.startswith("traces")]
        assert "25 %" in line
        assert "WITH CONTENT" in line


def test_without_the_extra_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "slipring.server.tracing.tracer")
    with pytest.raises(StartupError, match=r"pip install .\.\[otel\]"):
        Server(Config(engine=FAST, store="memory", trace_sample=0.1))


async def test_nothing_observes_turns_for_traces_if_they_are_off() -> None:
    async with serve() as server:
        assert not server.service.content_observers
        assert not [each for each in server.service.turn_observers if "Tracer" in repr(each)]
        async with server.http.get(f"{server.url.removesuffix('/v1')}/health") as answer:
            assert (await answer.json())["traces"] is None


def test_only_the_tracer_imports_opentelemetry() -> None:
    importing = re.compile(r"^\s*(?:from|import) opentelemetry", re.MULTILINE)
    found = {path.parent.name for path in SRC.rglob("*.py") if importing.search(path.read_text())}
    assert found == {"tracing"}


async def test_a_span_kind_is_server_for_the_turn_and_internal_for_stages() -> None:
    async with collect() as collector:
        async with traced(collector) as server:
            await server.post(input="hi")
        kinds = {each.name: each.span.kind for each in collector.spans}
        assert kinds.pop(collector.turns[0].name) == Span.SPAN_KIND_SERVER
        assert set(kinds.values()) == {Span.SPAN_KIND_INTERNAL}
