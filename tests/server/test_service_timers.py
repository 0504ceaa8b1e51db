"""When clients are checked: about every second while turns run, otherwise at their next deadline."""

import asyncio
import math
from contextlib import ExitStack

import pytest

from slipring.core.limits import Limits
from slipring.server.service import ClientTimers
from tests.harness import PuppetEngine, Running, serve
from tests.server.raw import (
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    connection_of,
    frame,
    only_client,
    open_raw,
    stop_clock,
    until,
)


def test_a_client_is_not_due_before_its_time() -> None:
    timers: ClientTimers[str] = ClientTimers()
    timers.set("a", 10.5)
    assert timers.take_due(10.9) == []
    assert timers.take_due(11.0) == ["a"]
    assert timers.take_due(12.0) == [], "once"
    assert len(timers) == 0


def test_the_last_due_time_set_counts() -> None:
    timers: ClientTimers[str] = ClientTimers()
    timers.set("a", 10.0)
    timers.set("a", 20.0)
    assert timers.take_due(19.9) == []
    timers.set("a", 5.0)
    assert timers.take_due(19.9) == ["a"]
    timers.set("a", 30.0)
    timers.set("a", math.inf)
    assert len(timers) == 0


def test_advance_makes_a_client_due_earlier_but_never_later() -> None:
    timers: ClientTimers[str] = ClientTimers()
    timers.advance("a", 20.0)
    timers.advance("a", 10.0)
    timers.advance("a", 15.0)
    assert timers.take_due(10.0) == ["a"]
    assert timers.take_due(100.0) == []


def test_clients_are_returned_earliest_first_and_without_removed_ones() -> None:
    timers: ClientTimers[str] = ClientTimers()
    for client, due in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 4.0)):
        timers.set(client, due)
    timers.remove("b")
    timers.remove("unknown")
    assert timers.take_due(3.0) == ["a", "c"]
    assert len(timers) == 1


# Connections.


def due_in(server: Running) -> float:
    """In how many seconds the only client wants to be checked again; None: with the next tick."""
    delay_s = only_client(server).tick()
    return 0.0 if delay_s is None else float(delay_s)


async def test_an_idle_connection_is_not_checked_before_its_next_ping() -> None:
    async with serve(limits=Limits(ping_interval_s=2000)) as server, server.connect() as socket:
        await socket.response(input="hello")
        stop_clock(server)
        await until(lambda: due_in(server) > 0)
        assert 1900 < due_in(server) <= 2000


@pytest.mark.parametrize(
    ("limits", "expected_s"),
    [
        (Limits(ping_interval_s=0), 3600),
        (Limits(ping_interval_s=0, max_age_s=math.inf), math.inf),
        (Limits(ping_interval_s=2000, max_age_s=700), 700),
        (Limits(ping_interval_s=2000, idle_timeout_s=500), 500),
        (Limits(ping_interval_s=300, idle_timeout_s=400), 300),
    ],
)
async def test_an_idle_connection_is_checked_when_its_age_or_idle_limit_is_reached(
    limits: Limits, expected_s: float
) -> None:
    async with serve(limits=limits) as server, server.connect():
        assert expected_s - 60 <= due_in(server) <= expected_s  # a busy machine takes its time


async def test_a_connection_with_a_running_turn_is_checked_every_second() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        stop_clock(server)
        server.service.timers.take_due(math.inf)
        await socket.create(input="hello")
        performance = await engine.next()
        assert len(server.service.timers.take_due(math.inf)) == 1, "the frame made it due"
        assert due_in(server) == 0
        performance.finish()
        await socket.until("response.completed")
        await until(lambda: due_in(server) > 0)


async def test_a_client_that_does_not_answer_pings_is_checked_at_its_timeout() -> None:
    limits = Limits(ping_interval_s=2000, pong_timeout_s=300)
    async with serve(limits=limits) as server, open_raw(server) as raw:
        stop_clock(server)
        connection = connection_of(server)
        connection._exchanged_at -= 2000.5
        connection._http.heard_at -= 2000.5
        assert 200 < due_in(server) <= 300
        assert await raw.receive_frame() == (PING, b"")
        await raw.send_frame(PONG, b"")
        await until(lambda: due_in(server) > 300)
        assert 1900 < due_in(server) <= 2000


async def test_a_client_that_sends_messages_or_pings_is_not_pinged() -> None:
    limits = Limits(ping_interval_s=2000, pong_timeout_s=300)
    async with serve(limits=limits) as server, open_raw(server) as raw:
        stop_clock(server)
        connection = connection_of(server)
        for opcode, payload in ((TEXT, b"{}"), (PING, b"")):
            connection._exchanged_at -= 2000.5
            await raw.send_frame(opcode, payload)
            await raw.receive_frame()
            assert 1900 < due_in(server) <= 2000


async def test_a_client_that_only_sends_pongs_is_pinged() -> None:
    """Proxies between the two wait for bytes of the server too."""
    async with serve(limits=Limits(ping_interval_s=20)) as server, open_raw(server) as raw:
        stop_clock(server)
        connection = connection_of(server)
        connection._exchanged_at -= 20.5
        connection._http.heard_at = 0.0
        await raw.send_frame(PONG, b"")
        await until(lambda: connection._http.heard_at > 0)
        due_in(server)
        assert await raw.receive_frame() == (PING, b"")


async def test_a_pong_within_a_message_is_not_part_of_it() -> None:
    async with serve() as server, open_raw(server) as raw:
        stop_clock(server)  # it would find a client that has never been heard
        connection = connection_of(server)
        message = b'{"type": "response.create", "input": "hello"}'
        await raw.send_frame(TEXT, message[:9], final=False)
        await until(lambda: connection._http.unfinished_bytes > 0)
        connection._http.heard_at = 0.0
        await raw.send_frame(PONG, b"")
        await until(lambda: connection._http.heard_at > 0)
        await raw.send_frame(CONTINUATION, message[9:])
        assert (await raw.receive_event())["type"] == "response.created"


async def test_bytes_that_look_like_a_pong_are_read_within_a_frame() -> None:
    async with serve() as server, open_raw(server) as raw:
        connection = connection_of(server)
        sent = frame(PING, pong := frame(PONG, b""))
        await raw.send(sent[: -len(pong)])
        await until(lambda: connection._http.unfinished_bytes > 0)
        await raw.send(pong)
        assert await raw.receive_frame() == (PONG, pong)


async def test_a_server_is_active_while_clients_send_or_have_responses() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        stop_clock(server)
        service, client = server.service, only_client(server)

        async def is_active_after_a_check() -> bool:
            service._active_at = -math.inf
            service.timers.set(client, 0.0)
            await service.tick()
            return service.is_active()

        assert not await is_active_after_a_check()
        await socket.create(input="hello")
        performance = await engine.next()
        assert service.is_active(), "a message has arrived"
        assert await is_active_after_a_check(), "a response is running"
        performance.finish()
        await socket.until("response.completed")
        await until(lambda: due_in(server) > 0)
        assert not await is_active_after_a_check()


async def test_a_disconnected_client_has_no_timer() -> None:
    async with serve() as server:
        async with server.connect():
            assert len(server.service.timers) == 1
        await until(lambda: not server.service.sockets)
        assert len(server.service.timers) == 0


async def test_a_client_whose_tick_raises_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def tick(self) -> None:
            raise ValueError("broken")

        def wind_down(self, error: object, grace_s: float) -> None:
            return

    looked = []

    class Sound(Broken):
        def tick(self) -> None:
            looked.append(self)

    async with serve() as server:
        stop_clock(server)
        service, broken, sound = server.service, Broken(), Sound()
        with service.serving(broken), service.serving(sound):
            service.timers.set(broken, 0.0)
            service.timers.set(sound, 1.0)
            await service.tick()
            assert looked == [sound]
            assert len(service.timers) == 2
    assert "broken" in caplog.text


async def test_the_loop_runs_other_work_while_many_clients_are_checked() -> None:
    looked = []

    class Client:
        def tick(self) -> None:
            looked.append(self)

        def wind_down(self, error: object, grace_s: float) -> None:
            return

    async with serve() as server:
        stop_clock(server)
        with ExitStack() as stack:
            for _ in range(250):
                client = Client()
                stack.enter_context(server.service.serving(client))
                server.service.timers.set(client, 0.0)
            ticking = asyncio.create_task(server.service.tick())
            await asyncio.sleep(0)
            assert 0 < len(looked) < 250
            await ticking
            assert len(looked) == 250


async def test_a_client_that_disconnects_during_a_tick_is_not_checked() -> None:
    looked = []

    class Client:
        def tick(self) -> None:
            looked.append(self)

        def wind_down(self, error: object, grace_s: float) -> None:
            return

    async with serve() as server:
        stop_clock(server)
        with ExitStack() as stack, ExitStack() as leaving:
            clients = [Client() for _ in range(150)]
            for client in clients[:100]:
                stack.enter_context(server.service.serving(client))
                server.service.timers.set(client, 0.0)
            for client in clients[100:]:
                leaving.enter_context(server.service.serving(client))
                server.service.timers.set(client, 1.0)
            ticking = asyncio.create_task(server.service.tick())
            await asyncio.sleep(0)
            leaving.close()
            await ticking
            assert looked == clients[:100]
            assert len(server.service.timers) == 100
