"""The HTTP client of engines: bodies, event streams, queries, and what it uses of aiohttp's internals."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from slipring.engines.remote.http_client import HttpClient, proxy_of, spliced
from slipring.engines.remote.http_connection import (
    BadStatus,
    HttpFailure,
    Payloads,
    RedirectedElsewhere,
    TimedOut,
    Unreachable,
    Unreadable,
)
from tests.server.raw import until


def any_silence() -> None:
    return None


@asynccontextmanager
async def serving(answer: Handler, path: str = "/x") -> AsyncIterator[str]:
    """A server that answers GET and POST of a path with this handler; its URL."""
    app = web.Application(client_max_size=2**21)
    app.router.add_route("*", path, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def streaming(*pieces: bytes) -> AsyncIterator[tuple[HttpClient, set[object]]]:
    """A client of a server that streams these pieces, and the connections that the server has seen."""
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

    async with serving(answer) as url, HttpClient(url, {}) as client:
        yield client, seen


class Collected:
    """Collects the batches of an answer."""

    def __init__(self, last: bytes | None = None) -> None:
        """``last``: the payload behind which the answer is complete."""
        self.batches: list[list[bytes]] = []
        self.has_ended = False
        self.fault: Exception | None = None
        self._last = last

    def take(self, payloads: list[bytes]) -> Awaitable[None] | None:
        self.batches.append(payloads)
        self.has_ended = self._last in payloads
        return None

    @property
    def payloads(self) -> list[bytes]:
        return [payload for batch in self.batches for payload in batch]


class Taking(Collected):
    """Collects, and gives the batches behind the first to a function."""

    def __init__(
        self, take: Callable[[list[bytes]], Awaitable[None] | None], last: bytes | None = None
    ) -> None:
        super().__init__(last)
        self._take = take

    def take(self, payloads: list[bytes]) -> Awaitable[None] | None:
        super().take(payloads)
        return self._take(payloads) if payloads != [b"first"] else None


async def batches(client: HttpClient, pieces: tuple[bytes, ...] = (b"{", b"}")) -> list[list[bytes]]:
    collected = Collected()
    await client.stream("/x", pieces, None, collected, idle_s=any_silence)
    return collected.batches


async def payloads(client: HttpClient) -> list[bytes]:
    found = [payload for batch in await batches(client) for payload in batch]
    await drained(client)
    return found


async def drained(client: HttpClient) -> None:
    """Wait until the last bytes of complete answers have been read."""
    if client._draining:
        await asyncio.wait(client._draining)


# Bodies.


@pytest.mark.parametrize("count", [0, 1, 2, 20, 60, 200])
def test_pieces_hold_items_with_commas_between_them(count: int) -> None:
    items = [b'"%d%s"' % (number, b"x" * 10_000) for number in range(count)]
    pieces = spliced(b'{"a":[', items, b"]}")
    assert b"".join(pieces) == b'{"a":[' + b",".join(items) + b"]}"
    assert max(map(len, pieces)) < 120_000


@pytest.mark.parametrize("sizes", [(0,), (10, 20), (10, 200_000, 300_000, 5, 6), (150_000,)])
async def test_a_body_in_pieces_arrives_whole(sizes: tuple[int, ...]) -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.content_type, request.content_length, await request.read()))
        return web.Response(body=b"data: 1\n\ndata: [DONE]\n\n")

    pieces = tuple(bytes([65 + number]) * size for number, size in enumerate(sizes))
    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client, pieces) == [[b"1"]]
    assert seen == [("application/json", sum(sizes), b"".join(pieces))]


# Event streams.


async def test_events_are_split_wherever_reads_cut_them_and_connections_are_reused() -> None:
    pieces = [b": hello\n\nda", b"ta: 1\n", b"\ndata:2\r\n\r\nevent: x\ndata: ", b"3\n\ndata: [DONE]\n\n"]
    async with streaming(*pieces) as (client, seen):
        for _ in range(3):
            assert await payloads(client) == [b"1", b"2", b"3"]
        assert len(seen) == 1


async def test_a_batch_holds_all_that_one_read_brought() -> None:
    async with streaming(b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\ndata: 3\n\n") as (client, _):
        assert await batches(client) == [[b"1", b"2"]]


Stream = Callable[[Collected], Coroutine[Any, Any, None]]


@asynccontextmanager
async def asked_for(
    *, idle_s: Callable[[], float | None] = any_silence
) -> AsyncIterator[tuple[Stream, "asyncio.Queue[bytes | None]", asyncio.Event]]:
    """What streams an answer whose server writes ``first``, then what is put in a queue, and breaks the
    connection for None. The event is set when the server has lost its client."""
    asked: asyncio.Queue[bytes | None] = asyncio.Queue()
    left = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        assert request.transport is not None
        try:
            await stream.write(b"data: first\n\n")
            while (piece := await asked.get()) is not None:
                await stream.write(piece)
        except asyncio.CancelledError:
            left.set()
            raise
        request.transport.abort()
        return stream

    app = web.Application()
    app.router.add_post("/x", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with HttpClient(url, {}) as client:

            def stream(consumer: Collected) -> Coroutine[Any, Any, None]:
                return client.stream("/x", (b"{}",), None, consumer, idle_s=idle_s)

            yield stream, asked, left
    finally:
        await runner.cleanup()


async def pass_by(asked: "asyncio.Queue[bytes | None]") -> None:
    """Wait until the server has written what was put in its queue, and give the client time to read it."""
    await until(asked.empty)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_batches_are_taken_as_they_arrive_and_outside_of_the_task_that_waits() -> None:
    is_outside: list[bool] = []
    async with asked_for() as (stream, asked, _):

        def take(payloads: list[bytes]) -> None:
            is_outside.append(asyncio.current_task() is None)
            asked.put_nowait((b"data: 2\n\nda", b"ta: 3\n\n", b"data: [DONE]\n\n")[len(is_outside) - 1])

        taking = Taking(take)
        running = asyncio.create_task(stream(taking))
        await until(lambda: bool(taking.batches))
        asked.put_nowait(b"data: 0\n\ndata: 1\n\n")
        await running
        assert taking.batches == [[b"first"], [b"0", b"1"], [b"2"], [b"3"]]
        assert all(is_outside)


async def test_the_next_batch_waits_for_what_a_batch_returns() -> None:
    room = asyncio.Event()
    async with asked_for() as (stream, asked, _):

        async def wait() -> None:
            await room.wait()
            assert taking.payloads == [b"first", b"0"], "a batch was taken while another waited"

        taking = Taking(lambda payloads: wait() if payloads == [b"0"] else None)
        running = asyncio.create_task(stream(taking))
        await until(lambda: bool(taking.batches))
        asked.put_nowait(b"data: 0\n\n")
        await until(lambda: len(taking.batches) == 2)
        asked.put_nowait(b"data: 1\n\n")
        asked.put_nowait(b"data: [DONE]\n\n")
        await pass_by(asked)
        room.set()
        await running
        assert taking.payloads == [b"first", b"0", b"1"]


async def test_what_a_batch_raises_is_raised_and_ends_the_request() -> None:
    async with asked_for() as (stream, asked, left):

        def take(payloads: list[bytes]) -> None:
            raise LookupError("no more")

        asked.put_nowait(b"data: 0\n\n")
        with pytest.raises(LookupError, match="no more"):
            await stream(Taking(take))
        await left.wait()


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_fault_is_raised_after_what_was_taken_before_it(*, is_slow: bool) -> None:
    waited: list[bool] = []
    async with asked_for() as (stream, asked, left):

        async def wait() -> None:
            await asyncio.sleep(0)
            waited.append(True)

        def take(payloads: list[bytes]) -> Awaitable[None] | None:
            taking.fault, taking.has_ended = LookupError("no more"), True
            return wait() if is_slow else None

        taking = Taking(take)
        asked.put_nowait(b"data: 0\n\n")
        with pytest.raises(LookupError, match="no more"):
            await stream(taking)
        assert waited == [True] * is_slow
        await left.wait()


async def test_silence_and_a_broken_connection_fail_a_stream() -> None:
    async with asked_for(idle_s=lambda: 0.01) as (stream, _, _):
        with pytest.raises(TimedOut):
            await stream(Collected())
    async with asked_for() as (stream, asked, _):
        asked.put_nowait(None)
        with pytest.raises(Unreachable):
            await stream(Collected())


async def test_a_batch_may_cancel_the_task_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    async with asked_for() as (stream, asked, left):

        def take(payloads: list[bytes]) -> None:
            running.cancel()
            raise LookupError("no more")

        taking = Taking(take)
        running = asyncio.create_task(stream(taking))
        await until(lambda: bool(taking.batches))
        asked.put_nowait(b"data: 1\n\n")
        await asyncio.wait([running])
        assert running.cancelled()
        await left.wait()
    assert not caplog.records


async def test_a_stream_that_is_cancelled_takes_no_more() -> None:
    async with asked_for() as (stream, asked, left):
        collected = Collected()
        running = asyncio.create_task(stream(collected))
        await until(lambda: bool(collected.batches))
        asked.put_nowait(b"data: 0\n\n")
        await until(lambda: len(collected.batches) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        asked.put_nowait(b"data: 1\n\n")
        await left.wait()
        assert collected.payloads == [b"first", b"0"]


async def test_a_complete_answer_leaves_its_connection_to_the_next_request() -> None:
    async with streaming(b"data: 1\n\n", b"data: last\n\n", b"data: more\n\n") as (client, seen):
        for _ in range(3):
            collected = Collected(last=b"last")
            await client.stream("/x", [b"{}"], None, collected, idle_s=any_silence)
            assert collected.payloads[:2] == [b"1", b"last"]
            await drained(client)
        assert len(seen) == 1


async def test_a_stream_ends_without_waiting_for_the_last_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.remote.http_client._LAST_BYTES_S", 3600.0)
    released = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"data: 1\n\ndata: [DONE]\n\n")
        await released.wait()
        return stream

    async with serving(answer) as url:
        client = HttpClient(url, {})
        await client.start()
        async with asyncio.timeout(300):
            assert await batches(client) == [[b"1"]]
        assert client._draining
        async with asyncio.timeout(300):
            await client.close()
        assert not client._draining
        released.set()


async def test_a_line_may_be_longer_than_any_buffer_and_the_last_need_not_end() -> None:
    long = b"x" * 3_000_000
    async with streaming(b"data: " + long, b"\ndata: end") as (client, _):
        assert await payloads(client) == [long, b"end"]


@asynccontextmanager
async def raw_server(answer: Any) -> AsyncIterator[str]:
    """A server of plain sockets: ``answer`` gets reader and writer of each connection."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def test_a_complete_answer_stays_complete_however_its_connection_ends() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"data: 1\n\ndata: [DONE]\n\n"
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        writer.close()  # without the last chunk

    async with raw_server(answer) as url, HttpClient(url, {}) as client:
        assert await payloads(client) == [b"1"]


async def test_an_answer_that_is_no_longer_http_fails_at_once() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        await until(lambda: bool(collected.batches))
        writer.write(b"no length of a chunk\r\n")
        writer.close()

    collected = Collected()
    async with raw_server(answer) as url, HttpClient(url, {}) as client, asyncio.timeout(300):
        with pytest.raises(Unreachable):
            await client.stream("/x", [b"{}"], None, collected, idle_s=any_silence)
    assert collected.payloads == [b"1"]


async def test_without_a_limit_a_stream_may_be_silent() -> None:
    async with asked_for() as (stream, _, _):
        waiting = asyncio.create_task(stream(Collected()))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        waiting.cancel()
        await asyncio.wait([waiting])


def test_events_without_data_are_skipped() -> None:
    payloads = Payloads()
    assert payloads.take(b"data:\n\ndata: \r\n\ndata: {}\n\n") == [b"{}"]
    assert payloads.take(b"data: [DONE]\n\n") == []
    assert payloads.ended


@pytest.mark.parametrize(
    "read",
    [b'data: {"a":1}\n\n', b'data: {"a":1}\r\n\r\n', b'data:{"a":1}\n', b'event: x\ndata: {"a":1}\n\n'],
)
def test_an_event_that_comes_alone_is_the_same_however_it_is_written(read: bytes) -> None:
    payloads = Payloads()
    assert payloads.take(b"data: {") == []
    assert payloads.take(b"}\n\n") == [b"{}"]
    assert payloads.take(read) == [b'{"a":1}']
    assert payloads.take(read + b"data: {}\n\n") == [b'{"a":1}', b"{}"]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipring.engines.remote.http_connection.LONGEST_EVENT", 10)
    payloads = Payloads()
    assert payloads.take(b"data: 0123456789") == []
    with pytest.raises(Unreadable):
        payloads.take(b"more")


def test_a_long_line_costs_no_more_than_its_length() -> None:
    payloads, read = Payloads(), b"x" * 2**16
    assert payloads.take(b"data: ") == []
    for _ in range(48 * 16):
        assert payloads.take(read) == []
    # What has arrived is not copied with each read.
    assert len(payloads.rest) == 1 + 48 * 16
    assert all(each is read for each in payloads.rest[1:])
    (found,) = payloads.take(b"\n")
    assert len(found) == 48 * 2**20


# Queries.


async def test_failures_of_a_query_say_what_is_wrong() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.Response(status=503, body=b"{}", headers={"Retry-After": "3"})
        return web.Response(body=b"<html>")

    async with serving(answer) as url, HttpClient(url, {}) as client:
        with pytest.raises(BadStatus, match="503 Service Unavailable") as bad:
            await client.query("/x")
        assert (bad.value.body, bad.value.headers["retry-after"]) == (b"{}", "3")
        with pytest.raises(Unreadable):
            await client.query("/x", [b"{}"])
        assert await client.status("/x") == 503
    async with HttpClient("http://127.0.0.1:9", {}) as client:
        with pytest.raises(Unreachable, match=r"^Connection refused$"):
            await client.query("/x")


async def test_a_query_without_an_answer_times_out() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(answer) as url, HttpClient(url, {}) as client:
        with pytest.raises(TimedOut):
            await client.query("/x", timeout_s=0.05)


async def test_a_query_over_a_connection_that_the_server_has_closed_is_repeated_once() -> None:
    """The server closes each connection after one answer, without announcing it."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7")
        await reader.readuntil(b"\r\n\r\n{}")
        writer.close()  # the second request gets no answer

    async with raw_server(answer) as url, HttpClient(url, {}) as client:
        assert [await client.query("/x", [b"{}"]) for _ in range(3)] == [7, 7, 7]
    assert connections == 3


async def test_threads_query_over_the_loops_connections() -> None:
    seen: set[object] = set()

    async def answer(request: web.Request) -> web.Response:
        seen.add(request.transport)
        return web.json_response((await request.json())["text"].upper())

    async with serving(answer) as url:
        async with HttpClient(url, {}) as client:

            def ask() -> list[str]:
                return [client.query_from_thread("/x", {"text": f"t{number}"}) for number in range(100)]

            assert await asyncio.to_thread(ask) == [f"T{number}" for number in range(100)]
            with pytest.raises(RuntimeError, match="must not wait"):
                client.query_from_thread("/x", {})
        with pytest.raises(Unreachable):
            await asyncio.to_thread(client.query_from_thread, "/x", {})
    assert len(seen) == 1


async def test_a_thread_does_not_wait_for_a_client_that_is_closed() -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(answer) as url:
        client = HttpClient(url, {})
        await client.start()
        waiting = asyncio.create_task(asyncio.to_thread(client.query_from_thread, "/x", {}))
        await asked.wait()
        await client.close()
        with pytest.raises(Unreachable):
            await waiting


def test_bodies_are_json() -> None:
    assert msgspec.json.decode(b"".join(spliced(b'{"a":[', [b"1", b"2"], b"]}"))) == {"a": [1, 2]}


async def test_a_redirect_is_followed() -> None:
    posted: list[tuple[str, bytes]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        posted.append((request.query_string, await request.read()))
        if not request.query_string:
            raise web.HTTPPermanentRedirect("/x?there")
        return web.Response(body=b"data: 1\n\n")

    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client) == [[b"1"]]
    assert posted[-1] == ("there", b"{}")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("body", [(b"{}",), (b"{" + b" " * 2**20, b"}")])
async def test_a_redirect_is_followed_once_by_a_post(status: int, body: tuple[bytes, ...]) -> None:
    posted: list[tuple[str, str, int]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        posted.append((request.method, request.query_string, len(await request.read())))
        if not request.query_string:
            return web.Response(status=status, headers={"Location": "/x?there"})
        return web.Response(body=b"data: 1\n\n")

    size = sum(map(len, body))
    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client, body) == await batches(client, body) == [[b"1"]]
    assert posted == [("POST", "", size), ("POST", "there", size), ("POST", "there", size)]


async def test_an_address_to_which_a_server_redirected_is_forgotten_when_it_fails() -> None:
    redirects = ["/x?there"]

    async def answer(request: web.Request) -> web.StreamResponse:
        if redirects and not request.query_string:
            return web.Response(status=307, headers={"Location": redirects[0]})
        if not redirects and request.query_string:
            assert request.transport is not None
            request.transport.close()
        return web.Response(body=b"data: %d\n\n" % len(request.query_string))

    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client) == [[b"5"]]
        redirects.clear()
        with pytest.raises(Unreachable):
            await batches(client)
        assert await batches(client) == [[b"0"]]


async def test_no_request_follows_a_redirect_to_another_host() -> None:
    reached: list[str] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        reached.append(request.path)
        return web.json_response({})

    async with serving(elsewhere) as other:

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{other}/x"})

        async with serving(answer) as url, HttpClient(url, {"api-key": "sk-secret"}) as client:
            for ask in (
                client.query("/x"),
                client.query("/x", [b"{}"]),
                batches(client),
                client.status("/x"),
            ):
                with pytest.raises(RedirectedElsewhere, match="another host"):
                    await ask
            with pytest.raises(RedirectedElsewhere):
                await client.session.ws_connect(f"{url}/x")
    assert reached == []


async def test_a_server_that_redirects_without_end_fails() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "/x"})

    async with serving(answer) as url, HttpClient(url, {}) as client:
        with pytest.raises(Unreadable, match="without end"):
            await batches(client)


@pytest.mark.parametrize("status", [404, 500])
async def test_an_address_to_which_a_server_redirected_is_forgotten_when_it_refuses(status: int) -> None:
    redirects = ["/x?there"]

    async def answer(request: web.Request) -> web.StreamResponse:
        if redirects and not request.query_string:
            return web.Response(status=307, headers={"Location": redirects[0]})
        if not redirects and request.query_string:
            return web.Response(status=status)
        return web.Response(body=b"data: %d\n\n" % len(request.query_string))

    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client) == [[b"5"]]
        redirects.clear()
        with pytest.raises(BadStatus):
            await batches(client)
        assert await batches(client) == [[b"0"]]


@pytest.mark.parametrize("location", ["http://[::1/x", "//127.0.0.1:99999/x", "http://127.0.0.1:a/x"])
async def test_a_redirect_to_no_address_fails(location: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": location})

    async with serving(answer) as url, HttpClient(url, {}) as client:
        for ask in (batches(client), client.query("/x", [b"{}"]), client.query("/x")):
            with pytest.raises(HttpFailure):
                await ask


async def test_a_redirect_with_a_password_is_not_followed() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://me:hush@{request.host}/x?there"})

    async with serving(answer) as url, HttpClient(url, {"Authorization": "Bearer x"}) as client:
        for ask in (batches(client), client.query("/x", [b"{}"]), client.query("/x")):
            with pytest.raises(RedirectedElsewhere) as refused:
                await ask
            assert "hush" not in str(refused.value)


async def test_a_document_that_is_left_unread_ends_its_request() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        await stream.write(b"{")
        begun.set()
        try:
            while True:
                await stream.write(b" " * 2**16)
        except ConnectionError:
            left.set()
            raise
        return stream

    async with serving(answer) as url, HttpClient(url, {}) as client:
        asked = asyncio.create_task(batches(client))
        await begun.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.wait_for(left.wait(), 300)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n", [[b"1", b"2"]]),
        (b'event: error\ndata: {"x":1}', [[b'{"x":1}']]),
        (b": nothing\n\n", []),
        (b'\xef\xbb\xbf{"x":1}', [[b'{"x":1}']]),
    ],
)
async def test_a_document_may_be_a_stream(body: bytes, expected: list[list[bytes]]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client) == expected


def test_a_byte_order_mark_may_come_in_pieces() -> None:
    payloads = Payloads()
    found = [each for byte in b"\xef\xbb\xbfdata: 1\n\n" for each in payloads.take(bytes((byte,)))]
    assert found == [b"1"]


async def test_the_words_of_a_status_are_not_the_servers() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, reason="Wrong key hush")

    async with serving(answer) as url, HttpClient(url, {}) as client:
        with pytest.raises(BadStatus) as refused:
            await client.query("/x")
        assert str(refused.value) == "401 Unauthorized"


@pytest.mark.parametrize("location", ["", "ftp://127.0.0.1/x"])
async def test_a_redirect_that_leads_nowhere_fails(location: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": location})

    async with serving(answer) as url, HttpClient(url, {}) as client:
        with pytest.raises(RedirectedElsewhere):
            await batches(client)


async def test_of_an_error_that_has_no_end_the_beginning_is_read() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(status=400)
        await stream.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await stream.write(b"x" * 2**16)
        return stream

    async with serving(answer) as url, HttpClient(url, {}) as client:
        for ask in (client.query("/x"), client.query("/x", [b"{}"]), batches(client)):
            with pytest.raises(BadStatus) as refused:
                await ask
            assert refused.value.body == b"x" * 2**16


async def test_an_answer_that_is_one_document_is_one_payload() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"a": [1]}, dumps=lambda value: json.dumps(value, indent=1))

    async with serving(answer) as url, HttpClient(url, {}) as client:
        [[payload]] = await batches(client)
        assert json.loads(payload) == {"a": [1]}


async def test_a_web_page_is_no_answer() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>Sign in</html>", content_type="text/html")

    async with serving(answer) as url, HttpClient(url, {}) as client:
        with pytest.raises(Unreadable, match="web page"):
            await batches(client)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b'\xef\xbb\xbfdata: {"a":1}\n\n', [b'{"a":1}']),
        (b'error: {"code":500}\n\n', [b'{"code":500}']),
        (b'{"error":"x"}\n', [b'{"error":"x"}']),
        (b": hello\nevent: error\ndata: {}\n\n", [b"{}"]),
    ],
)
def test_payloads_of_odd_streams(lines: bytes, expected: list[bytes]) -> None:
    assert Payloads().take(lines) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://far.example/v1", "http://proxy:3128"),
        ("http://far.example/v1", None),
        ("https://near.example/v1", None),
        ("https://127.0.0.1:9", None),
        ("https://localhost:9", None),
    ],
)
def test_the_proxy_of_the_environment_is_used_for_other_machines(
    url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near.example")
    assert proxy_of(url) == expected


async def test_requests_for_other_machines_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(f"{request.method} {request.raw_path if hasattr(request, 'raw_path') else request.path}")
        return web.Response(body=b"data: 1\n\n")

    server = web.ServerRunner(web.Server(answer))
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.addresses[0][1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    try:
        async with HttpClient("http://far.example", {}) as client:
            assert await batches(client) == [[b"1"]]
    finally:
        await server.cleanup()
    assert asked == ["POST http://far.example/x"]


async def test_a_server_that_moves_is_posted_to_where_it_is_now() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=f"data: {request.url.port}\n\n".encode())

    async with serving(answer) as first, serving(answer) as second:
        urls = [first, second, second]
        async with HttpClient(lambda: urls[0], {}) as client:
            while urls:
                assert await batches(client) == [[urls[0].rpartition(":")[2].encode()]]
                urls.pop(0)


@pytest.mark.parametrize("size", [2**20, 2**20 + 1])
async def test_bodies_of_any_length_arrive(size: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"data: %d\n\n" % len(await request.read()))

    async with serving(answer) as url, HttpClient(url, {}) as client:
        assert await batches(client, (b"x" * size,)) == [[b"%d" % size]]
