"""When clients are looked at: about every second while something is done, else at their next deadline."""

import asyncio
import math
from contextlib import ExitStack

import pytest

from slipring.core.limits import Limits
from slipring.server.client_timers import Alarms
from tests.harness import PuppetEngine, Running, serve
from tests.server.raw import PING, PONG, connection_of, only_client, open_raw, stop_clock, until


def test_nothing_is_due_before_its_time() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("a", 10.5)
    assert alarms.take_due(10.9) == []
    assert alarms.take_due(11.0) == ["a"]
    assert alarms.take_due(12.0) == [], "once"
    assert len(alarms) == 0


def test_what_is_set_last_counts() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("a", 10.0)
    alarms.set("a", 20.0)
    assert alarms.take_due(19.9) == []
    alarms.set("a", 5.0)
    assert alarms.take_due(19.9) == ["a"]
    alarms.set("a", 30.0)
    alarms.set("a", math.inf)
    assert len(alarms) == 0


def test_an_alarm_is_advanced_and_never_put_off() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.advance("a", 20.0)
    alarms.advance("a", 10.0)
    alarms.advance("a", 15.0)
    assert alarms.take_due(10.0) == ["a"]
    assert alarms.take_due(100.0) == []


def test_the_earliest_comes_first_and_what_is_removed_does_not_come() -> None:
    alarms: Alarms[str] = Alarms()
    for client, due in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 4.0)):
        alarms.set(client, due)
    alarms.remove("b")
    alarms.remove("nobody")
    assert alarms.take_due(3.0) == ["a", "c"]
    assert len(alarms) == 1


# Connections.


def due_in(server: Running) -> float:
    """In how many seconds the server looks at its one client, as that says itself. None is at once."""
    delay_s = only_client(server).tick()
    return 0.0 if delay_s is None else float(delay_s)


async def test_a_connection_at_rest_is_left_alone_until_its_next_ping() -> None:
    async with serve(limits=Limits(ping_interval_s=20)) as server, server.connect() as socket:
        await socket.response(input="hello")
        stop_clock(server)
        await until(lambda: due_in(server) > 0)
        assert 19 < due_in(server) <= 20


@pytest.mark.parametrize(
    ("limits", "expected_s"),
    [
        (Limits(ping_interval_s=0), 3600),
        (Limits(ping_interval_s=0, max_age_s=math.inf), math.inf),
        (Limits(max_age_s=7), 7),
        (Limits(idle_timeout_s=5), 5),
        (Limits(ping_interval_s=30, idle_timeout_s=40), 30),
    ],
)
async def test_or_until_its_age_or_idleness_is_too_great(limits: Limits, expected_s: float) -> None:
    async with serve(limits=limits) as server, server.connect():
        assert expected_s - 1 <= due_in(server) <= expected_s


async def test_a_connection_that_does_something_is_looked_at_every_second() -> None:
    engine = PuppetEngine()
    async with serve(engine) as server, server.connect() as socket:
        stop_clock(server)
        server.service.alarms.take_due(math.inf)
        await socket.create(input="hello")
        performance = await engine.next()
        assert len(server.service.alarms.take_due(math.inf)) == 1, "the frame has woken it"
        assert due_in(server) == 0
        performance.finish()
        await socket.until("response.completed")
        await until(lambda: due_in(server) > 0)


async def test_a_client_that_does_not_answer_pings_is_looked_at_when_its_time_is_over() -> None:
    limits = Limits(ping_interval_s=20, pong_timeout_s=3)
    async with serve(limits=limits) as server, open_raw(server) as raw:
        stop_clock(server)
        connection = connection_of(server)
        connection._pinged_at -= 20.5
        connection._heard_at -= 20.5
        assert 2 < due_in(server) <= 3
        assert await raw.receive_frame() == (PING, b"")
        await raw.send_frame(PONG, b"")
        await until(lambda: due_in(server) > 3)
        assert 19 < due_in(server) <= 20


async def test_who_has_left_is_looked_at_no_more() -> None:
    async with serve() as server:
        async with server.connect():
            assert len(server.service.alarms) == 1
        await until(lambda: not server.service.sockets)
        assert len(server.service.alarms) == 0


async def test_a_client_whose_deadlines_cannot_be_looked_after_does_not_stop_the_others(
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
            service.alarms.set(broken, 0.0)
            service.alarms.set(sound, 1.0)
            await service.tick()
            assert looked == [sound]
            assert len(service.alarms) == 2
    assert "broken" in caplog.text


async def test_other_work_has_its_turn_while_many_clients_are_looked_at() -> None:
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
                server.service.alarms.set(client, 0.0)
            ticking = asyncio.create_task(server.service.tick())
            await asyncio.sleep(0)
            assert 0 < len(looked) < 250
            await ticking
            assert len(looked) == 250


async def test_who_leaves_while_others_are_looked_at_is_not_looked_at() -> None:
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
                server.service.alarms.set(client, 0.0)
            for client in clients[100:]:
                leaving.enter_context(server.service.serving(client))
                server.service.alarms.set(client, 1.0)
            ticking = asyncio.create_task(server.service.tick())
            await asyncio.sleep(0)
            leaving.close()
            await ticking
            assert looked == clients[:100]
            assert len(server.service.alarms) == 100
