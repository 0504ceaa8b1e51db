"""Streamable HTTP in both eras, against servers in this process."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from slipring.mcp.failures import (
    ConnectionLost,
    HttpRejected,
    InputRequired,
    Malformed,
    McpFailure,
    Outcome,
    ProtocolFailure,
    RequestRefused,
    TimedOut,
    TooLarge,
    Unreachable,
    VersionMismatch,
)
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.session import LEGACY_VERSIONS, MODERN_VERSION, ProgressUpdate
from slipring.mcp.protocol.tools import TextContent
from slipring.mcp.transports.addresses import Reach
from tests.loop_clock import LoopClock
from tests.mcp.fakes import ADD, Exchange, FakeServer, Reply, at, error, event, result, serving, text


async def test_tools_are_listed_and_called(pool: Pool, fake: FakeServer) -> None:
    found = await pool.tools(at(fake))
    assert [tool.name for tool in found.tools] == ["add"]
    assert found.tools[0].annotations.read_only_hint is True
    assert json.loads(bytes(found.tools[0].input_schema)) == ADD["inputSchema"]
    answer = await pool.call(at(fake), "add", {"a": 1, "b": 2})
    assert answer.content == (TextContent("3"),)
    assert not answer.is_error


async def test_a_modern_server_gets_no_handshake_and_no_session(pool: Pool, modern: FakeServer) -> None:
    await pool.call(at(modern), "add", {"a": 1, "b": 2})
    call = modern.last("tools/call")
    assert {seen.method for seen in modern.seen} == {"server/discover", "tools/list", "tools/call"}
    assert call.headers["MCP-Protocol-Version"] == MODERN_VERSION
    assert (call.headers["Mcp-Method"], call.headers["Mcp-Name"]) == ("tools/call", "add")
    assert call.message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN_VERSION
    assert call.message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_an_old_server_gets_the_handshake_once(pool: Pool, legacy: FakeServer) -> None:
    await asyncio.gather(*(pool.call(at(legacy), "add", {"a": 1, "b": n}) for n in range(4)))
    methods = [seen.method for seen in legacy.seen]
    assert methods[:3] == ["server/discover", "initialize", "notifications/initialized"]
    assert methods[3:] == ["tools/call"] * 4
    call = legacy.last("tools/call")
    assert call.headers["MCP-Protocol-Version"] == LEGACY_VERSIONS[0]
    assert call.headers["Mcp-Session-Id"] in legacy.sessions
    assert "Mcp-Method" not in call.headers


async def test_sessions_are_ended_at_the_server(legacy: FakeServer) -> None:
    async with Pool() as pool:
        await pool.tools(at(legacy))
        assert legacy.sessions
    assert not legacy.sessions


async def test_parallel_calls_are_limited_by_the_server_description(pool: Pool, legacy: FakeServer) -> None:
    running = most = 0

    async def count(exchange: Exchange) -> Reply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return text("done")

    legacy.calls["add"] = count
    server = at(legacy)
    alone = type(server)(server.name, server.url, reach=Reach.ALL, parallel=1)
    await asyncio.gather(*(pool.call(alone, "add", {}) for _ in range(5)))
    assert most == 1


async def test_progress_reaches_the_caller_and_a_stream_answers(pool: Pool, fake: FakeServer) -> None:
    reported: list[ProgressUpdate] = []
    arrived = asyncio.Event()

    async def slow(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        await response.write(b": keep-alive\n\n")
        await response.write(event(exchange.progress(0.5, total=2, message="half of it")))
        await arrived.wait()
        await response.write(event(result(exchange.id, text("done"))))
        return response

    def report(update: ProgressUpdate) -> None:
        reported.append(update)
        arrived.set()

    fake.calls["slow"] = slow
    answer = await pool.call(at(fake), "slow", {}, progress=report)
    assert answer.content == (TextContent("done"),)
    assert reported == [ProgressUpdate(0.5, 2, "half of it")]


async def test_progress_begins_the_timeout_again(
    pool: Pool, modern: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    reported: asyncio.Queue[ProgressUpdate] = asyncio.Queue()

    async def slow(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        for step in range(6):
            await response.write(event(exchange.progress(step)))
            await reported.get()
            clock.advance(500)
        await response.write(event(result(exchange.id, text("done"))))
        return response

    modern.calls["slow"] = slow
    server = at(modern, call_timeout_s=600, call_total_s=10_000)
    answer = await pool.call(server, "slow", {}, progress=reported.put_nowait)
    assert answer.content == (TextContent("done"),)


async def test_endless_progress_ends_at_the_total(
    pool: Pool, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reported = LoopClock(monkeypatch), asyncio.Queue[object]()

    async def endless(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        step = 0
        while True:
            step += 1
            await response.write(event(exchange.progress(step)))
            await reported.get()
            clock.advance(200)

    fake.calls["endless"] = endless
    server = at(fake, call_timeout_s=600, call_total_s=2000)
    with pytest.raises(TimedOut) as caught:
        await pool.call(server, "endless", {}, progress=reported.put_nowait)
    assert caught.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_the_server_is_told_that_nobody_waits_any_more(
    pool: Pool, fake: FakeServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    began = asyncio.Event()

    async def hang(exchange: Exchange) -> Reply:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    fake.calls["hang"] = hang
    task = asyncio.create_task(pool.call(at(fake, call_timeout_s=60), "hang", {}))
    await began.wait()
    if how == "timeout":
        clock.advance(61)
        with pytest.raises(TimedOut) as caught:
            await task
        assert caught.value.outcome is Outcome.UNKNOWN
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # Both eras see the response closed; only the older one needs to be told in words.
    await fake.disconnected.wait()
    if not fake.modern:
        while not fake.count("notifications/cancelled"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        cancelled = fake.last("notifications/cancelled").message["params"]
        assert cancelled["requestId"] == fake.last("tools/call").message["id"]
    assert (await pool.call(at(fake), "add", {"a": 1, "b": 1})).content == (TextContent("2"),)


async def test_an_expired_session_is_renewed_and_the_call_sent_again(pool: Pool, legacy: FakeServer) -> None:
    await pool.call(at(legacy), "add", {"a": 1, "b": 2})
    legacy.sessions.clear()
    answers = await asyncio.gather(*(pool.call(at(legacy), "add", {"a": n, "b": 0}) for n in range(3)))
    assert [answer.content[0] for answer in answers] == [TextContent(str(n)) for n in range(3)]
    assert legacy.count("initialize") == 2


async def test_a_session_that_expires_at_once_again_is_an_error(pool: Pool, legacy: FakeServer) -> None:
    async def forget(exchange: Exchange) -> Reply:
        return web.json_response(error(None, -32001, "Session not found"), status=404)

    legacy.calls["add"] = forget
    with pytest.raises(HttpRejected) as caught:
        await pool.call(at(legacy), "add", {})
    assert (caught.value.status, caught.value.outcome) == (404, Outcome.REFUSED)
    assert legacy.count("tools/call") == 2


async def test_a_bad_request_without_an_id_renews_the_session_too(pool: Pool, legacy: FakeServer) -> None:
    answers = iter([web.json_response(error(None, -32000, "No valid session ID"), status=400)])

    async def once(exchange: Exchange) -> Reply:
        return next(answers, None) or text("done")

    legacy.calls["add"] = once
    assert (await pool.call(at(legacy), "add", {})).content == (TextContent("done"),)
    assert legacy.count("initialize") == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
async def test_an_http_error_fails_the_call_and_is_not_repeated(
    pool: Pool, modern: FakeServer, status: int
) -> None:
    async def refuse(exchange: Exchange) -> Reply:
        return web.Response(status=status, text="the body is a secret")

    modern.calls["add"] = refuse
    with pytest.raises(HttpRejected) as caught:
        await pool.call(at(modern), "add", {})
    assert caught.value.status == status
    assert caught.value.outcome is (Outcome.REFUSED if status < 500 else Outcome.UNKNOWN)
    assert "secret" not in str(caught.value)
    assert modern.count("tools/call") == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(pool: Pool, fake: FakeServer, status: int) -> None:
    async def redirect(exchange: Exchange) -> Reply:
        return web.Response(status=status, headers={"Location": "http://169.254.169.254/latest/meta-data"})

    fake.on["server/discover"] = fake.on["initialize"] = redirect
    with pytest.raises(HttpRejected) as caught:
        await pool.tools(at(fake))
    assert caught.value.status == status
    assert len(fake.seen) == 1


async def test_errors_of_the_protocol_have_their_code(pool: Pool, fake: FakeServer) -> None:
    async def refuse(exchange: Exchange) -> Reply:
        return web.json_response(error(exchange.id, -32602, "Unknown tool: add"))

    fake.calls["add"] = refuse
    with pytest.raises(ProtocolFailure) as caught:
        await pool.call(at(fake), "add", {})
    assert (caught.value.code, caught.value.message) == (-32602, "Unknown tool: add")
    assert caught.value.outcome is Outcome.ANSWERED


async def test_a_tool_that_fails_has_a_result(pool: Pool, fake: FakeServer) -> None:
    async def fail(exchange: Exchange) -> Reply:
        return text("no such city", isError=True, structuredContent={"code": 7})

    fake.calls["add"] = fail
    answer = await pool.call(at(fake), "add", {})
    assert answer.is_error
    assert answer.content == (TextContent("no such city"),)
    assert answer.structured is not None
    assert json.loads(bytes(answer.structured)) == {"code": 7}


async def broken_connection(exchange: Exchange) -> Reply:
    assert exchange.request.transport is not None
    exchange.request.transport.abort()
    return text("never read")


async def ended_stream(exchange: Exchange) -> Reply:
    return await exchange.stream()


async def half_a_body(exchange: Exchange) -> Reply:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(exchange.request)
    await response.write(b'{"jsonrpc": "2.0", ')
    assert exchange.request.transport is not None
    exchange.request.transport.close()
    return response


async def half_an_event(exchange: Exchange) -> Reply:
    """An answer, but for the empty line that makes it an event."""
    response = await exchange.stream()
    await response.write(event(result(exchange.id, text("never read")))[:-1])
    return response


@pytest.mark.parametrize("crash", [broken_connection, ended_stream, half_a_body, half_an_event])
async def test_a_crash_in_a_call_leaves_its_outcome_unknown(pool: Pool, fake: FakeServer, crash: Any) -> None:
    fake.calls["add"] = crash
    with pytest.raises(ConnectionLost) as caught:
        await pool.call(at(fake), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN
    assert fake.count("tools/call") == 1


async def test_a_server_that_is_not_there_was_never_sent_the_call(pool: Pool, fake: FakeServer) -> None:
    async with serving(FakeServer(modern=True)) as gone:
        pass
    with pytest.raises(Unreachable) as caught:
        await pool.call(at(gone), "add", {})
    assert caught.value.outcome is Outcome.NOT_SENT


async def test_a_server_that_disappears_between_calls_was_not_sent_the_next_one(pool: Pool) -> None:
    async with serving(FakeServer(modern=True)) as fake:
        server = at(fake)
        await pool.call(server, "add", {"a": 1, "b": 1})
    with pytest.raises(Unreachable) as caught:
        await pool.call(server, "add", {"a": 1, "b": 1})
    assert caught.value.outcome is Outcome.NOT_SENT


async def test_a_second_answer_in_a_stream_is_not_read(pool: Pool, fake: FakeServer) -> None:
    async def twice(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        for value in ("first", "second"):
            await response.write(event(result(exchange.id, text(value))))
        return response

    fake.calls["twice"] = twice
    for _ in range(3):
        assert (await pool.call(at(fake), "twice", {})).content == (TextContent("first"),)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":{},"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":"text"}',
        b'"' + b"x" * 100,
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000,
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":99999,"result":{}}',
    ],
    ids=range(12),
)
async def test_bad_json_fails_the_call_with_an_unknown_outcome(
    pool: Pool, fake: FakeServer, body: bytes
) -> None:
    async def bad(exchange: Exchange) -> Reply:
        return web.Response(body=body, content_type="application/json")

    fake.calls["add"] = bad
    with pytest.raises(Malformed) as caught:
        await pool.call(at(fake), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN
    assert (await pool.tools(at(fake))).tools


@pytest.mark.parametrize(
    "value",
    [
        {"content": "text"},
        {"content": [], "resultType": "task"},
        {"resultType": "input_required"},
        {"content": {}, "isError": "yes"},
    ],
)
async def test_results_that_are_none_are_malformed(pool: Pool, fake: FakeServer, value: Any) -> None:
    async def odd(exchange: Exchange) -> Reply:
        found: dict[str, Any] = value
        return found

    fake.calls["add"] = odd
    with pytest.raises(Malformed) as caught:
        await pool.call(at(fake), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_large_result_is_not_read_to_its_end(pool: Pool, fake: FakeServer) -> None:
    written = 0

    async def large(exchange: Exchange) -> Reply:
        nonlocal written
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(exchange.request)
        await response.write(b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"')
        while written < 2**28:
            await response.write(b"x" * 2**16)
            written += 2**16
        return response

    fake.calls["add"] = large
    with pytest.raises(TooLarge) as caught:
        await pool.call(at(fake, max_message_bytes=2**20), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN
    assert written < 2**25


async def test_results_have_their_own_bound(pool: Pool, fake: FakeServer) -> None:
    async def large(exchange: Exchange) -> Reply:
        return text("x" * 2000)

    fake.calls["add"] = large
    with pytest.raises(TooLarge):
        await pool.call(at(fake, max_result_bytes=1000), "add", {})


@pytest.mark.parametrize("piece", [b"data: x", b": comment\n", b"data: {}\n", b"event: x\n\n"], ids=range(4))
async def test_an_endless_stream_ends_at_its_bound(pool: Pool, modern: FakeServer, piece: bytes) -> None:
    async def endless(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        while True:
            await response.write(piece * 1000)

    modern.calls["add"] = endless
    with pytest.raises(TooLarge) as caught:
        await pool.call(at(modern, max_message_bytes=2**18, max_stream_bytes=2**19), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_compressed_answers_are_refused(pool: Pool, fake: FakeServer) -> None:
    async def bomb(exchange: Exchange) -> Reply:
        response = web.json_response(result(exchange.id, text("0" * 100_000)))
        response.enable_compression(web.ContentCoding.gzip)
        return response

    fake.calls["add"] = bomb
    with pytest.raises(Malformed):
        await pool.call(at(fake), "add", {})
    assert fake.last("tools/call").headers["Accept-Encoding"] == "identity"


async def test_a_broken_stream_of_an_old_server_is_resumed_and_not_repeated(
    pool: Pool, legacy: FakeServer
) -> None:
    async def polled(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        await response.write(event("", id="event-1", retry="1"))
        answer = event(result(exchange.id, text("after the break")), id="event-2")
        legacy.announcements.put_nowait(answer)
        return response

    legacy.calls["polled"] = polled
    answer = await pool.call(at(legacy), "polled", {})
    assert answer.content == (TextContent("after the break"),)
    assert legacy.count("tools/call") == 1
    (resumed,) = [seen for seen in legacy.seen if seen.verb == "GET"]
    assert resumed.headers["Last-Event-ID"] == "event-1"


async def test_a_stream_that_never_ends_being_resumed_is_lost(pool: Pool, legacy: FakeServer) -> None:
    async def polled(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        await response.write(event("", id="event-1", retry="1"))
        return response

    async def empty(response: web.StreamResponse) -> web.StreamResponse:
        return response

    legacy.calls["polled"] = polled
    legacy._announce = empty  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost) as caught:
        await pool.call(at(legacy, max_stream_resumes=3), "polled", {})
    assert caught.value.outcome is Outcome.UNKNOWN
    assert sum(seen.verb == "GET" for seen in legacy.seen) == 3


@pytest.mark.parametrize(
    "method", ["sampling/createMessage", "elicitation/create", "roots/list", "x", "ping"]
)
async def test_what_an_old_server_asks_is_declined(pool: Pool, legacy: FakeServer, method: str) -> None:
    answered = asyncio.Event()

    async def curious(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        await response.write(event({"jsonrpc": "2.0", "id": "q1", "method": method, "params": {}}))
        while not any(seen.method is None and seen.message.get("id") == "q1" for seen in legacy.seen):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
        answered.set()
        await response.write(event(result(exchange.id, text("went on"))))
        return response

    legacy.calls["curious"] = curious
    assert (await pool.call(at(legacy), "curious", {})).content == (TextContent("went on"),)
    (reply,) = [seen.message for seen in legacy.seen if seen.message.get("id") == "q1"]
    if method == "ping":
        assert reply["result"] == {}
    else:
        assert reply["error"]["code"] == -32601


async def test_a_flood_of_questions_ends_the_session(pool: Pool, legacy: FakeServer) -> None:
    async def flood(exchange: Exchange) -> Reply:
        response = await exchange.stream()
        for number in range(1000):
            await response.write(event({"jsonrpc": "2.0", "id": number + 1000, "method": "ping"}))
        await asyncio.Event().wait()
        raise AssertionError

    legacy.calls["flood"] = flood
    with pytest.raises(Malformed):
        await pool.call(at(legacy), "flood", {})


async def test_a_modern_tool_that_asks_the_user_is_told_that_he_declines(
    pool: Pool, modern: FakeServer
) -> None:
    async def curious(exchange: Exchange) -> Reply:
        answers = exchange.params.get("inputResponses")
        if answers is None:
            wanted = {"who": {"method": "elicitation/create"}, "where": {"method": "roots/list"}}
            return {"resultType": "input_required", "inputRequests": wanted, "requestState": "state é"}
        return text(json.dumps([answers, exchange.params["requestState"]]))

    modern.calls["curious"] = curious
    (block,) = (await pool.call(at(modern), "curious", {"q": 1})).content
    assert isinstance(block, TextContent)
    assert json.loads(block.text) == [{"who": {"action": "decline"}, "where": {"roots": []}}, "state é"]
    first, second = (seen.message for seen in modern.seen if seen.method == "tools/call")
    assert first["id"] != second["id"]
    assert first["params"]["arguments"] == second["params"]["arguments"] == {"q": 1}


async def test_a_modern_tool_that_wants_a_model_fails(pool: Pool, modern: FakeServer) -> None:
    async def sampling(exchange: Exchange) -> Reply:
        return {"resultType": "input_required", "inputRequests": {"m": {"method": "sampling/createMessage"}}}

    modern.calls["add"] = sampling
    with pytest.raises(InputRequired) as caught:
        await pool.call(at(modern), "add", {})
    assert caught.value.outcome is Outcome.ANSWERED
    assert modern.count("tools/call") == 1


async def test_a_tool_that_asks_for_ever_fails(pool: Pool, modern: FakeServer) -> None:
    async def insist(exchange: Exchange) -> Reply:
        return {"resultType": "input_required", "requestState": "again"}

    modern.calls["add"] = insist
    with pytest.raises(InputRequired):
        await pool.call(at(modern, max_input_rounds=3), "add", {})
    assert modern.count("tools/call") == 4


HEADER_TOOL: dict[str, Any] = {
    "name": "query",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "place": {"type": "object", "properties": {"row": {"type": "integer", "x-mcp-header": "Row"}}},
        },
    },
}


async def test_marked_parameters_are_mirrored_into_headers(pool: Pool, modern: FakeServer) -> None:
    async def done(exchange: Exchange) -> Reply:
        return text("done")

    modern.tools, modern.calls["query"] = [HEADER_TOOL], done
    await pool.call(at(modern), "query", {"region": "Zürich", "place": {"row": 7}})
    headers = modern.last("tools/call").headers
    assert (headers["Mcp-Param-Region"], headers["Mcp-Param-Row"]) == ("=?base64?WsO8cmljaA==?=", "7")


async def test_a_header_mismatch_fetches_the_list_again_once(pool: Pool, modern: FakeServer) -> None:
    async def strict(exchange: Exchange) -> Reply:
        if "Mcp-Param-Region" not in exchange.request.headers:
            return web.json_response(error(exchange.id, -32020, "Header mismatch"), status=400)
        return text("done")

    modern.tools, modern.calls["query"] = [{**HEADER_TOOL, "inputSchema": {"type": "object"}}], strict
    await pool.tools(at(modern))
    with pytest.raises(ProtocolFailure):
        await pool.call(at(modern), "query", {"region": "x"})
    assert (modern.count("tools/call"), modern.count("tools/list")) == (2, 2)
    modern.tools = [HEADER_TOOL]
    assert (await pool.call(at(modern), "query", {"region": "x"})).content == (TextContent("done"),)
    assert (modern.count("tools/call"), modern.count("tools/list")) == (4, 3)


async def test_a_tool_with_an_invalid_mark_is_left_out_and_not_called(pool: Pool, modern: FakeServer) -> None:
    bad = {"name": "bad", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}
    modern.tools = [bad, ADD]
    found = await pool.tools(at(modern))
    assert [tool.name for tool in found.tools] == ["add"]
    assert [name for name, _ in found.left_out] == ["bad"]
    with pytest.raises(RequestRefused):
        await pool.call(at(modern), "bad", {"a": 1})


async def test_a_modern_server_names_the_versions_that_it_wants(pool: Pool, modern: FakeServer) -> None:
    rejections = 0

    async def picky(exchange: Exchange) -> Reply:
        nonlocal rejections
        rejections += 1
        if rejections > 1:
            return await modern._discover(exchange)
        data = {"supported": [MODERN_VERSION], "requested": "?"}
        return web.json_response(error(exchange.id, -32022, "Unsupported", data=data), status=400)

    modern.on["server/discover"] = picky
    assert (await pool.tools(at(modern))).tools


async def test_no_common_version_is_said(pool: Pool, modern: FakeServer) -> None:
    async def future(exchange: Exchange) -> Reply:
        data = {"supported": ["2031-01-01"]}
        return web.json_response(error(exchange.id, -32022, "Unsupported", data=data), status=400)

    modern.on["server/discover"] = future
    with pytest.raises(VersionMismatch):
        await pool.tools(at(modern))


async def test_an_old_server_with_an_unknown_version_is_refused(pool: Pool, legacy: FakeServer) -> None:
    async def ancient(exchange: Exchange) -> Reply:
        return {"protocolVersion": "2023-01-01", "capabilities": {}}

    legacy.on["initialize"] = ancient
    with pytest.raises(VersionMismatch):
        await pool.tools(at(legacy))


async def test_an_old_server_that_answers_everything_is_recognised(pool: Pool, legacy: FakeServer) -> None:
    async def whatever(exchange: Exchange) -> Reply:
        return {}

    legacy.on["server/discover"] = whatever
    assert (await pool.tools(at(legacy))).tools
    assert legacy.count("initialize") == 1


@pytest.mark.parametrize("status", [401, 403, 429, 503])
async def test_a_probe_that_may_not_be_answered_is_not_followed_by_a_handshake(
    pool: Pool, legacy: FakeServer, status: int
) -> None:
    async def refuse(exchange: Exchange) -> Reply:
        return web.Response(status=status)

    legacy.on["server/discover"] = refuse
    with pytest.raises(HttpRejected) as caught:
        await pool.tools(at(legacy))
    assert caught.value.status == status
    assert caught.value.outcome is Outcome.NOT_SENT
    assert legacy.count("initialize") == 0


async def test_a_server_that_never_completes_the_handshake_is_given_up(pool: Pool, fake: FakeServer) -> None:
    async def hang(exchange: Exchange) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    fake.on["server/discover"] = fake.on["initialize"] = hang
    with pytest.raises(McpFailure) as caught:
        await pool.call(at(fake, handshake_timeout_s=0.2), "add", {})
    assert isinstance(caught.value, TimedOut)
    assert caught.value.outcome is Outcome.NOT_SENT


async def test_a_session_id_with_odd_characters_is_refused(pool: Pool, legacy: FakeServer) -> None:
    async def odd(exchange: Exchange) -> Reply:
        answer = {"protocolVersion": "2025-11-25", "capabilities": {}}
        return web.json_response(result(exchange.id, answer), headers={"Mcp-Session-Id": "a b"})

    legacy.on["initialize"] = odd
    with pytest.raises(Malformed):
        await pool.tools(at(legacy))
