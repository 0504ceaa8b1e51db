"""Dropped connections: their tenant can continue chains that were not stored, for a while."""

import asyncio
import gc
import struct
import sys
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET

import pytest

from slipring.core.chain.state_cache import ConnectionCache, SharedScopes
from slipring.core.limits import Limits
from slipring.core.session.session import Session
from slipring.server.parking import Parking
from tests.core.connection import node
from tests.harness import PuppetEngine, Running, Socket, serve
from tests.server.raw import until

TWO_TENANTS = ("ours:our-key", "theirs:their-key")


async def cut(server: Running, socket: Socket) -> None:
    """Reset the TCP connection of a socket, without a close frame."""
    connection = socket.ws.get_extra_info("socket")
    connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    transport = socket.ws._conn.transport
    assert transport is not None
    transport.abort()
    await until(lambda: not server.service.sockets)


async def chain(socket: Socket, turns: int = 3) -> str:
    """Make a chain that is not stored; returns the id of its last response."""
    previous: str | None = None
    for number in range(turns):
        response = await socket.response(input=f"turn {number}", store=False, previous_response_id=previous)
        previous = response["id"]
    assert previous is not None
    return previous


async def test_a_chain_continues_over_a_new_socket() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        async with server.connect() as socket:
            follow_up = await socket.response(input="go on", store=False, previous_response_id=tip)
            assert follow_up["previous_response_id"] == tip
            again = await socket.response(input="more", store=False, previous_response_id=follow_up["id"])
            assert again["usage"]["input_tokens"] > follow_up["usage"]["input_tokens"]


async def test_the_parked_history_is_complete() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="remember", store=False)
            performance = await engine.next()
            performance.say("I do")
            performance.finish()
            tip = (await socket.until("response.completed"))[-1]["response"]["id"]
            # A turn that was interrupted can be made again.
            await socket.create(input="lost", store=False, previous_response_id=tip)
            lost = await engine.next()
            await socket.until("response.in_progress")
            await cut(server, socket)
            await asyncio.wait_for(lost.stopped.wait(), 300)
        async with server.connect() as socket:
            await socket.create(input="again", store=False, previous_response_id=tip)
            performance = await engine.next()
            assert [b"remember" in item.raw for item in performance.job.context()] == [True, False, False]
            performance.finish()
            await socket.until("response.completed")


async def test_a_parked_response_can_be_forked() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        async with server.connect() as socket:
            for lane in ("a", "b"):
                await socket.response(input="x", store=False, previous_response_id=tip, stream_id=lane)


async def test_another_tenant_cannot_continue_the_chain() -> None:
    async with serve(api_key=TWO_TENANTS) as server:
        async with server.connect(key="our-key", abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        async with server.connect(key="their-key") as socket:
            error = await socket.error(input="x", store=False, previous_response_id=tip)
            assert error["error"]["code"] == "previous_response_not_found"
        async with server.connect(key="our-key") as socket:
            await socket.response(input="x", store=False, previous_response_id=tip)


async def test_http_requests_do_not_find_parked_chains() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        status, error = await server.post(input="x", previous_response_id=tip)
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")


async def assert_not_found_on_a_new_socket(server: Running, tip: str) -> None:
    async with server.connect() as socket:
        error = await socket.error(input="x", store=False, previous_response_id=tip)
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_connection_that_is_closed_properly_is_not_parked() -> None:
    async with serve() as server:
        async with server.connect() as socket:
            tip = await chain(socket)
        await until(lambda: not server.service.sockets)
        assert len(server.service.parking) == 0
        await assert_not_found_on_a_new_socket(server, tip)


async def test_zero_retention_parks_nothing() -> None:
    async with serve() as server:
        headers = {"OpenAI-Beta": "responses_websockets=2026-02-06, slipring_zero_retention=v1"}
        async with server.connect(headers=headers, abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        assert len(server.service.parking) == 0
        await assert_not_found_on_a_new_socket(server, tip)


async def test_parking_can_be_turned_off() -> None:
    async with serve(limits=Limits(parked_s=0)) as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        await assert_not_found_on_a_new_socket(server, tip)
        assert server.service.scopes.process.used_bytes == 0


async def test_parked_chains_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        service = server.service
        later = 1e12
        assert service.parking.find("default", tip, later) is None
        service.parking.sweep(later)
        assert (len(service.parking), service.parking.used_bytes) == (0, 0)
        assert service.scopes.process.used_bytes == 0
        await assert_not_found_on_a_new_socket(server, tip)


async def test_a_cache_above_the_limit_is_not_kept() -> None:
    async with serve(limits=Limits(parked_bytes=1)) as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        await assert_not_found_on_a_new_socket(server, tip)
        assert server.service.scopes.process.used_bytes == 0


async def test_the_oldest_caches_are_dropped_first() -> None:
    tips = []
    async with serve() as measured:
        async with measured.connect(abandoned=True) as socket:
            await chain(socket)
            await cut(measured, socket)
        one = measured.service.parking.used_bytes
    async with serve(limits=Limits(parked_bytes=2 * one + one // 2)) as server:
        for _ in range(3):
            async with server.connect(abandoned=True) as socket:
                tips.append(await chain(socket))
                await cut(server, socket)
        await assert_not_found_on_a_new_socket(server, tips[0])
        async with server.connect() as socket:
            for tip in tips[1:]:
                await socket.response(input="x", store=False, previous_response_id=tip)


async def test_stored_responses_are_not_parked() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            await socket.response(input="x", store=True)
            await cut(server, socket)
        assert len(server.service.parking) == 0


async def test_an_unstored_child_of_a_stored_response_is_parked_with_its_chain() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            previous = None
            for store in (True, False):
                await socket.create(input="x", store=store, previous_response_id=previous)
                (await engine.next()).finish()
                previous = (await socket.until("response.completed"))[-1]["response"]["id"]
            await cut(server, socket)
        async with server.connect() as socket:
            await socket.create(input="x", store=False, previous_response_id=previous)
            performance = await engine.next()
            assert len(list(performance.job.context())) == 3
            performance.finish()
            await socket.until("response.completed")


async def test_a_chain_continues_after_its_connection_reached_the_age_limit() -> None:
    """The client gets an error and a close, reconnects, and continues."""
    async with serve() as server:
        async with server.connect() as socket:
            tip = await chain(socket)
            (connection,) = server.service.clients
            session: Session = connection.driver.session
            connection._run(session.tick(1e12))
            notice = await socket.receive()
            assert notice["error"]["code"] == "websocket_connection_limit_reached"
            assert await socket.closed() == 1000
        await until(lambda: not server.service.sockets)
        async with server.connect() as socket:
            await socket.response(input="moved", store=False, previous_response_id=tip)


def test_a_duration_of_zero_keeps_nothing() -> None:
    parking = Parking(0, 100)
    assert parking.find("t", "resp_1", 0.0) is None
    parking.sweep(0.0)
    assert len(parking) == 0


# Many caches.

LARGE = 2**40


def cache_with(scopes: SharedScopes, tenant: str, *response_ids: str) -> ConnectionCache:
    """The cache of a connection that has made these responses, each on another lane."""
    cache = ConnectionCache(LARGE, scopes.of(tenant))
    for response_id in response_ids:
        cache.remember(node(response_id), response_id)
    return cache


def calls_of(work: Callable[[], None]) -> int:
    """The number of Python function calls of a piece of work, including resumed generators."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    gc.disable()  # finalizers of earlier tests' garbage would be counted
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


def test_parking_a_cache_costs_the_same_however_many_are_parked() -> None:
    parking, scopes = Parking(120.0, LARGE), SharedScopes(LARGE, LARGE)
    caches = [cache_with(scopes, "t", f"resp_{number}") for number in range(500)]
    costs = {calls_of(lambda cache=cache: parking.park("t", cache, 0.0)) for cache in caches}  # type: ignore[misc]
    assert len(costs) == 1
    assert len(parking) == 500


def test_dropping_a_cache_costs_the_same_however_many_are_parked() -> None:
    scopes = SharedScopes(LARGE, LARGE)
    one = cache_with(scopes, "t", "resp_x").used_bytes
    costs = set()
    for room in (10, 200):
        parking = Parking(120.0, room * one + one // 2)
        for number in range(room):
            parking.park("t", cache_with(scopes, "t", f"resp_{number + 1000}"), 0.0)
        assert len(parking) == room
        cache = cache_with(scopes, "t", "resp_last")
        costs.add(calls_of(lambda parking=parking, cache=cache: parking.park("t", cache, 0.0)))  # type: ignore[misc]
        assert len(parking) == room
        assert parking.find("t", "resp_1000", 0.0) is None
    assert len(costs) == 1


def test_used_bytes_follow_evictions_by_other_limits() -> None:
    one = cache_with(SharedScopes(LARGE, LARGE), "t", "resp_x").used_bytes
    parking, scopes = Parking(120.0, LARGE), SharedScopes(3 * one, LARGE)
    parking.park("t", cache_with(scopes, "t", "resp_1", "resp_2"), 0.0)
    parking.park("t", cache_with(scopes, "t", "resp_3"), 0.0)
    assert parking.used_bytes == 3 * one
    cache_with(scopes, "t", "resp_4", "resp_5")  # the cache of an open connection
    assert parking.used_bytes == one
    assert [parking.find("t", f"resp_{number}", 0.0) is None for number in (1, 2, 3)] == [True, True, False]
    parking.sweep(1e12)
    assert (len(parking), parking.used_bytes) == (0, 0)


def test_a_tenant_that_parks_much_evicts_only_its_own_caches() -> None:
    scopes = SharedScopes(LARGE, LARGE)
    one = cache_with(scopes, "t", "resp_1").used_bytes
    parking = Parking(120.0, 3 * one)
    parking.park("quiet", cache_with(scopes, "quiet", "resp_q"), 0.0)
    for number in range(1, 9):
        parking.park("busy", cache_with(scopes, "busy", f"resp_{number}"), 0.0)
        assert parking.used_bytes <= 3 * one
    assert parking.find("quiet", "resp_q", 0.0) is not None
    kept = [number for number in range(1, 9) if parking.find("busy", f"resp_{number}", 0.0) is not None]
    assert kept == [7, 8]
