"""Clients that read slowly: every lane gets all of its events, in the order in which they were produced."""

import asyncio
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.server.transports import websocket
from tests.harness import FAST, TERMINAL, Performance, PuppetEngine, Running, read_sse, serve
from tests.server.background.test_expired_leases import LEASE_S, Clocks, background, nodes
from tests.server.connections.limited import Clock, narrow_all
from tests.server.issuing import issue, revoke, serve_stored
from tests.server.raw import (
    CLOSE,
    TEXT,
    RawSocket,
    connection_of,
    narrow,
    open_raw,
    open_tcp,
    until,
)

LANES = [f"lane-{number}" for number in range(4)]
WORD = "x" * 2000
WORDS = 25
LARGE = {"instructions": "x" * 10**6, "store": False}
SMALL_OUTBOX = Limits(send_buffer_bytes=1024)


async def two_lanes(
    running: Running, raw: RawSocket, engine: PuppetEngine
) -> tuple[str, Performance, Performance]:
    """Begin a response on each of two lanes, until the client, which reads the first event only, has left so
    much unread that neither is asked for more. Returns the id of the first."""
    narrow(running)
    client = connection_of(running)
    await raw.create(input="hello", stream_id="a", **LARGE)
    a = await engine.next()
    created = await raw.receive_event()
    await raw.create(input="hello", stream_id="b", **LARGE)
    b = await engine.next()
    a.say("One. ")
    b.say("One. ")
    await until(lambda: client.full and client._waiting == 2)
    return created["response"]["id"], a, b


async def ends(raw: RawSocket, lanes: list[str]) -> list[dict[str, Any]]:
    """Read until each lane has had a terminal event; returns all events."""
    events: list[dict[str, Any]] = []
    left = set(lanes)
    while left:
        events.append(event := await raw.receive_event())
        if event["type"] in TERMINAL:
            left.discard(event["stream_id"])
    return events


def of_lanes(events: list[dict[str, Any]], kind: str = "response.output_text.delta") -> list[str]:
    """The lanes of the events of one type, in the order in which they were read."""
    return [event["stream_id"] for event in events if event["type"] == kind]


async def test_events_are_read_in_the_order_in_which_all_lanes_produced_them() -> None:
    engine, limits = PuppetEngine(), Limits(send_buffer_bytes=2**24)
    async with serve(engine, limits=limits) as running, open_raw(running, small_buffers=True) as raw:
        narrow(running)
        performances = []
        for lane in LANES:
            await raw.create(input="hello", stream_id=lane, instructions="x" * 100_000, store=False)
            performances.append(await engine.next())
        for number in range(WORDS):
            for performance in performances:
                await performance.pulled.acquire()
                performance.say(f"{number} ")
        for performance in performances:
            performance.finish()
        events = await ends(raw, LANES)
        assert of_lanes(events) == LANES * WORDS
        for lane in LANES:
            numbers = [event["sequence_number"] for event in events if event["stream_id"] == lane]
            assert numbers == list(range(len(numbers)))


async def test_lanes_share_a_slow_socket_while_all_have_more_to_say() -> None:
    """Each of them waits for room, and none gets all of it."""
    engine, limits = PuppetEngine(), Limits(send_buffer_bytes=1024)
    async with serve(engine, limits=limits) as running, open_raw(running, small_buffers=True) as raw:
        narrow(running)
        client = connection_of(running)
        performances = []
        for lane in LANES:
            await raw.create(input="hello", stream_id=lane, store=False)
            performances.append(await engine.next())
        await raw.create(input="hello", stream_id="large", instructions="x" * 10**6, store=False)
        (await engine.next()).finish()
        await until(lambda: client.full)
        for performance in performances:
            for _ in range(WORDS):
                performance.say(WORD)
            performance.finish()
        said: Counter[str] = Counter()
        for before, lane in pairwise(["", *of_lanes(await ends(raw, [*LANES, "large"]))]):
            said[lane] += 1
            assert max(said.values()) - min(said[each] for each in LANES) <= 2, (
                f"{lane} after {before}: {said}"
            )
        assert said == dict.fromkeys(LANES, WORDS)


# What ends responses while their client is behind.


async def test_a_response_is_steered_on_a_slow_socket() -> None:
    engine = PuppetEngine()
    async with serve(engine, limits=SMALL_OUTBOX) as running, open_raw(running, small_buffers=True) as raw:
        target, a, b = await two_lanes(running, raw, engine)
        steer = {"type": "response.steer", "previous_response_id": target, "input": "No."}
        await raw.send_frame(TEXT, json.dumps(steer).encode())
        await until(lambda: a.job.stop.asked)
        for performance in (a, b):
            performance.say("Two.")
        b.finish()
        events = await ends(raw, ["a", "b"])
        assert [event["type"] for event in events if event["type"] in TERMINAL] == [
            "response.incomplete",
            "response.completed",
        ]
        assert "response.steer.accepted" in [event["type"] for event in events]
        (await engine.next()).finish()
        (*_, successor) = await ends(raw, ["a"])
        assert successor["response"]["previous_response_id"] == target
        assert connection_of(running).in_flight == 0


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_server_that_stops_ends_the_responses_of_a_slow_socket(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """In the time that they have for that, and afterwards."""
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 600.0)
    engine, limits = PuppetEngine(), Limits(send_buffer_bytes=1024, drain_timeout_s=0 if is_over else 600)
    async with serve(engine, limits=limits) as running, open_raw(running, small_buffers=True) as raw:
        _, a, b = await two_lanes(running, raw, engine)
        stopping = asyncio.create_task(running.server.stop())
        await until(lambda: running.service.draining)
        if not is_over:
            for performance in (a, b):
                performance.finish()
        events = await ends(raw, ["a", "b"])
        expected = "response.failed" if is_over else "response.completed"
        assert of_lanes(events, expected) in (["a", "b"], ["b", "a"])
        opcode = TEXT
        while opcode != CLOSE:
            opcode, payload = await raw.receive_frame()
        assert int.from_bytes(payload[:2]) == 1001
        raw.close()
        await asyncio.wait_for(stopping, 300)


async def test_a_revoked_key_refuses_the_next_turn_on_a_slow_socket_and_no_running_one(
    tmp_path: Path,
) -> None:
    engine = PuppetEngine()
    async with serve_stored(tmp_path, engine, limits=SMALL_OUTBOX) as running:
        key = await issue(running)
        async with open_raw(running, more=f"Authorization: Bearer {key}\r\n", small_buffers=True) as raw:
            _, a, b = await two_lanes(running, raw, engine)
            await revoke(running, key)
            await raw.create(input="more", stream_id="c")
            for performance in (a, b):
                performance.say("Two.")
                performance.finish()
            last: dict[str, Any] = {}
            while set(last) != {"a", "b", "c"}:
                event = await raw.receive_event()
                if event["type"] in (*TERMINAL, "error"):
                    last[event["stream_id"]] = event
            assert (last["a"]["type"], last["b"]["type"]) == ("response.completed",) * 2
            assert (last["c"]["status"], last["c"]["error"]["code"]) == (401, "invalid_api_key")


async def test_the_slow_follower_of_a_run_that_another_node_has_taken_over_gets_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    async with nodes(f"sqlite:{tmp_path / 'slipring.db'}", 2) as (engine, [here, there]):
        begun = await here.begin(instructions="x" * 10**6)
        performance = await engine.next()
        narrow_all(here.server)
        async with open_tcp(here.server, small_buffers=True) as raw:
            path = f"/v1/responses/{begun['id']}?stream=true"
            key = "Authorization: Bearer test-key"
            await raw.send(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{key}\r\n\r\n".encode())
            await until(lambda: here.server.service.connections.unread.used_bytes > 0)
            clocks.advance(LEASE_S)
            for _ in range(3):
                await background(there)._end_abandoned()
                clocks.advance(LEASE_S / 3)
            performance.say("too late")
            performance.finish()
            await until(lambda: not background(here)._runs)
            body = (await raw.ended()).partition(b"\r\n\r\n")[2]
        events = read_sse(body.decode())
        assert [event["type"] for event in events if event["type"] in TERMINAL] == ["response.failed"]


async def test_a_slow_client_with_many_large_lanes_gets_all_of_them() -> None:
    """Twelve, each with three events of 735 kB; it reads ten events, and nothing for 0.4 s."""
    lanes = [f"lane-{number}" for number in range(12)]
    async with serve(FAST) as running:
        clock = Clock(running)

        async def create_all() -> None:
            for lane in lanes:
                await raw.create(input="hello", stream_id=lane, instructions="x" * 735_000, store=False)

        async with open_raw(running, small_buffers=True) as raw:
            creating = asyncio.create_task(create_all())  # the server reads no more than the client does
            left, number = set(lanes), 0
            while left:
                event = await raw.receive_event()
                number += 1
                if number % 10 == 0:
                    clock.pass_by(0.4)
                if event["type"] in TERMINAL:
                    assert event["type"] == "response.completed"
                    left.discard(event["stream_id"])
            await creating
            assert not running.service.connections.dropped
            await until(lambda: connection_of(running).in_flight == 0)
