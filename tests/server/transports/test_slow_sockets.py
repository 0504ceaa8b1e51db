"""Clients that read slowly: every lane gets all of its events, in the order in which they were produced."""

from collections import Counter
from itertools import pairwise
from typing import Any

from slipring.core.limits import Limits
from tests.harness import TERMINAL, PuppetEngine, serve
from tests.server.raw import RawSocket, connection_of, narrow, open_raw, until

LANES = [f"lane-{number}" for number in range(4)]
WORD = "x" * 2000
WORDS = 25


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
        await until(lambda: client._outbox.full)
        for performance in performances:
            for _ in range(WORDS):
                performance.say(WORD)
            performance.finish()
        said: Counter[str] = Counter()
        for before, lane in pairwise(["", *of_lanes(await ends(raw, [*LANES, "large"]))]):
            said[lane] += 1
            assert max(said.values()) - min(said[each] for each in LANES) <= 2, f"{lane} after {before}: {said}"
        assert said == dict.fromkeys(LANES, WORDS)
