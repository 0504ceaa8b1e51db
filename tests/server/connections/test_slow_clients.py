"""Clients that do not read what they are sent, or send a message bit by bit."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from slipring.core.limits import Limits
from slipring.server.connections.slow_clients import PROGRESS_BYTES, ConnectionState
from slipring.server.endpoints.replies import _PIECE_BYTES
from slipring.server.transports import websocket
from tests.harness import PuppetEngine, Running, serve
from tests.server.connections.limited import (
    KEY_OF_A,
    KEY_OF_B,
    KEYS,
    MIB,
    PAGE_BYTES,
    Clock,
    cut,
    length_of,
    narrow_all,
    request,
    store_large,
    unread_response,
)
from tests.server.raw import (
    CONTINUATION,
    PING,
    PONG,
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
        async with unread_response(server, response_id) as raw:
            clock.pass_by(30)
            assert server.service.connections.unread.used_bytes
            clock.pass_by(1)
            assert not server.service.connections.unread.used_bytes
            assert await cut(raw)


async def test_a_client_that_reads_slowly_gets_more_time() -> None:
    async with serve() as server:
        response_id = await store_large(server, "any", 4 * MIB)
        clock, connections = Clock(server), server.service.connections
        async with unread_response(server, response_id) as raw:
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
        async with unread_response(server, response_id) as raw:
            (connection,) = server.service.connections.slow_clients._unread
            assert connection.unsent_bytes < MIB
            assert server.service.connections.unread.used_bytes > 2 * MIB
            clock.pass_by(31)
            assert await cut(raw)
            await until(lambda: connection.queued_bytes is None)


async def test_the_end_of_a_large_response_is_not_lost_to_make_room_for_another_connection() -> None:
    """A connection whose request has ended is idle, and may be closed at once with what it has not sent. The
    last piece of a body is too small to wait by itself until it is read."""
    async with serve(limits=Limits(max_connections=1)) as server:
        connections = server.service.connections
        response_id = await store_large(server, "any", _PIECE_BYTES + 50_000)
        await until(lambda: all(each.state is ConnectionState.IDLE for each in connections._known))
        Clock(server, narrows=False)
        narrow_all(server, PAGE_BYTES)
        async with open_tcp(server, small_buffers=True, buffer_bytes=PAGE_BYTES) as raw:
            await raw.send(request("GET", f"/v1/responses/{response_id}", "Connection: close\r\n"))
            length = length_of(await raw.read_head())
            (connection,) = connections._known
            body = await raw._read(_PIECE_BYTES)
            await until(lambda: connection.queued_bytes is None or not connection.queued_bytes())
            assert connection.unsent_bytes > 2 * PAGE_BYTES, "the client does not read the last piece"
            async with open_tcp(server) as other:
                await other.send(request("GET", "/v1/models"))
                refused = await other.read_head()
            assert len(body + await raw.ended()) == length
            assert refused.startswith(b"HTTP/1.1 503 "), "there was no room to make"


async def test_a_closing_connection_whose_response_is_not_read_is_aborted() -> None:
    """Closing a connection waits until everything has been sent."""
    async with serve() as server:
        response_id = await store_large(server, "any", 4 * MIB)
        clock = Clock(server)
        async with unread_response(server, response_id, "Connection: close\r\n") as raw:
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
        small = await store_large(server, "key-of-b", MIB // 2)
        stop_clock(server)
        connections = server.service.connections
        async with (
            unread_response(server, large, KEY_OF_A) as first,
            unread_response(server, small, KEY_OF_B),
            open_tcp(server, small_buffers=True, buffer_bytes=PAGE_BYTES) as second,
        ):
            await second.send(request("GET", f"/v1/responses/{large}", KEY_OF_A))
            # Not read before: a response that is read in time is not cut.
            await until(lambda: bool(connections.dropped))
            assert await cut(first)
            assert connections.dropped == {"unread": 1}
            assert connections.unread.used_by("b")
            await second.read_head()
            assert 0 < connections.unread.used_by("a") <= 5 * MIB


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
