"""Turns that hang, answers that stall and connections that do not open.

The server withholds them for good, so the tests do not depend on timing.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace

import pytest
from aiohttp import WSMsgType, web
from msgspec import structs

from slipring.commands.bench.client.exchange import TurnExchange
from slipring.commands.bench.load.results import LoadRecord
from slipring.commands.bench.load.service_level import ServiceLevel
from slipring.commands.bench.load.terminal import verdict
from slipring.commands.bench.load.users import Job, Tally
from slipring.commands.bench.subject.processes import Meter
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.load.loads import EASY, loaded, options

STRICT = ServiceLevel(first_token_ms=0.001, errors=0.0)
TRYING = 1
"""Connections that the bench opens before those of its users."""


class Hanging(Faulty):
    """Stops answering at ``at``: on every connection of a user, or on every ``every``-th."""

    def __init__(self, at: str, *, every: int = 1) -> None:
        super().__init__()
        self.at = at
        self.every = every
        self.released = asyncio.Event()

    async def socket(self, request: web.Request) -> web.StreamResponse:
        number = self.connections - TRYING
        if number < 0 or number % self.every:
            return await super().socket(request)
        self.connections += 1
        socket = web.WebSocketResponse()
        if self.at == "the upgrade":
            await self.released.wait()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT and self.at == "the answer":
                for event in self.events(json.loads(message.data)):
                    await socket.send_str(json.dumps(event))
                    if event["type"].endswith(".delta"):
                        break
        return socket


async def load_of(hanging: Hanging, service_level: ServiceLevel, pid: int | None = None) -> LoadRecord:
    async with running(hanging) as url:
        try:
            given = options(url, service_level, hold_s=2.0)
            return await loaded(replace(given, target=replace(given.target, server_pid=pid)))
        finally:
            hanging.released.set()


@pytest.mark.parametrize(("at", "open_connections"), [("the upgrade", 0), ("the first token", 4)])
async def test_turns_that_wait_beyond_the_limit_count_as_late(at: str, open_connections: int) -> None:
    record = await load_of(Hanging(at), STRICT)
    (level,) = record.levels
    assert (level.turns, level.errors, level.open_connections) == (0, {}, open_connections)
    assert (level.waiting, level.waiting_late) == (4, 4)
    assert level.first_token_ms is not None
    assert level.first_token_ms.count == 4
    assert level.broken is not None
    assert level.broken.startswith("first token after")
    assert any("still waiting: 4" in line for line in verdict(record))


async def test_hanging_turns_count_beside_finished_ones() -> None:
    record = await load_of(Hanging("the first token", every=2), ServiceLevel(first_token_ms=100, errors=0.0))
    (level,) = record.levels
    assert level.turns > 0
    assert level.waiting_late >= 2
    assert level.first_token_ms is not None
    assert level.first_token_ms.count == level.turns + level.waiting_late
    assert level.first_token_ms.high > 100


async def test_turns_that_wait_below_the_limit_are_only_counted() -> None:
    record = await load_of(Hanging("the first token", every=2), EASY)
    (level,) = record.levels
    assert level.waiting >= 2
    assert (level.waiting_late, level.broken) == (0, None)
    assert level.first_token_ms is not None
    assert level.first_token_ms.count == level.turns
    assert not any("still waiting" in line for line in verdict(record))


async def test_stalled_answers_are_counted() -> None:
    record = await load_of(Hanging("the answer"), STRICT)
    (level,) = record.levels
    assert (level.waiting, level.stalled) == (0, 4)
    assert level.gap_ms is not None
    assert level.gap_ms.count == 4
    assert any("still waiting: 4" in line and "in the middle" in line for line in verdict(record))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_memory_is_divided_by_open_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes_bytes = iter([1000, 9000])
    monkeypatch.setattr(Meter, "resident_bytes", lambda meter: next(sizes_bytes))
    record = await load_of(Hanging("the upgrade", every=2), EASY, os.getpid())
    (level,) = record.levels
    assert (level.connections, level.open_connections) == (4, 2)
    assert level.bytes_per_connection == 4000


async def test_connections_are_opened_before_the_first_pause() -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        record = await loaded(options(url, think_ms=3_600_000.0, connections=5))
    (level,) = record.levels
    assert faulty.connections == TRYING + 5
    assert level.open_connections == 5
    assert level.turns == 0


@pytest.mark.parametrize("mode", ["http-full", "http-chained"])
async def test_http_connections_are_open_after_their_first_turn(mode: str) -> None:
    async with running(Faulty()) as url:
        record = await loaded(options(url, mode=mode, connections=3))
    assert [level.open_connections for level in record.levels] == [3]


async def test_connections_closed_by_the_server_are_not_open() -> None:
    class Closing(Faulty):
        async def socket(self, request: web.Request) -> web.StreamResponse:
            if self.connections < TRYING:
                return await super().socket(request)
            self.connections += 1
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            assert request.transport is not None
            request.transport.close()
            return socket

    async with running(Closing()) as url:
        record = await loaded(options(url, think_ms=3_600_000.0))
    assert [(level.connections, level.open_connections) for level in record.levels] == [(4, 0)]


async def test_lost_history_is_an_error() -> None:
    class Forgetful(Faulty):
        """Reports no token counts."""

        def _response(self, made: object) -> dict[str, object]:
            return {**super()._response(made), "usage": None}  # type: ignore[arg-type]

    async with running(Forgetful("forgets the chain")) as url:
        record = await loaded(options(url))
    (level,) = record.levels
    reason = "wrong answer: the context was not what was sent: digest …, expected …"
    assert level.errors.keys() == {reason}


def turn_of(*arrivals_ms: float, tokens: int | None = None) -> TurnExchange:
    exchange = TurnExchange()
    for _ in arrivals_ms:
        exchange.record({"type": "response.output_text.delta", "delta": "x"}, 0)
    exchange.record({"type": "response.completed", "response": {"usage": {"output_tokens": tokens}}}, 0)
    exchange.arrivals_ns = [*(int(at_ms * 1e6) for at_ms in arrivals_ms), 0]
    return exchange


def test_lag_of_the_last_delta() -> None:
    job = Job(url="", key="", timeout_s=1, mode="", head={}, think_ms=0, limit_ms=500, tokens_per_s=100)
    tally = Tally()
    tally.add(turn_of(5, 15, 25, tokens=3), job)
    tally.add(turn_of(5, 15, 45, tokens=3), job)
    tally.add(turn_of(5, 75, tokens=5), job)
    assert tally.lag_ms == pytest.approx([0, 20, 30])
    assert tally.late_ms == pytest.approx(50)
    for unknown in (None, 0.0):
        tally = Tally()
        tally.add(turn_of(5, 15, tokens=2), structs.replace(job, tokens_per_s=unknown))
        assert tally.lag_ms == []
