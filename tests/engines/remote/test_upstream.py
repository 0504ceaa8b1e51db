"""Servers elsewhere: what their refusals mean, how their streams are read, and with which key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from slipring.engines.remote.admission import Retryable
from slipring.engines.remote.upstream import Upstream, UpstreamOptions, _Payloads, read_key, refusal
from slipring.errors import InvalidRequest, RateLimited, ServerError, StartupError


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "too hot", "code": 7}}', "too hot"),
        (b'{"error": "too hot"}', "too hot"),
        (b'{"message": "too hot"}', "too hot"),
        (b'{"detail": "too hot"}', "too hot"),
        (b'{"message": {"detail": [{"msg": "too hot"}]}}', '{"detail":[{"msg":"too hot"}]}'),
        (b'{"detail": [{"loc": ["body"], "msg": "too hot"}]}', "too hot"),
        (b"<html>", "422"),
        (b"[]", "422"),
    ],
)
def test_a_refusal_keeps_its_words_and_status(body: bytes, said: str) -> None:
    error = refusal(422, body, {})
    assert isinstance(error, InvalidRequest)
    assert (error.status, error.code) == (422, "engine_refused")
    assert said in error.message


def test_refusals_that_are_not_the_clients_fault_are_told_as_such() -> None:
    busy = refusal(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "7"})
    assert isinstance(busy, RateLimited)
    assert (busy.retry_after_s, busy.message) == (7.0, "slow down")
    assert refusal(429, b"", {"Retry-After": "soon"}).retry_after_s is None
    for status in (401, 403):
        assert type(refusal(status, b'{"error": "sk-secret"}', {})) is ServerError
        assert "sk-secret" not in refusal(status, b'{"error": "sk-secret"}', {}).message
    for status in (408, 500, 502, 503, 504):
        assert isinstance(refusal(status, b'{"error": "inside"}', {}), Retryable)
        assert "inside" not in refusal(status, b'{"error": "inside"}', {}).message
    assert type(refusal(301, b"", {})) is ServerError


def test_keys_come_from_variables_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", "from-variable")
    assert read_key("chat", UpstreamOptions(key_env="SOME_KEY")) == "from-variable"
    (tmp_path / "key").write_text("from-file\n")
    assert read_key("chat", UpstreamOptions(key_file=str(tmp_path / "key"))) == "from-file"
    assert read_key("chat", UpstreamOptions()) == ""
    with pytest.raises(StartupError, match="NO_KEY"):
        read_key("chat", UpstreamOptions(key_env="NO_KEY"))
    with pytest.raises(StartupError, match="cannot read"):
        read_key("chat", UpstreamOptions(key_file=str(tmp_path / "none")))


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[tuple[Upstream, set[object]]]:
    """A server that streams these pieces, and the connections that it has seen."""
    seen: set[object] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.add(request.transport)
        stream = web.StreamResponse()
        await stream.prepare(request)
        for piece in pieces:
            await stream.write(piece)
            await asyncio.sleep(0)
        await stream.write_eof()
        return stream

    async with serving(answer) as url:
        upstream = Upstream("chat", UpstreamOptions(url=url))
        await upstream.start()
        try:
            yield upstream, seen
        finally:
            await upstream.close()


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/x", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def payloads(upstream: Upstream) -> list[bytes]:
    found = [payload async for batch in upstream.events("/x", [b"{", b"}"], {}) for payload in batch]
    await drained(upstream)
    return found


async def drained(upstream: Upstream) -> None:
    """Wait until the last bytes of answers have been read."""
    if upstream._draining:
        await asyncio.wait(upstream._draining)


async def test_events_are_read_however_they_are_cut_and_connections_are_used_again() -> None:
    pieces = [b": hello\n\nda", b"ta: 1\n", b"\ndata:2\r\n\r\nevent: x\ndata: ", b"3\n\ndata: [DONE]\n\n"]
    async with answering(*pieces) as (upstream, seen):
        for _ in range(3):
            assert await payloads(upstream) == [b"1", b"2", b"3"]
        assert len(seen) == 1


async def test_what_one_read_brings_comes_at_once() -> None:
    async with answering(b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\ndata: 3\n\n") as (upstream, _):
        assert [batch async for batch in upstream.events("/x", [b"{}"], {})] == [[b"1", b"2"]]


async def test_an_answer_that_is_over_leaves_its_connection_to_the_next() -> None:
    async with answering(b"data: 1\n\n", b"data: last\n\n", b"data: more\n\n") as (upstream, seen):
        for _ in range(3):
            heard: list[bytes] = []
            events = upstream.events("/x", [b"{}"], {}, is_over=partial(heard.__contains__, b"last"))
            async for batch in events:
                heard += batch
            assert heard[:2] == [b"1", b"last"]
            await drained(upstream)
        assert len(seen) == 1


async def test_nobody_waits_for_the_last_bytes_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.remote.upstream._LAST_BYTES_S", 3600.0)
    released = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"data: 1\n\ndata: [DONE]\n\n")
        await released.wait()
        return stream

    async with serving(answer) as url:
        upstream = Upstream("chat", UpstreamOptions(url=url))
        await upstream.start()
        async with asyncio.timeout(60):
            assert [batch async for batch in upstream.events("/x", [b"{}"], {})] == [[b"1"]]
        assert upstream._draining
        async with asyncio.timeout(60):
            await upstream.close()
        assert not upstream._draining
        released.set()


async def test_a_line_may_be_longer_than_any_buffer_and_the_last_need_not_end() -> None:
    long = b"x" * 3_000_000
    async with answering(b"data: " + long, b"\ndata: end") as (upstream, _):
        assert await payloads(upstream) == [long, b"end"]


async def test_a_complete_answer_stays_complete_however_its_connection_ends() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"data: 1\n\ndata: [DONE]\n\n"
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        writer.close()  # without the last chunk

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = Upstream("chat", UpstreamOptions(url=f"http://127.0.0.1:{port}"))
    await upstream.start()
    assert await payloads(upstream) == [b"1"]
    await upstream.close()
    server.close()


async def test_silence_is_ended_and_slow_readers_are_not() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"data: 1\n\n")
        await asyncio.Event().wait()
        return stream

    async with serving(answer) as url:
        upstream = Upstream("chat", UpstreamOptions(url=url, idle_timeout_s=0.05))
        await upstream.start()
        events = upstream.events("/x", [b"{}"], {})
        assert await anext(events) == [b"1"]
        with pytest.raises(ServerError, match="nothing for too long"):
            await anext(events)
        patient = upstream.events("/x", [b"{}"], {}, idle_s=lambda: None)
        assert await anext(patient) == [b"1"]
        waiting = asyncio.ensure_future(anext(patient))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done, "no limit, no end"
        waiting.cancel()
        await asyncio.wait([waiting])
        await upstream.close()


def test_an_event_that_says_nothing_is_passed_over() -> None:
    payloads = _Payloads()
    assert payloads.take(b"data:\n\ndata: \r\n\ndata: {}\n\n") == [b"{}"]
    assert payloads.take(b"data: [DONE]\n\n") == []
    assert payloads.ended
