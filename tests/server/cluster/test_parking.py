"""Connections that are cut: what was not stored can be continued for a while, by whoever began it."""

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
from slipring.server.cluster.parking import Parking
from tests.core.stage import node
from tests.harness import PuppetEngine, Running, Socket, serve
from tests.server.raw import until

TWO_TENANTS = ("ours:our-key", "theirs:their-key")


async def cut(server: Running, socket: Socket) -> None:
    """Reset the connection under a socket, without a goodbye."""
    connection = socket.ws.get_extra_info("socket")
    connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    transport = socket.ws._conn.transport
    assert transport is not None
    transport.abort()
    await until(lambda: not server.service.sockets)


async def chain(socket: Socket, turns: int = 3) -> str:
    """A chain that is not stored; the id of its last response."""
    previous: str | None = None
    for number in range(turns):
        response = await socket.response(input=f"turn {number}", store=False, previous_response_id=previous)
        previous = response["id"]
    assert previous is not None
    return previous


async def test_a_chain_goes_on_over_a_new_socket() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        async with server.connect() as socket:
            follow_up = await socket.response(input="go on", store=False, previous_response_id=tip)
            assert follow_up["previous_response_id"] == tip
            again = await socket.response(input="more", store=False, previous_response_id=follow_up["id"])
            assert again["usage"]["input_tokens"] > follow_up["usage"]["input_tokens"]


async def test_nothing_of_the_history_is_lost() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server:
        async with server.connect(abandoned=True) as socket:
            await socket.create(input="remember", store=False)
            performance = await engine.next()
            performance.say("I do")
            performance.finish()
            tip = (await socket.until("response.completed"))[-1]["response"]["id"]
            # A turn that is cut off can be made again.
            await socket.create(input="lost", store=False, previous_response_id=tip)
            lost = await engine.next()
            await socket.until("response.in_progress")
            await cut(server, socket)
            await asyncio.wait_for(lost.stopped.wait(), 60)
        async with server.connect() as socket:
            await socket.create(input="again", store=False, previous_response_id=tip)
            performance = await engine.next()
            assert [b"remember" in item.raw for item in performance.job.context()] == [True, False, False]
            performance.finish()
            await socket.until("response.completed")


async def test_forks_of_a_parked_response_both_go_on() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        async with server.connect() as socket:
            for lane in ("a", "b"):
                await socket.response(input="x", store=False, previous_response_id=tip, stream_id=lane)


async def test_somebody_else_cannot_go_on() -> None:
    async with serve(api_key=TWO_TENANTS) as server:
        async with server.connect(key="our-key", abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        async with server.connect(key="their-key") as socket:
            error = await socket.error(input="x", store=False, previous_response_id=tip)
            assert error["error"]["code"] == "previous_response_not_found"
        async with server.connect(key="our-key") as socket:
            await socket.response(input="x", store=False, previous_response_id=tip)


async def test_nor_can_anybody_over_http() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        status, error = await server.post(input="x", previous_response_id=tip)
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")


async def refused_on_a_new_socket(server: Running, tip: str) -> None:
    async with server.connect() as socket:
        error = await socket.error(input="x", store=False, previous_response_id=tip)
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_client_that_says_goodbye_leaves_nothing() -> None:
    async with serve() as server:
        async with server.connect() as socket:
            tip = await chain(socket)
        await until(lambda: not server.service.sockets)
        assert len(server.service.parking) == 0
        await refused_on_a_new_socket(server, tip)


async def test_a_client_that_wants_nothing_kept_leaves_nothing() -> None:
    async with serve() as server:
        headers = {"OpenAI-Beta": "responses_websockets=2026-02-06, slipring_zero_retention=v1"}
        async with server.connect(headers=headers, abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        assert len(server.service.parking) == 0
        await refused_on_a_new_socket(server, tip)


async def test_it_can_be_turned_off() -> None:
    async with serve(limits=Limits(parked_s=0)) as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        await refused_on_a_new_socket(server, tip)
        assert server.service.scopes.process.used_bytes == 0


async def test_after_a_while_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
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
        await refused_on_a_new_socket(server, tip)


async def test_there_is_only_so_much_room() -> None:
    async with serve(limits=Limits(parked_bytes=1)) as server:
        async with server.connect(abandoned=True) as socket:
            tip = await chain(socket)
            await cut(server, socket)
        await refused_on_a_new_socket(server, tip)
        assert server.service.scopes.process.used_bytes == 0


async def test_the_oldest_make_room_first() -> None:
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
        await refused_on_a_new_socket(server, tips[0])
        async with server.connect() as socket:
            for tip in tips[1:]:
                await socket.response(input="x", store=False, previous_response_id=tip)


async def test_what_is_stored_is_not_parked() -> None:
    async with serve() as server:
        async with server.connect(abandoned=True) as socket:
            await socket.response(input="x", store=True)
            await cut(server, socket)
        assert len(server.service.parking) == 0


async def test_a_chain_that_builds_on_a_stored_response_is_parked_whole() -> None:
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


async def test_a_connection_that_is_too_old_is_told_first_and_can_be_left() -> None:
    """The client is told to move, moves, and goes on."""
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


def test_a_parking_without_time_keeps_nothing() -> None:
    parking = Parking(0, 100)
    assert parking.find("t", "resp_1", 0.0) is None
    parking.sweep(0.0)
    assert len(parking) == 0


# Many memories at once.

LARGE = 2**40


def memory_of(scopes: SharedScopes, tenant: str, *response_ids: str) -> ConnectionCache:
    """What a connection remembers that has made these responses, each on a lane of its own."""
    cache = ConnectionCache(LARGE, scopes.of(tenant))
    for response_id in response_ids:
        cache.remember(node(response_id), response_id)
    return cache


def calls_of(work: Callable[[], None]) -> int:
    """How many Python functions a piece of work calls, generators that go on included."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    gc.disable()  # what earlier tests have left behind would be finalized here, by functions that count too
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


def test_parking_one_memory_costs_the_same_however_many_are_parked() -> None:
    parking, scopes = Parking(120.0, LARGE), SharedScopes(LARGE, LARGE)
    caches = [memory_of(scopes, "t", f"resp_{number}") for number in range(500)]
    costs = {calls_of(lambda cache=cache: parking.park("t", cache, 0.0)) for cache in caches}  # type: ignore[misc]
    assert len(costs) == 1
    assert len(parking) == 500


def test_forgetting_one_memory_costs_the_same_however_many_are_parked() -> None:
    scopes = SharedScopes(LARGE, LARGE)
    one = memory_of(scopes, "t", "resp_x").used_bytes
    costs = set()
    for room in (10, 200):
        parking = Parking(120.0, room * one + one // 2)
        for number in range(room):
            parking.park("t", memory_of(scopes, "t", f"resp_{number + 1000}"), 0.0)
        assert len(parking) == room
        cache = memory_of(scopes, "t", "resp_last")
        costs.add(calls_of(lambda parking=parking, cache=cache: parking.park("t", cache, 0.0)))  # type: ignore[misc]
        assert len(parking) == room
        assert parking.find("t", "resp_1000", 0.0) is None
    assert len(costs) == 1


def test_the_sum_stays_right_when_other_bounds_evict_from_what_is_parked() -> None:
    one = memory_of(SharedScopes(LARGE, LARGE), "t", "resp_x").used_bytes
    parking, scopes = Parking(120.0, LARGE), SharedScopes(3 * one, LARGE)
    parking.park("t", memory_of(scopes, "t", "resp_1", "resp_2"), 0.0)
    parking.park("t", memory_of(scopes, "t", "resp_3"), 0.0)
    assert parking.used_bytes == 3 * one
    memory_of(scopes, "t", "resp_4", "resp_5")  # of a connection that is alive
    assert parking.used_bytes == one
    assert [parking.find("t", f"resp_{number}", 0.0) is None for number in (1, 2, 3)] == [True, True, False]
    parking.sweep(1e12)
    assert (len(parking), parking.used_bytes) == (0, 0)


def test_a_tenant_that_parks_much_pushes_out_its_own() -> None:
    scopes = SharedScopes(LARGE, LARGE)
    one = memory_of(scopes, "t", "resp_1").used_bytes
    parking = Parking(120.0, 3 * one)
    parking.park("quiet", memory_of(scopes, "quiet", "resp_q"), 0.0)
    for number in range(1, 9):
        parking.park("busy", memory_of(scopes, "busy", f"resp_{number}"), 0.0)
        assert parking.used_bytes <= 3 * one
    assert parking.find("quiet", "resp_q", 0.0) is not None
    kept = [number for number in range(1, 9) if parking.find("busy", f"resp_{number}", 0.0) is not None]
    assert kept == [7, 8]
