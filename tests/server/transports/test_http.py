"""``POST /v1/responses``, models, health, and errors of the HTTP server."""

import asyncio
import gzip
import json
import os
import zlib
from typing import Any

import aiohttp
import pytest

from slipring import __version__
from slipring.base.aiohttp_internals import DECODED
from slipring.base.errors import InvalidRequest, RateLimited, ServerError, Unavailable
from slipring.core.generation import CallArguments, CallStarted, Delta, Text
from slipring.core.limits import Limits
from tests import wire
from tests.harness import WEATHER, PuppetEngine, Running, read_sse, serve
from tests.server.raw import fill, gone, only_client, open_tcp, stop_clock

JSON = {"Content-Type": "application/json"}
SECRET = "the engine's own secret"


async def send(
    server: Running, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any
) -> tuple[int, dict[str, Any]]:
    """Send a request; returns status and body. The shape of an error is checked."""
    root = server.url.removesuffix("/v1")
    async with server.http.request(method, root + path, headers=headers, **options) as answer:
        assert answer.content_type == "application/json", await answer.text()
        body = await answer.json()
        if answer.status >= 400 and path != "/health":
            wire.check_http_error(body)
        return answer.status, body


# The framing of a stream.


async def streamed(server: Running, version: str) -> tuple[bytes, bytes]:
    """The head and the body of a streamed answer, as they are on the wire."""
    body = b'{"input": "hello", "stream": true}'
    head = f"POST /v1/responses HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    async with open_tcp(server) as raw:
        await raw.send(head.encode() + body)
        answer, _, rest = (await raw.ended()).partition(b"\r\n\r\n")
        return answer, rest


def unchunked(body: bytes) -> list[bytes]:
    chunks = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        assert rest[int(size, 16) :].startswith(b"\r\n")
        body = rest[int(size, 16) + 2 :]
        if not chunks[-1]:
            assert body == b""
            return chunks[:-1]


async def test_chunks_of_a_stream_hold_whole_events() -> None:
    async with serve() as server:
        head, body = await streamed(server, "1.1")
        assert b"\r\nTransfer-Encoding: chunked" in head
        chunks = unchunked(body)
        assert all(chunk.startswith(b"event: ") and chunk.endswith(b"\n\n") for chunk in chunks)
        assert chunks[-1].endswith(b"data: [DONE]\n\n")


async def test_a_stream_for_http_1_0_is_not_chunked() -> None:
    async with serve() as server:
        head, body = await streamed(server, "1.0")
        assert b"Transfer-Encoding" not in head
        assert body.startswith(b"event: response.created\ndata: {")
        assert body.endswith(b"data: [DONE]\n\n")


# One JSON body.


async def test_a_post_is_answered_with_the_whole_response() -> None:
    async with serve() as server:
        status, response = await server.post(model="simulated", input="hello", metadata={"a": "b"})
        assert status == 200
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["text"] == "This is a simulated answer"
        assert response["metadata"] == {"a": "b"}


async def test_an_incomplete_response_is_not_an_http_error() -> None:
    async with serve() as server:
        status, response = await server.post(input="hello", max_output_tokens=2)
        assert status == 200
        assert (response["status"], response["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
        )


async def test_a_chain_continues_through_the_store() -> None:
    async with serve("simulated:tokens_per_s=0,tool_calls=1") as server:
        _, first = await server.post(input="weather?", tools=[WEATHER])
        (call,) = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        status, second = await server.post(input=[output], previous_response_id=first["id"], tools=[WEATHER])
        assert status == 200
        assert second["output"][0]["type"] == "message"
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_an_unstored_response_cannot_be_continued() -> None:
    async with serve() as server:
        _, first = await server.post(input="hello", store=False)
        status, body = await server.post(input="again", previous_response_id=first["id"])
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_failed_continuation_does_not_affect_a_stored_parent() -> None:
    async with serve() as server:
        _, first = await server.post(input="hello")
        orphan = {"type": "function_call_output", "call_id": "call_none", "output": ""}
        status, body = await server.post(input=[orphan], previous_response_id=first["id"])
        assert (status, body["error"]["param"]) == (400, "input[0].call_id")
        assert (await server.post(input="again", previous_response_id=first["id"]))[0] == 200


async def test_an_item_of_a_stored_response_can_be_referred_to() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        first = asyncio.create_task(server.post(input="hello"))
        performance = await engine.next()
        performance.say("A first answer")
        performance.finish()
        _, response = await first
        reference = {"type": "item_reference", "id": response["output"][0]["id"]}
        second = asyncio.create_task(server.post(input=[reference, {"role": "user", "content": "and?"}]))
        performance = await engine.next()
        assert b"A first answer" in performance.job.input[0].raw
        performance.finish()
        assert (await second)[0] == 200


async def test_a_warmup_works_over_http_too() -> None:
    async with serve() as server:
        status, warm = await server.post(input="hello", generate=False)
        assert (status, warm["output"], warm["usage"]["output_tokens"]) == (200, [], 0)
        status, response = await server.post(input=[], previous_response_id=warm["id"])
        assert (status, response["status"]) == (200, "completed")


# SSE.


async def test_a_stream_is_one_block_per_event_and_a_final_marker() -> None:
    async with serve() as server:
        body = {"input": "hello", "stream": True}
        async with server.http.post(f"{server.url}/responses", json=body) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert answer.headers["Cache-Control"] == "no-cache"
            text = (await answer.read()).decode()
        kinds = [event["type"] for event in read_sse(text)]
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * 5,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert text.count("event: ") == text.count('data: {"type":') == len(kinds)
        assert text.endswith("\n\ndata: [DONE]\n\n")
        assert "stream_id" not in text


async def test_events_are_sent_as_they_are_generated() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        body = {"input": "hello", "stream": True}
        async with server.http.post(f"{server.url}/responses", json=body) as answer:
            performance = await engine.next()
            performance.say("first")
            seen = b""
            while b'"delta":"first"' not in seen:
                seen += await answer.content.readany()
            assert b"response.completed" not in seen
            performance.finish()
            read_sse((seen + await answer.read()).decode())


async def test_streams_and_posts_continue_each_other() -> None:
    async with serve() as server:
        _, first = await server.post(input="one")
        second = (await server.stream(input="two", previous_response_id=first["id"]))[-1]["response"]
        _, third = await server.post(input="three", previous_response_id=second["id"])
        assert (second["previous_response_id"], third["previous_response_id"]) == (first["id"], second["id"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_creation_is_a_plain_http_error(stream: bool) -> None:
    async with serve() as server:
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({"input": "hello", "model": "other"}, 404, "model_not_found"),
            ({"input": "hello", "previous_response_id": "resp_none"}, 400, "previous_response_not_found"),
            ({"input": "hello", "temperature": 3}, 400, "decimal_above_max_value"),
            ({"input": [{"type": "unheard_of"}]}, 400, "invalid_value"),
            ({}, 400, "missing_required_parameter"),
        ]
        for fields, status, code in cases:
            refused, body = await server.post(**fields, stream=stream)
            assert (refused, body["error"]["code"]) == (status, code)


async def test_a_silent_stream_is_kept_alive_with_comments() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(ping_interval_s=-1)) as server:
        stop_clock(server)
        body = {"input": "hello", "stream": True}
        async with server.http.post(f"{server.url}/responses", json=body) as answer:
            performance = await engine.next()
            only_client(server).tick()
            seen = b""
            while b": keepalive\n\n" not in seen:
                seen += await answer.content.readany()
            performance.finish()
            text = (seen + await answer.read()).decode()
        assert read_sse(text.replace(": keepalive\n\n", ""))[-1]["type"] == "response.completed"


async def test_a_stream_whose_end_is_not_read_is_closed() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=Limits(send_timeout_s=0.2, ping_interval_s=0)) as server:
        stop_clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            body = json.dumps({"input": "hello", "stream": True})
            head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            await raw.send((head + body).encode())
            performance = await engine.next()
            assert (await raw.read_head()).startswith(b"HTTP/1.1 200 ")
            fill(server, 2**24)
            performance.finish()
            async with asyncio.timeout(300):
                while server.service.clients:
                    only_client(server).tick()
                    server.service.connections.tick()
                    await asyncio.sleep(0)


# Engines that fail.


class Broken(Exception):
    """An exception that no engine should raise."""


FAILURES = [
    (RateLimited("Slow down."), 429, "rate_limit_error", "rate_limit_exceeded"),
    (ServerError("The engine is down."), 500, "server_error", "server_error"),
    (
        InvalidRequest("The context is too long.", code="context_length_exceeded"),
        400,
        "invalid_request_error",
        "context_length_exceeded",
    ),
    (Broken(SECRET), 500, "server_error", "server_error"),
]


@pytest.mark.parametrize(("failure", "status", "kind", "code"), FAILURES)
async def test_an_engine_s_failure_is_an_http_error_on_a_plain_post(
    failure: Exception, status: int, kind: str, code: str
) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        post = asyncio.create_task(server.post(input="hello"))
        performance = await engine.next()
        performance.say("half an ans")
        performance.fail(failure)
        answered, body = await post
        assert (answered, body["error"]["type"], body["error"]["code"]) == (status, kind, code)
        assert SECRET not in json.dumps(body)


@pytest.mark.parametrize(("failure", "status", "kind", "code"), FAILURES)
async def test_an_engine_s_failure_ends_a_stream_with_response_failed(
    failure: Exception, status: int, kind: str, code: str
) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        stream = asyncio.create_task(server.stream(input="hello"))
        performance = await engine.next()
        performance.say("half an ans")
        performance.fail(failure)
        events = await stream
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == code
        assert SECRET not in json.dumps(events)


async def test_an_outage_after_the_response_began_is_503_on_a_plain_post() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        post = asyncio.create_task(server.post(input="hello"))
        performance = await engine.next()
        performance.say("half an ans")
        performance.fail(Unavailable("The engine is restarting."))
        status, body = await post
        assert (status, body["error"]["code"]) == (503, "service_unavailable")
        assert (body["error"]["type"], body["error"]["message"]) == (
            "server_error",
            "The engine is restarting.",
        )
        stream = asyncio.create_task(server.stream(input="hello"))
        (await engine.next()).fail(Unavailable("The engine is restarting."))
        assert (await stream)[-1]["response"]["error"] == {
            "code": "server_error",
            "message": "The engine is restarting.",
        }


@pytest.mark.parametrize(("kind", "status"), [(RateLimited, 429), (Unavailable, 503)])
@pytest.mark.parametrize(("seconds", "header"), [(6.2, "7"), (None, None)])
async def test_a_failure_for_now_says_when_to_try_again_on_a_plain_post(
    kind: type[RateLimited | Unavailable], status: int, seconds: float | None, header: str | None
) -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, aiohttp.ClientSession() as http:
        post = asyncio.create_task(http.post(f"{server.url}/responses", json={"input": "hello"}))
        (await engine.next()).fail(kind("Slow down.", retry_after_s=seconds))
        async with await post as answer:
            body = await answer.json()
            assert (answer.status, answer.headers.get("Retry-After")) == (status, header)
            assert body["error"].keys() == {"type", "code", "message", "param"}
        stream = asyncio.create_task(server.stream(input="hello"))
        (await engine.next()).fail(kind("Slow down.", retry_after_s=seconds))
        assert (await stream)[-1]["response"]["error"].keys() == {"code", "message"}


async def test_a_failed_response_is_not_stored() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        stream = asyncio.create_task(server.stream(input="hello"))
        (await engine.next()).fail(ServerError())
        failed = (await stream)[-1]["response"]
        status, body = await server.post(input="again", previous_response_id=failed["id"])
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_failed_save_fails_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    async def save(*_: object) -> None:
        raise Broken(SECRET)

    async with serve() as server:
        monkeypatch.setattr(server.service.store.responses, "save", save)
        status, body = await server.post(input="hello")
        assert (status, body["error"]["code"]) == (500, "server_error")
        events = await server.stream(input="hello")
        assert events[-1]["type"] == "response.failed"
        assert SECRET not in json.dumps([body, events])
        assert (await server.post(input="hello", store=False))[0] == 200


async def test_function_calls_are_part_of_the_body() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        post = asyncio.create_task(server.post(input="hello"))
        performance = await engine.next()
        deltas: list[Delta] = [Text("Let me see."), CallStarted("function", "f"), CallArguments("{}")]
        performance.emit(*deltas)
        performance.finish()
        _, response = await post
        assert [item["type"] for item in response["output"]] == ["message", "function_call"]


# Invalid bodies.


async def test_a_lane_is_refused_over_http() -> None:
    async with serve() as server:
        status, body = await server.post(input="hello", stream_id="a")
        assert (status, body["error"]["code"], body["error"]["param"]) == (
            400,
            "unsupported_parameter",
            "stream_id",
        )
        assert (await server.post(input="hello", stream_id=None))[0] == 200


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"multi_agent": {"enabled": True}}, "multi_agent"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
]


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED)
async def test_unsupported_parameters_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with serve() as server:
        status, body = await server.post(input="hello", **fields)
        assert (status, body["error"]["code"], body["error"]["param"]) == (
            400,
            "unsupported_parameter",
            param,
        )
        assert param in body["error"]["message"]


async def test_unsupported_fields_that_ask_for_nothing_are_accepted() -> None:
    nothing: dict[str, Any] = {
        "background": False,
        "conversation": None,
        "prompt": None,
        "context_management": [],
    }
    async with serve() as server:
        assert (await server.post(input="hello", **nothing))[0] == 200


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "not valid JSON"),
        (b"nonsense", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"", "no body"),
        (b"  \n", "no body"),
        (b'{"input": "\xff"}', "not valid UTF-8"),
        (b'{"input": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
async def test_a_body_that_is_not_a_json_object_is_refused(content: bytes, expected: str) -> None:
    async with serve() as server:
        status, body = await send(server, "POST", "/v1/responses", data=content, headers=JSON)
        assert (status, body["error"]["code"]) == (400, "invalid_json")
        assert expected in body["error"]["message"]


async def test_the_content_type_does_not_matter() -> None:
    async with serve() as server:
        status, _ = await send(server, "POST", "/v1/responses", data=b'{"input": "hello"}')
        assert status == 200


def padded(size_bytes: int) -> bytes:
    body = b'{"input": "hello", "user": ""}'
    return body[:-2] + b"x" * (size_bytes - len(body)) + body[-2:]


async def test_the_largest_body_is_served_and_a_larger_one_is_refused() -> None:
    async with serve(limits=Limits(max_frame_bytes=2000)) as server:
        assert len(padded(2000)) == 2000
        status, _ = await send(server, "POST", "/v1/responses", data=padded(2000))
        assert status == 200
        status, body = await send(server, "POST", "/v1/responses", data=padded(2001))
        assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_a_compressed_body_is_read() -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    async with serve() as server:
        content = gzip.compress(b'{"input": "hello"}')
        status, response = await send(server, "POST", "/v1/responses", data=content, headers=headers)
        assert (status, response["status"]) == (200, "completed")


async def test_the_size_limit_applies_to_the_decompressed_body() -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    async with serve(limits=Limits(max_frame_bytes=2000)) as server:
        content = gzip.compress(padded(200_000))
        assert len(content) < 2000
        status, body = await send(server, "POST", "/v1/responses", data=content, headers=headers)
        assert (status, body["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("encoding", sorted({"br", "zstd", "compress", "gzip, gzip"} - {*DECODED}))
async def test_an_encoding_that_is_not_supported_is_refused_with_those_that_are(encoding: str) -> None:
    """aiohttp refuses those that it knows while it reads the head, and passes the others on as they are."""
    headers = {**JSON, "Content-Encoding": encoding}
    async with serve() as server:
        content = b'{"input": "hello"}'
        status, body = await send(server, "POST", "/v1/responses", data=content, headers=headers)
        assert (status, body["error"]["code"]) == (415, "unsupported_content_encoding")
        assert "gzip, deflate" in body["error"]["message"]


@pytest.mark.parametrize("encoding", ["", "identity", "Identity"])
async def test_a_body_without_an_encoding_may_say_so(encoding: str) -> None:
    headers = {**JSON, "Content-Encoding": encoding}
    async with serve() as server:
        content = b'{"input": "hello"}'
        assert (await send(server, "POST", "/v1/responses", data=content, headers=headers))[0] == 200


async def test_a_deflated_body_that_ends_too_early_cannot_be_decompressed() -> None:
    headers = {**JSON, "Content-Encoding": "deflate"}
    async with serve() as server:
        content = zlib.compress(b'{"input": "hello"}')[:-3]
        status, body = await send(server, "POST", "/v1/responses", data=content, headers=headers)
        assert (status, body["error"]["code"]) == (400, "invalid_json")


async def test_a_body_that_cannot_be_decompressed_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    async with serve() as server:
        root = f"{server.url}/responses"
        async with server.http.post(root, data=b'{"input": "hello"}', headers=headers) as answer:
            assert answer.status == 400
            assert wire.check_http_error(await answer.json())["error"]["code"] == "invalid_json"
    assert not [record for record in caplog.records if record.name.startswith("slipring")]


# Malformed HTTP.


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Odd: \x00\r\n\r\n",
        b"GET /v1/models/" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 9000 + b"\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"HELO somebody\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_malformed_http_is_refused_and_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    secret = b"Authorization: Bearer s3cret\r\n"
    sent = sent.replace(b"\r\n", b"\r\n" + secret, 1)
    async with serve() as server:
        async with open_tcp(server) as raw:
            await raw.send(sent)
            head = await raw.read_head()
            assert head.startswith(b"HTTP/1.1 400 ") or head.startswith(b"HTTP/1.0 400 ")
            assert b"\r\nServer: slipring\r\n" in head
            assert b"X-Request-Id: req_" in head
            body = await raw.ended()
            wire.check_http_error(json.loads(body))
            assert json.loads(body)["error"]["code"] == "invalid_http"
            assert b"s3cret" not in head + body
        assert (await server.post(input="hello"))[0] == 200
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


# Other endpoints.


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_models_are_listed_and_shown(prefix: str) -> None:
    async with serve(model=("small", "vendor/large")) as server:
        status, listed = await send(server, "GET", f"{prefix}/models")
        assert (status, listed["object"]) == (200, "list")
        assert [model["id"] for model in listed["data"]] == ["small", "vendor/large"]
        for model in listed["data"]:
            assert set(model) == {"id", "object", "created", "owned_by", "input_modalities"}
            assert await send(server, "GET", f"{prefix}/models/{model['id']}") == (200, model)


async def test_a_model_that_is_not_served_is_not_found() -> None:
    async with serve() as server:
        status, body = await send(server, "GET", "/v1/models/other")
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
        assert "'simulated'" in body["error"]["message"]


async def test_the_prefix_of_a_path_may_be_left_out() -> None:
    async with serve() as server:
        status, response = await send(server, "POST", "/responses", json={"input": "hello"})
        assert (status, response["status"]) == (200, "completed")
        root = server.url.removesuffix("/v1")
        async with server.http.ws_connect(f"{root}/responses") as ws:
            await ws.send_json({"type": "response.create", "input": "hello"})
            assert (await ws.receive_json())["type"] == "response.created"
        await gone(server)


async def test_health_reports_engines_store_and_connections() -> None:
    async with serve() as server:
        status, body = await send(server, "GET", "/health")
        assert status == 200
        assert body == {
            "status": "ok",
            "version": __version__,
            "pid": os.getpid(),
            "engines": [{"name": "simulated", "trouble": None, "sessions": None}],
            "store": "memory",
            "store_trouble": None,
            "connections": 0,
            "render_fallbacks": {},
            "trouble": None,
            "traces": None,
            "checks": [],
        }
        async with server.connect():
            assert (await send(server, "GET", "/health"))[1]["connections"] == 1


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/responses", "/v1/responses/", "/v1/completions"])
async def test_an_unknown_path_is_not_found(path: str) -> None:
    async with serve() as server:
        status, body = await send(server, "POST", path, json={})
        assert (status, body["error"]["code"]) == (404, "unknown_url")
        assert f"POST {path}" in body["error"]["message"]


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/chatcmpl-1/messages", "/v1/completions", "/completions"]
)
async def test_a_path_of_another_api_gets_the_path_to_use(method: str, path: str) -> None:
    async with serve() as server:
        status, body = await send(server, method, path, json={"model": "simulated", "messages": []})
        assert (status, body["error"]["type"]) == (404, "invalid_request_error")
        assert body["error"]["code"] == "unknown_url"
        assert body["error"]["message"].startswith(f"Unknown path: {method} {path}. ")
        assert body["error"]["message"].endswith(": use POST /v1/chat/completions.")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
async def test_the_root_says_where_the_api_is(path: str) -> None:
    async with serve() as server:
        status, body = await send(server, "GET", path)
        assert (status, body["error"]["code"]) == (404, "unknown_url")
        assert body["error"]["message"].startswith(
            f"Unknown path: GET {path}. The API is below /v1: GET /v1/models"
        )


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/chat/completions2", "/v1/messages2", "/v1/v1/messages"])
async def test_other_unknown_paths_get_no_hint(path: str) -> None:
    async with serve() as server:
        _, body = await send(server, "POST", path, json={})
        assert body["error"]["message"] == f"Unknown path: POST {path}"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/responses", "GET,HEAD,POST"),
        ("DELETE", "/v1/models", "GET,HEAD"),
        ("POST", "/health", "GET,HEAD"),
    ],
)
async def test_a_wrong_method_gets_the_allowed_ones(method: str, path: str, allowed: str) -> None:
    async with serve() as server:
        async with server.http.request(method, server.url.removesuffix("/v1") + path) as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == allowed
            body = wire.check_http_error(await answer.json())
        assert body["error"]["code"] == "method_not_allowed"
        assert method in body["error"]["message"]


async def test_a_get_without_upgrade_gets_426() -> None:
    async with serve() as server, server.http.get(f"{server.url}/responses") as answer:
        assert answer.status == 426
        assert answer.headers["Upgrade"] == "websocket"
        assert wire.check_http_error(await answer.json())["error"]["code"] == "upgrade_required"


@pytest.mark.parametrize(
    "headers",
    [
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "1"},
        {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "short",
        },
    ],
)
async def test_a_broken_handshake_is_a_bad_request(headers: dict[str, str]) -> None:
    async with serve() as server:
        assert (await send(server, "GET", "/v1/responses", headers=headers))[0] == 400
        assert server.service.sockets == 0


async def test_every_response_has_a_unique_request_id() -> None:
    async with serve() as server:
        ids = set()
        for path in ("/v1/models", "/v1/models", "/nowhere"):
            async with server.http.get(server.url.removesuffix("/v1") + path) as answer:
                ids.add(answer.headers["X-Request-Id"])
                assert answer.headers["Server"] == "slipring"
        assert len(ids) == 3


async def test_many_requests_at_once_do_not_mix() -> None:
    async with serve() as server:

        async def chain(number: int) -> None:
            metadata = {"number": str(number)}
            _, first = await server.post(input=f"chain {number}", metadata=metadata)
            second = (await server.stream(input="on", previous_response_id=first["id"], metadata=metadata))[
                -1
            ]
            assert first["metadata"] == second["response"]["metadata"] == metadata
            assert second["response"]["previous_response_id"] == first["id"]

        await asyncio.gather(*map(chain, range(20)))


async def test_a_connection_is_used_for_many_requests() -> None:
    async with serve() as server:
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as http:
            for body in (
                {"input": "hello"},
                {"input": "hello", "stream": True},
                {"input": 5},
                {"input": "hi"},
            ):
                async with http.post(f"{server.url}/responses", json=body) as answer:
                    await answer.read()
                    assert answer.headers.get("Connection", "keep-alive") == "keep-alive"
