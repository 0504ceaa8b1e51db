"""Limits on connections: their number, their deadlines, and the bytes they may hold."""

import asyncio
import contextlib
import io
import json
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest

from slipring.core.limits import Limits
from slipring.server.connections.open_connections import room_for_connections
from slipring.server.connections.slow_clients import PROGRESS_BYTES
from slipring.server.transports import websocket
from tests import wire
from tests.harness import FAST, PuppetEngine, Running, serve
from tests.server.raw import (
    CONTINUATION,
    PING,
    PONG,
    SMALL_BUFFER_BYTES,
    TEXT,
    RawSocket,
    fill,
    frame,
    only_client,
    open_raw,
    open_tcp,
    stop_clock,
    until,
)

MIB = 2**20
KEYS = ("a:key-of-a", "b:key-of-b")
KEY_OF_A, KEY_OF_B = "Authorization: Bearer key-of-a\r\n", "Authorization: Bearer key-of-b\r\n"


class Clock:
    """The clock of a server's connections, advanced by the test."""

    def __init__(self, server: Running, *, narrows: bool = True) -> None:
        """``narrows``: gives all connections a small send buffer."""
        stop_clock(server)
        if narrows:
            narrow_all(server)
        self._connections = server.service.connections
        self._now = self._connections._clock()
        for watch in (self._connections, self._connections.slow_clients, self._connections.unfinished):
            watch._clock = lambda: self._now

    def pass_by(self, seconds: float) -> None:
        self._now += seconds
        self._connections.tick()


def request(method: str, path: str, more: str = "", body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}"
    return (head + (f"Content-Length: {size}\r\n" if size else "") + "\r\n").encode() + body


async def store_large(server: Running, key: str, size: int) -> str:
    """Store a response of about this size; returns its id."""
    body = io.BytesIO(json.dumps({"input": "hello", "instructions": "x" * size}).encode())
    headers = {"Authorization": f"Bearer {key}"}
    async with server.http.post(f"{server.url}/responses", data=body, headers=headers) as answer:
        return str((await answer.json())["id"])


def narrow_all(server: Running) -> None:
    """Give all later connections of the server a small send buffer, whatever the system's default is."""
    (acceptor,) = server.server._acceptors
    acceptor._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)


async def ask_and_not_read(server: Running, raw: RawSocket, response_id: str, key: str) -> None:
    """Send a GET whose response is larger than all buffers, and wait until they are full."""
    unread = server.service.connections.unread
    before = unread.used_bytes
    await raw.send(request("GET", f"/v1/responses/{response_id}", key))
    await until(lambda: unread.used_bytes > before)


async def cut(raw: RawSocket) -> bool:
    """Whether the server closed a connection before its whole response had arrived."""
    received = await raw.ended()
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
    return len(body) < length


async def read_error(raw: RawSocket) -> tuple[int, str]:
    """The status and the code of an error response; the connection may stay open. One that is due to overload
    says when to try again."""
    head = await raw.read_head()
    length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
    body = json.loads(await raw._read(length))
    wire.check_http_error(body)
    status = int(head.split()[1])
    assert (b"\r\nretry-after: 1\r\n" in head.lower()) == (status in (429, 503))
    return status, body["error"]["code"]


# Clients that do not read.


async def test_a_client_that_begins_to_read_late_is_not_closed() -> None:
    async with serve() as server:
        clock = Clock(server)
        async with open_raw(server, small_buffers=True) as raw:
            await raw.create(input="hello", instructions="x" * MIB, store=False)
            await until(lambda: server.service.connections.unread.used_bytes > 0)
            only_client(server).tick()
            clock.pass_by(29)
            for kind in ("response.created", "response.in_progress"):
                assert (await raw.receive_event())["type"] == kind


async def test_an_sse_client_that_begins_to_read_late_is_not_closed() -> None:
    async with serve() as server:
        clock = Clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            body = json.dumps({"input": "hello", "instructions": "x" * MIB, "stream": True}).encode()
            await raw.send(request("POST", "/v1/responses", "Connection: close\r\n", body))
            await until(lambda: server.service.connections.unread.used_bytes > 0)
            only_client(server).tick()
            clock.pass_by(29)
            assert b"data: [DONE]" in await raw.ended()


async def test_a_connection_whose_json_response_is_not_read_is_closed() -> None:
    async with serve() as server:
        response_id = await store_large(server, "any", 4 * MIB)
        clock = Clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            await ask_and_not_read(server, raw, response_id, "")
            clock.pass_by(30)
            assert server.service.connections.unread.used_bytes
            clock.pass_by(1)
            assert not server.service.connections.unread.used_bytes
            assert await cut(raw)


async def test_a_client_that_reads_slowly_gets_more_time() -> None:
    async with serve() as server:
        response_id = await store_large(server, "any", 4 * MIB)
        clock, connections = Clock(server), server.service.connections
        async with open_tcp(server, small_buffers=True) as raw:
            await ask_and_not_read(server, raw, response_id, "")
            (connection,) = connections.slow_clients._unread

            def unread() -> int:
                return connection.undelivered_bytes + connection.queued_bytes()

            for _ in range(5):
                clock.pass_by(0)
                before = unread()
                while unread() > before - 2 * PROGRESS_BYTES:
                    await raw.receive()
                clock.pass_by(29)
                assert not connections.dropped
            assert connections.unread.used_bytes


async def test_a_client_that_reads_what_the_kernel_holds_is_not_dropped() -> None:
    """The kernel holds megabytes for a client with a small buffer, and takes more only when many are read."""
    async with serve() as server, open_raw(server, small_buffers=True) as raw:
        client = only_client(server)
        clock = Clock(server, narrows=False)
        fill(server, 16 * MIB)
        await until(lambda: client._http.unsent_bytes < 15 * MIB)
        for _ in range(5):
            clock.pass_by(0)
            before = client._http.undelivered_bytes
            while client._http.undelivered_bytes > before - 2 * PROGRESS_BYTES:
                await raw.receive()
            clock.pass_by(29)
            assert not server.service.connections.dropped
        assert client._http.unsent_bytes
        clock.pass_by(31)
        assert server.service.connections.dropped == {"unread": 1}


async def test_what_is_not_written_yet_of_a_response_counts_as_unread() -> None:
    """A large body is written piece by piece."""
    async with serve() as server:
        response_id = await store_large(server, "any", 4 * MIB)
        clock = Clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            await ask_and_not_read(server, raw, response_id, "")
            (connection,) = server.service.connections.slow_clients._unread
            assert connection.unsent_bytes < MIB
            assert server.service.connections.unread.used_bytes > 2 * MIB
            clock.pass_by(31)
            assert await cut(raw)
            await until(lambda: connection.queued_bytes is None)


async def test_a_closing_connection_whose_response_is_not_read_is_aborted() -> None:
    """Closing a connection waits until everything has been sent."""
    async with serve() as server:
        response_id = await store_large(server, "any", 4 * MIB)
        clock = Clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            await ask_and_not_read(server, raw, response_id, "Connection: close\r\n")
            clock.pass_by(31)
            assert await cut(raw)
            await until(lambda: server.service.connections.open <= 1)


async def test_a_connection_whose_last_bytes_are_not_read_is_aborted() -> None:
    """They are too few to pause writing, and closing a connection waits for them."""
    async with serve() as server:
        clock = Clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            await until(lambda: any(each._wire for each in server.service.connections._known))
            (connection,) = server.service.connections._known
            connection._wire.set_write_buffer_limits(high=2**30)  # so that writing is never paused
            connection._wire.write(b"x" * 4 * MIB)
            await raw.send(request("GET", "/health", "Connection: close\r\n"))
            await until(lambda: connection.transport is None or connection.transport.is_closing())
            assert connection.unsent_bytes
            clock.pass_by(31)
            await until(lambda: not server.service.connections.open)


@pytest.mark.parametrize("bounds", [{"tenant_unread_bytes": 5 * MIB}, {"unread_bytes": 5 * MIB}])
async def test_unread_bytes_are_limited(bounds: dict[str, int]) -> None:
    """Above the limit, the connection that has been unread longest is closed, but not another tenant's that
    holds less."""
    limits = Limits(**bounds)
    async with serve(limits=limits, api_key=KEYS) as server:
        large = await store_large(server, "key-of-a", 4 * MIB)
        small = await store_large(server, "key-of-b", MIB)
        stop_clock(server)
        narrow_all(server)
        async with (
            open_tcp(server, small_buffers=True) as first,
            open_tcp(server, small_buffers=True) as other,
            open_tcp(server, small_buffers=True) as second,
        ):
            await ask_and_not_read(server, first, large, KEY_OF_A)
            await ask_and_not_read(server, other, small, KEY_OF_B)
            open_before = server.service.connections.open
            await second.send(request("GET", f"/v1/responses/{large}", KEY_OF_A))
            # Not read before: a response that is read in time is not cut.
            await until(lambda: server.service.connections.open < open_before)
            assert await cut(first)
            assert server.service.connections.unread.used_by("b")
            await second.read_head()
            assert server.service.connections.unread.used_by("a") <= 5 * MIB


async def test_queued_events_of_a_socket_count_as_unread() -> None:
    engine = PuppetEngine()
    limits = Limits(tenant_unread_bytes=MIB, send_buffer_bytes=64 * MIB)
    async with serve(engine, limits=limits) as server:
        clock, connections = Clock(server), server.service.connections
        async with open_raw(server, small_buffers=True) as raw:
            performances = []
            for lane in "abcdef":
                await raw.create(input="hello", instructions="x" * (MIB // 4), stream_id=lane, store=False)
                performances.append(await engine.next())
                assert [(await raw.receive_event())["stream_id"] for _ in range(2)] == [lane, lane]
            for performance in performances:
                performance.finish()
            await until(lambda: sum(each.unread_bytes for each in connections._known) > MIB)
            clock.pass_by(1)
            await until(lambda: not server.service.clients)
            assert not connections.unread.used_bytes


# Requests that do not arrive.


async def test_a_silent_connection_is_closed() -> None:
    async with serve(limits=Limits()) as server:
        clock = Clock(server)
        async with open_tcp(server) as raw:
            await until(lambda: server.service.connections.open == 1)
            clock.pass_by(10)
            assert server.service.connections.open == 1
            clock.pass_by(1)
            assert await raw.ended() == b""
            assert server.service.connections.open == 0


async def test_a_request_head_that_arrives_too_slowly_is_refused() -> None:
    async with serve(limits=Limits()) as server:
        clock = Clock(server)
        async with open_tcp(server) as raw:
            await raw.send(b"GET /v1/models HTTP/1.1\r\nHost: local")
            await until(lambda: any(c._head_bytes for c in server.service.connections._known))
            clock.pass_by(6)
            await raw.send(b"host\r\nX-More: ")
            clock.pass_by(6)
            assert await read_error(raw) == (408, "request_timeout")
            assert await raw.ended() == b""


async def test_a_request_head_that_never_ends_is_refused() -> None:
    async with serve(limits=Limits()) as server, open_tcp(server) as raw:
        await raw.send(b"GET /v1/models HTTP/1.1\r\n")
        for number in range(100):
            with contextlib.suppress(OSError):
                await raw.send(f"X-{number}: {'x' * 4000}\r\n".encode())
        assert await read_error(raw) == (431, "headers_too_large")


async def test_an_idle_connection_is_closed_after_the_keepalive_timeout() -> None:
    limits = Limits(keepalive_timeout_s=0.05)
    async with serve(limits=limits) as server, open_tcp(server) as raw:
        await raw.send(request("GET", "/v1/models"))
        assert (await raw.read_head()).startswith(b"HTTP/1.1 200 ")
        await raw.ended()


async def test_the_next_request_has_its_own_deadline() -> None:
    async with serve(limits=Limits()) as server:
        clock = Clock(server)
        async with open_tcp(server) as raw:
            for _ in range(3):
                await raw.send(request("GET", "/health"))
                head = await raw.read_head()
                await raw._read(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                clock.pass_by(60)
            await raw.send(b"GET /hea")
            await until(lambda: any(c._head_bytes for c in server.service.connections._known))
            clock.pass_by(11)
            assert await read_error(raw) == (408, "request_timeout")


async def test_a_body_that_does_not_arrive_is_refused() -> None:
    async with serve(limits=Limits(body_timeout_s=0.05)) as server, open_tcp(server) as raw:
        await raw.send(request("POST", "/v1/responses", body=b'{"input":', length=100))
        assert await read_error(raw) == (408, "request_timeout")
        assert not server.service.requests.used_bytes


async def test_bodies_being_received_are_limited_per_tenant_and_in_total() -> None:
    limits = Limits(tenant_request_bytes=300_000, request_bytes=500_000)
    half = b'"' + b"x" * 200_000
    async with serve(limits=limits, api_key=KEYS) as server:
        requests = server.service.requests
        async with open_tcp(server) as first, open_tcp(server) as second, open_tcp(server) as third:
            await first.send(request("POST", "/v1/responses", KEY_OF_A, half, length=900_000))
            await until(lambda: requests.used_by("a") == len(half))
            await second.send(request("POST", "/v1/responses", KEY_OF_A, half, length=900_000))
            assert await read_error(second) == (429, "rate_limit_exceeded")
            await third.send(request("POST", "/v1/responses", KEY_OF_B, half, length=900_000))
            await until(lambda: requests.used_by("b") == len(half))
            async with open_tcp(server) as fourth:
                await fourth.send(request("POST", "/v1/responses", KEY_OF_B, b" " * 99_999, length=100_000))
                assert await read_error(fourth) == (503, "service_unavailable")
        await until(lambda: not requests.used_bytes)
        assert (await server.post(key="key-of-a", input="hello"))[0] == 200


async def test_a_body_beyond_the_limit_is_refused_before_it_arrives() -> None:
    async with serve(limits=Limits(max_frame_bytes=1000)) as server, open_tcp(server) as raw:
        await raw.send(request("POST", "/v1/responses", length=1001))
        assert await read_error(raw) == (413, "request_too_large")


async def test_a_body_without_a_length_is_refused_beyond_the_limit() -> None:
    async with serve(limits=Limits(max_frame_bytes=1000)) as server, open_tcp(server) as raw:
        chunk = b"3e9\r\n" + b"x" * 1001 + b"\r\n"
        await raw.send(request("POST", "/v1/responses", "Transfer-Encoding: chunked\r\n") + chunk)
        assert await read_error(raw) == (413, "request_too_large")


# Unfinished messages.


async def test_an_unfinished_message_that_stops_closes_the_socket() -> None:
    async with serve() as server:
        clock = Clock(server)
        async with open_raw(server) as raw:
            await raw.send_frame(TEXT, b'{"type":', final=False)
            for _ in range(4):
                await raw.send_frame(PING, b"still here")
                assert (await raw.receive_frame())[0] == PONG
                clock.pass_by(10)
            assert await raw.closed() == 1008


async def test_an_unfinished_message_that_continues_is_waited_for() -> None:
    async with serve() as server:
        clock = Clock(server)

        def is_unfinished(least: int) -> bool:
            return max(each.unfinished_bytes for each in server.service.connections._known) > least

        async with open_raw(server) as raw:
            await raw.send_frame(TEXT, b'{"type": "response.create", "input": "', final=False)
            for number in range(4):
                await raw.send_frame(CONTINUATION, b"x" * PROGRESS_BYTES, final=False)
                received = (number + 1) * PROGRESS_BYTES
                await until(partial(is_unfinished, received))
                clock.pass_by(20)
            await raw.send_frame(CONTINUATION, b'"}')
            assert (await raw.receive_event())["type"] == "response.created"
            assert not server.service.connections.unfinished._unfinished


async def test_a_message_that_the_server_does_not_read_has_no_deadline() -> None:
    """The client is behind with reading, so the server does not read what it sends."""
    engine, limits = PuppetEngine(), Limits(send_buffer_bytes=1024, send_timeout_s=1000)
    async with serve(engine, limits=limits) as server:
        clock = Clock(server)
        async with open_raw(server, small_buffers=True) as raw:
            client = only_client(server)
            large = {"instructions": "x" * MIB, "store": False}
            await raw.create(input="one", stream_id="a", **large)
            await engine.next()
            await until(lambda: client.full)
            sending = asyncio.create_task(raw.create(input="two", stream_id="b", **large))
            await until(lambda: client._http._reading_paused)
            clock.pass_by(1)
            clock.pass_by(100)
            assert not server.service.connections.dropped
            while (await raw.receive_event())["stream_id"] == "a":
                pass
            await sending


async def test_bytes_of_unfinished_messages_are_limited() -> None:
    limits = Limits(tenant_request_bytes=MIB)
    async with serve(limits=limits, api_key=KEYS) as server:
        requests = server.service.requests
        async with open_raw(server, more=KEY_OF_A) as first, open_raw(server, more=KEY_OF_A) as second:
            await first.send_frame(TEXT, b"x" * 700_000, final=False)
            await until(lambda: requests.used_by("a") > 600_000)
            await second.send_frame(TEXT, b"x" * 700_000, final=False)
            assert await second.closed() == 1013
            async with open_raw(server, more=KEY_OF_B) as other:
                await other.create(input="x" * 500_000)
                assert (await other.receive_event())["type"] == "response.created"
        await until(lambda: not requests.used_bytes)


@asynccontextmanager
async def slow_socket(server: Running) -> AsyncIterator[RawSocket]:
    """A WebSocket with small buffers on both sides, to a server whose clock stands still."""
    Clock(server)
    async with open_raw(server, small_buffers=True) as raw:
        yield raw


async def test_a_refused_message_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is kept or counted, whatever its client still sends. It is not disconnected at once,
    because it has not read what was sent before."""
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 600.0)
    piece = frame(CONTINUATION, bytes(2 * MIB), final=False)
    engine = PuppetEngine()
    limits = Limits(tenant_request_bytes=2 * MIB, send_buffer_bytes=1024, send_timeout_s=1000)
    async with serve(engine, limits=limits) as server, slow_socket(server) as raw:
        client, connections = only_client(server), server.service.connections
        await raw.create(input="one", instructions="x" * MIB, store=False)
        await engine.next()
        await until(lambda: client._writer is not None)
        used_bytes = server.service.requests.used_bytes
        await raw.send(frame(TEXT, b"{", final=False) + piece)
        await until(lambda: bool(connections.dropped))
        assert client._socket._parser is None, "what had arrived is freed"
        for _ in range(4):
            await raw.send(piece)
        assert client._http.unfinished_bytes == 0
        assert server.service.requests.used_bytes <= used_bytes
        assert connections.dropped == {"message_memory": 1}
        assert await raw.closed() == 1013


async def test_messages_before_a_refused_one_are_still_read() -> None:
    """A reader that has not parsed all that arrived, because messages wait, lives until they are read."""
    engine, limits = PuppetEngine(), Limits(send_buffer_bytes=1024, send_timeout_s=1000)
    async with serve(engine, limits=limits) as server, slow_socket(server) as raw:
        client = only_client(server)
        await raw.create(input="one", instructions="x" * MIB, store=False)
        await engine.next()
        await until(lambda: client.full)
        await raw.send(frame(TEXT, b"{}") * 6000)
        await until(lambda: client._socket._reader._stalled_reader is not None)
        client._http.refuse_message(1013, "too many unfinished messages")
        assert client._socket._parser is not None
        assert await raw.closed() == 1013


# Number of connections.


@asynccontextmanager
async def silent(server: Running, count: int) -> AsyncIterator[list[RawSocket]]:
    """Connections that send nothing, opened one after the other."""
    async with contextlib.AsyncExitStack() as stack:
        raws = []
        for _ in range(count):
            before = server.service.connections.open
            raws.append(await stack.enter_async_context(open_tcp(server)))
            await until(lambda n=before: server.service.connections.open > n)  # type: ignore[misc]
        yield raws


async def test_an_anonymous_connection_is_closed_to_make_room() -> None:
    limits = Limits(max_connections=100, anonymous_share=0.05)
    async with serve(limits=limits, api_key=KEYS) as server:
        clock, connections = Clock(server), server.service.connections
        async with silent(server, 5) as raws:
            clock.pass_by(1)
            async with open_raw(server, more=KEY_OF_A) as known, open_tcp(server) as sixth:
                assert await raws[0].ended() == b"", "the oldest is closed"
                await until(lambda: connections.open == 6)
                await known.create(input="hello")
                assert (await known.receive_event())["type"] == "response.created"
                await sixth.send(request("GET", "/v1/models", KEY_OF_B))
                assert (await sixth.read_head()).startswith(b"HTTP/1.1 200 ")


async def test_a_new_anonymous_connection_is_not_closed_at_once() -> None:
    """Others wait until then, and are served."""
    limits = Limits(max_connections=100, anonymous_share=0.01)
    async with serve(limits=limits, api_key=KEYS) as server:
        Clock(server)
        async with silent(server, 1) as (first,), open_tcp(server) as second:
            await second.send(request("GET", "/v1/models", KEY_OF_B))
            await first.send(request("GET", "/v1/models", KEY_OF_A))
            assert (await first.read_head()).startswith(b"HTTP/1.1 200 ")
            assert (await second.read_head()).startswith(b"HTTP/1.1 200 ")


async def test_a_tenant_may_not_exceed_its_share_of_the_connections() -> None:
    limits = Limits(max_connections=4, tenant_share=0.5, anonymous_share=0.5)
    async with serve(limits=limits, api_key=KEYS) as server:
        async with open_raw(server, more=KEY_OF_A), open_raw(server, more=KEY_OF_A):
            async with open_tcp(server) as raw:
                await raw.send(request("GET", "/v1/models", KEY_OF_A))
                assert await read_error(raw) == (429, "rate_limit_exceeded")
                assert await raw.ended() == b"", "the connection is not kept open"
            async with open_raw(server, more=KEY_OF_B) as other:
                await other.create(input="hello")
                assert (await other.receive_event())["type"] == "response.created"
        await until(lambda: not server.service.connections._by_tenant)


async def test_an_idle_connection_of_the_same_tenant_is_closed_to_make_room() -> None:
    limits = Limits(max_connections=4, tenant_share=0.5, anonymous_share=0.5)
    async with serve(limits=limits, api_key=KEYS) as server, open_tcp(server) as idle:
        await idle.send(request("GET", "/v1/models", KEY_OF_A))
        await idle.read_head()
        async with open_raw(server, more=KEY_OF_A), open_raw(server, more=KEY_OF_A):
            await idle.ended()


async def test_without_keys_one_tenant_may_have_all_connections() -> None:
    limits = Limits(max_connections=2, anonymous_share=1.0)
    async with serve(limits=limits) as server, open_raw(server), open_raw(server) as second:
        await second.create(input="hello")
        assert (await second.receive_event())["type"] == "response.created"
        async with open_tcp(server) as raw:
            await raw.send(request("GET", "/v1/models"))
            assert await read_error(raw) == (503, "service_unavailable")


async def test_an_idle_connection_is_closed_to_make_room() -> None:
    limits = Limits(max_connections=1, anonymous_share=1.0)
    async with serve(limits=limits) as server, open_tcp(server) as idle:
        await idle.send(request("GET", "/v1/models"))
        await idle.read_head()
        async with open_raw(server) as raw:
            await idle.ended()
            await raw.create(input="hello")
            assert (await raw.receive_event())["type"] == "response.created"


# File descriptors.


def test_some_file_descriptors_are_reserved() -> None:
    assert room_for_connections(None, 20_000) == 20_000
    assert room_for_connections(1_000_000, 20_000) == 20_000
    assert room_for_connections(20_000, 20_000) == 16_000
    assert room_for_connections(256, 20_000) == 192
    assert room_for_connections(64, 20_000) == 1


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Use up all file descriptors of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux tells them")
async def test_running_out_of_file_descriptors_is_logged_and_survived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve(FAST) as server:
        loop = asyncio.get_running_loop()
        with socket.socket() as early:
            early.setblocking(False)
            with no_descriptor_left():
                await loop.sock_connect(early, ("127.0.0.1", server.server.port))
                assert await asyncio.wait_for(loop.sock_recv(early, 1), 300) == b"", (
                    "closed, not left waiting"
                )
        (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "out of file descriptors" in record.getMessage()
        async with server.http.get(server.url.removesuffix("/v1") + "/health") as answer:
            body = await answer.json()
        assert (answer.status, body["status"]) == (200, "degraded")
        assert "descriptors" in body["trouble"]
        assert (await server.post(input="hello"))[0] == 200
