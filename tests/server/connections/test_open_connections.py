"""The number of open connections, and how long each may wait with its next request."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from slipring.core.limits import Limits
from slipring.server.connections.open_connections import log_reduced_room, room_for_connections
from tests.harness import FAST, Running, serve
from tests.server.connections.limited import (
    KEY_OF_A,
    KEY_OF_B,
    KEYS,
    Clock,
    read_error,
    request,
)
from tests.server.raw import (
    RawSocket,
    open_raw,
    open_tcp,
    until,
)

# Requests that do not begin, or whose head does not arrive.


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


@pytest.mark.parametrize(
    ("room", "asked", "is_logged"),
    [
        (16_000, Limits().max_connections, False),  # at every start of every server would be too often
        (900, Limits().max_connections, True),
        (16_000, 50_000, True),
        (500, 500, False),
        (400, 500, True),
    ],
)
def test_fewer_connections_are_logged_if_they_were_asked_for_or_are_few(
    room: int, asked: int, *, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log_reduced_room(room, asked)
    assert ("ulimit -n" in caplog.text) is is_logged
