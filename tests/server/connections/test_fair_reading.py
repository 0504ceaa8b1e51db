"""Connections whose clients send a lot take turns, and keep the event loop from nothing else."""

import asyncio
import contextlib
from collections import Counter

import pytest

from slipring.server.connections.client_connection import HttpConnection
from slipring.server.connections.fair_reading import AT_ONCE, LARGE_READ_BYTES, ROUND_BYTES, FairReading
from tests.harness import Running, serve
from tests.server.raw import CONTINUATION, TEXT, frame, only_client, open_raw, until

MIB = 2**20
BUFFER_BYTES = 2**18
"""The most that event loops read at once: 256,000 bytes, or 2**18."""


class Held:
    """Records in which order the connections of a test are held and released."""

    def __init__(self, name: str, record: list[str]) -> None:
        self._name = name
        self._record = record

    def hold_reading(self) -> None:
        self._record.append(f"hold {self._name}")

    def release_reading(self) -> None:
        self._record.append(f"release {self._name}")


async def test_a_few_connections_have_their_turn_in_each_round() -> None:
    record: list[str] = []
    turns = FairReading(asyncio.get_running_loop())
    waiting = [Held(str(number), record) for number in range(AT_ONCE + 2)]
    for each in waiting:
        turns.read(each, ROUND_BYTES)
    assert record == [f"hold {number}" for number in range(AT_ONCE + 2)]
    record.clear()
    await asyncio.sleep(0)
    assert record == [f"release {number}" for number in range(AT_ONCE)]
    turns.read(waiting[0], ROUND_BYTES)  # behind those that wait already
    record.clear()
    await asyncio.sleep(0)
    assert record == [f"release {number}" for number in (AT_ONCE, AT_ONCE + 1)]
    await asyncio.sleep(0)
    assert record[-1] == "release 0"


async def test_a_connection_is_held_when_its_round_has_brought_enough() -> None:
    record: list[str] = []
    turns = FairReading(asyncio.get_running_loop())
    first, second = Held("first", record), Held("second", record)
    for _ in range(2):
        turns.read(first, ROUND_BYTES // 2 - 1)
    assert record == []
    turns.read(second, LARGE_READ_BYTES)
    assert record == ["hold second"]
    await asyncio.sleep(0)
    turns.read(first, ROUND_BYTES - 1)  # of the next round
    assert record == ["hold second", "release second"]


class Rounds:
    """Counts the rounds of the event loop, and what the server reads in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self.reads: Counter[tuple[int, HttpConnection]] = Counter()
        """How many bytes each connection brought in each round, in large pieces."""
        received = HttpConnection.data_received

        def record(connection: HttpConnection, data: bytes) -> None:
            self.reads[self._number, connection] += len(data) if len(data) >= LARGE_READ_BYTES else 0
            received(connection, data)

        monkeypatch.setattr(HttpConnection, "data_received", record)
        self._next()

    def _next(self) -> None:
        self._number += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


def is_full(server: Running, size_bytes: int) -> bool:
    """Whether so much of a message has arrived on each of the server's sockets."""
    return all(each._http.unfinished_bytes >= size_bytes for each in server.service.clients)


async def test_a_round_of_the_event_loop_reads_a_part_of_a_large_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop would read up to 8 MB of each socket in one round."""
    sent = frame(TEXT, b"x", final=False) + frame(CONTINUATION, bytes(3 * MIB), final=False)
    rounds = Rounds(monkeypatch)
    async with serve() as server, contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(open_raw(server)) for _ in range(12)]
        await asyncio.gather(*(each.send(sent) for each in sockets))
        await until(lambda: is_full(server, len(sent)))
        rounds.stop()
    assert max(rounds.reads.values()) < ROUND_BYTES + BUFFER_BYTES, (
        "a connection has brought more in one round"
    )


async def test_a_held_connection_is_not_resumed_by_the_messages_that_are_read() -> None:
    """aiohttp resumes the reading whenever a message leaves its queue."""
    async with serve() as server, open_raw(server) as raw:
        http: HttpConnection = only_client(server)._http
        http.hold_reading()
        transport = http.transport
        assert transport is not None
        http.pause_reading()
        http.resume_reading()
        assert http.is_reading_paused
        assert not transport.is_reading()
        http.pause_reading()
        http.release_reading()
        assert not transport.is_reading(), "aiohttp has not resumed it"
        http.resume_reading()
        assert transport.is_reading()
        await raw.create(input="hello")
        assert (await raw.receive_event())["type"] == "response.created"


async def test_a_connection_that_is_lost_while_it_is_held_is_forgotten() -> None:
    async with serve() as server:
        async with open_raw(server) as raw:
            http: HttpConnection = only_client(server)._http
            http._turns.read(http, ROUND_BYTES)
            http.abort()
            assert await raw.ended() == b""
        await until(lambda: not server.service.connections.open)
        assert not http._turns._held
