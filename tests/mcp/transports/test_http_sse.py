"""HTTP+SSE of revision 2024-11-05."""

import asyncio

import pytest
from aiohttp import web

from slipring.mcp.failures import ConnectionLost, HttpRejected, Malformed, Outcome, TimedOut, TooLarge
from slipring.mcp.pool import Pool
from slipring.mcp.protocol.tools import TextContent
from slipring.mcp.transports.addresses import Reach
from tests.loop_clock import LoopClock
from tests.mcp.fakes import (
    Exchange,
    FakeServer,
    FakeSseServer,
    Reply,
    at,
    event,
    result,
    serving,
    text,
)


async def test_the_older_transport_is_found_and_used(pool: Pool, old: FakeSseServer) -> None:
    assert [tool.name for tool in (await pool.tools(at(old))).tools] == ["add"]
    answers = await asyncio.gather(*(pool.call(at(old), "add", {"a": n, "b": 1}) for n in range(3)))
    assert [answer.content[0] for answer in answers] == [TextContent(str(n + 1)) for n in range(3)]
    assert old.count("initialize") == 1


async def test_a_stream_that_ends_leaves_the_outcome_unknown_and_is_opened_again(
    pool: Pool, old: FakeSseServer
) -> None:
    async def crash(exchange: Exchange) -> Reply:
        old.end_stream.set()
        return web.Response(status=202)

    old.calls["crash"] = crash
    with pytest.raises(ConnectionLost) as caught:
        await pool.call(at(old), "crash", {})
    assert caught.value.outcome is Outcome.UNKNOWN
    old.end_stream.clear()
    assert (await pool.call(at(old), "add", {"a": 1, "b": 1})).content == (TextContent("2"),)
    assert old.count("tools/call") == 2


async def test_a_call_that_is_refused_fails_at_once(pool: Pool, old: FakeSseServer) -> None:
    async def refuse(exchange: Exchange) -> Reply:
        return web.Response(status=403)

    old.calls["add"] = refuse
    with pytest.raises(HttpRejected) as caught:
        await pool.call(at(old), "add", {})
    assert (caught.value.status, caught.value.outcome) == (403, Outcome.REFUSED)


async def test_a_timeout_is_told_in_words(
    pool: Pool, old: FakeSseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)

    async def silent(exchange: Exchange) -> Reply:
        clock.advance(61)
        return web.Response(status=202)

    old.calls["add"] = silent
    with pytest.raises(TimedOut):
        await pool.call(at(old, call_timeout_s=60), "add", {})
    while not old.count("notifications/cancelled"):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


async def test_answers_that_come_late_or_twice_are_those_of_no_other_call(
    pool: Pool, old: FakeSseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    answered: list[object] = []

    async def send(request_id: object, value: str) -> None:
        assert old.stream is not None
        await old.stream.write(event(result(request_id, text(value))))

    async def late(exchange: Exchange) -> Reply:
        answered.append(exchange.id)
        clock.advance(61)
        return web.Response(status=202)

    async def twice(exchange: Exchange) -> Reply:
        for earlier in answered:
            await send(earlier, "late")
        for value in ("first", "second"):
            await send(exchange.id, value)
        answered.append(exchange.id)
        return web.Response(status=202)

    old.calls |= {"late": late, "twice": twice}
    server = at(old, call_timeout_s=60)
    with pytest.raises(TimedOut):
        await pool.call(server, "late", {})
    for _ in range(3):
        assert (await pool.call(server, "twice", {})).content == (TextContent("first"),)
    assert old.count("initialize") == 1


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://169.254.169.254/latest",
        "//other.example/messages",
        "https://127.0.0.1/messages",
        "http://user@127.0.0.1/messages",
        "file:///etc/passwd",
        "http://[::1",
    ],
)
async def test_an_endpoint_elsewhere_is_refused(pool: Pool, old: FakeSseServer, endpoint: str) -> None:
    old.endpoint = endpoint
    server = at(old)
    only = type(server)(server.name, server.url, reach=Reach.ALL, transport="sse")
    with pytest.raises(Malformed) as caught:
        await pool.tools(only)
    assert caught.value.outcome is Outcome.NOT_SENT
    assert not old.seen


async def test_bad_json_on_the_stream_ends_the_session(pool: Pool, old: FakeSseServer) -> None:
    async def bad(exchange: Exchange) -> Reply:
        assert old.stream is not None
        await old.stream.write(event("{not json"))
        return web.Response(status=202)

    old.calls["add"] = bad
    with pytest.raises(Malformed) as caught:
        await pool.call(at(old), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_endless_announcements_end_the_session(pool: Pool, old: FakeSseServer) -> None:
    async def flood(exchange: Exchange) -> Reply:
        assert old.stream is not None
        while True:
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 10_000}}
            await old.stream.write(event(note))

    old.calls["add"] = flood
    with pytest.raises(TooLarge) as caught:
        await pool.call(at(old, max_stream_bytes=500_000), "add", {})
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_url_with_neither_transport_says_what_it_answered(pool: Pool) -> None:
    class Website(FakeServer):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            return web.Response(status=200 if request.method == "GET" else 405, text="<html>")

    async with serving(Website(modern=False)) as site:
        with pytest.raises(HttpRejected) as caught:
            await pool.call(at(site), "add", {})
    assert (caught.value.status, caught.value.outcome) == (405, Outcome.NOT_SENT)


async def test_text_of_a_tool_survives(pool: Pool, old: FakeSseServer) -> None:
    async def lines(exchange: Exchange) -> Reply:
        return text("a\nb\r\n é")

    old.calls["add"] = lines
    assert (await pool.call(at(old), "add", {})).content == (TextContent("a\nb\r\n é"),)
