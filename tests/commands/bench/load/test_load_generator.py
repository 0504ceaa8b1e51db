"""The parts of a load: idle connections, processes that share it, a bare socket, and a tenant that floods."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from slipring.commands.bench.client.transports import Access
from slipring.commands.bench.load.command import Load
from slipring.commands.bench.load.flood import Flood
from slipring.commands.bench.load.generator import LocalGenerator, ProcessGenerator, merged
from slipring.commands.bench.load.idle_sockets import IdleSockets
from slipring.commands.bench.load.results import FloodResult, FloodTally
from slipring.commands.bench.load.service_level import Level, Percentiles
from slipring.commands.bench.load.terminal import bare_verdict, flood_verdict
from slipring.commands.bench.load.users import Job, Tally
from slipring.commands.bench.subject.bare_server import recorded_frames, start_bare
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.load.loads import EASY, Silent, loaded, options
from tests.harness import serve

_UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
_PING, _PONG = b"\x89\x04ping", b"\x8a\x84\0\0\0\0ping"


def _access(url: str) -> Access:
    return Access(url, "key", timeout_s=60, asks_timing=False)


def _job(url: str, **fields: object) -> Job:
    given = {"mode": "websocket", "head": {"model": "m"}, "think_ms": 1.0, "limit_ms": 60_000.0, **fields}
    return Job(url=url, key="key", timeout_s=60.0, **given)  # type: ignore[arg-type]


class Upgrading:
    """A server that answers every upgrade with the same bytes, and keeps what comes after it."""

    def __init__(self, answer: bytes) -> None:
        self.heads: list[bytes] = []
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self.serving: set[asyncio.Task[None]] = set()
        self._answer = answer

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                self.received.put_nowait(data)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def _upgrading(answer: bytes) -> AsyncIterator[tuple[Upgrading, IdleSockets]]:
    upgrading = Upgrading(answer)
    server = await asyncio.start_server(upgrading.accept, "127.0.0.1", 0)
    sockets = IdleSockets(_access(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"))
    try:
        yield upgrading, sockets
    finally:
        sockets.close()
        server.close()
        await asyncio.wait(upgrading.serving)


async def test_idle_connections_answer_pings() -> None:
    async with _upgrading(_UPGRADED + b"\x81\x7e\x00\x80" + b"x" * 128 + _PING) as (upgrading, sockets):
        await sockets.grow(3)
        assert sockets.open_connections == 3
        assert [await upgrading.received.get() for _ in range(3)] == [_PONG] * 3
        assert sockets.pings == 3
        assert b"GET /v1/responses HTTP/1.1\r\n" in upgrading.heads[0]
        assert b"Authorization: Bearer key\r\n" in upgrading.heads[0]
        sockets.close()
        assert sockets.open_connections == 0


async def test_refused_and_closed_connections_are_not_open() -> None:
    async with _upgrading(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as (_, sockets):
        await sockets.grow(2)
        assert sockets.open_connections == 0
    async with _upgrading(_UPGRADED + b"\x88\x02\x03\xe8") as (_, sockets):
        await sockets.grow(2)
        assert sockets.open_connections == 0


async def test_a_level_breaks_if_idle_connections_are_lost() -> None:
    level = Level(connections=1, idle=10, open_idle=9, seconds=1, turns=1, turns_per_s=1)
    assert EASY.broken_by(level) == "1 of 10 idle connections were refused or lost"


def test_tallies_of_several_processes_are_added_up() -> None:
    first = Tally(gap_ms=[1.0], errors={"a": 1}, turns=2, idle_connections=5, last_late_ns=7, cpu_s=0.5)
    second = Tally(gap_ms=[2.0], errors={"a": 1, "b": 1}, turns=3, idle_connections=4, last_late_ns=3)
    total = merged([first, second])
    assert (total.gap_ms, total.errors, total.turns) == ([1.0, 2.0], {"a": 2, "b": 1}, 5)
    assert (total.idle_connections, total.last_late_ns, total.cpu_s) == (9, 7, 0.5)


async def test_processes_share_users_and_idle_connections() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=3,digest=true") as server:
        generator = ProcessGenerator(_job(server.url, head={"model": "simulated"}, has_digests=True), 2)
        try:
            await generator.grow(3, 5, 0.0)
            await generator.begin()
            while True:  # users connect after ``grow`` has returned
                tally = await generator.end()
                if tally.turns and tally.open_connections == 3 and server.service.sockets == 8:
                    break
            assert (tally.idle_connections, tally.errors) == (5, {})
        finally:
            await generator.stop()


async def test_a_bare_socket_sends_what_was_recorded() -> None:
    async with running(Faulty()) as url:
        frames = await recorded_frames(_access(url), {"model": "m", "input": "go"})
    kinds = [json.loads(frame)["type"] for frame in frames]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    async with start_bare(frames, 0) as server:
        assert await recorded_frames(_access(server.url), {}) == frames
        generator = LocalGenerator(_job(server.url, is_checked=False))
        await generator.grow(2, 2, 0.0)
        await generator.begin()
        async with asyncio.timeout(300):
            while not (tally := await generator.end()).turns:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await generator.stop()
        assert (tally.open_connections, tally.idle_connections, tally.errors) == (2, 2, {})
        assert tally.gap_ms


async def test_a_flood_counts_answers_and_refusals() -> None:
    engine = "simulated:tokens_per_s=0,output_tokens=4,max_jobs=1,max_waiting=0"
    async with serve(engine) as server, asyncio.timeout(300):
        flood = Flood(_access(server.url), {"model": "simulated"}, 3)
        flood.start()
        (held,) = server.service.catalog.engines
        with held._queue.ticket("another tenant"):  # takes the only place
            while flood.refusals.total() < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        while not flood.turns:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        tally = await flood.stop()
    refused = tally.refusals["429 rate_limit_exceeded"]
    assert (list(tally.refusals), tally.failures) == (["429 rate_limit_exceeded"], {})
    assert refused == tally.with_retry_after >= 6
    assert tally.refused_ms is not None
    assert tally.refused_ms.count == refused


async def test_users_are_measured_while_another_tenant_floods_and_after_it() -> None:
    async with serve("simulated:tokens_per_s=0,output_tokens=4,digest=true") as server:
        record = await loaded(options(server.url, connections=1, flood=2, hold_s=1.0))
    assert record.flood is not None
    assert not record.flood.is_other_tenant
    assert record.flood.tally.turns > 0
    assert record.flood.recovery_s == 0.0
    assert "by the same tenant, 2 connections" in flood_verdict(record)[0]


def _level(p99: float) -> Level:
    ranks = Percentiles(p50=1.0, p95=1.0, p99=p99, high=p99, count=9)
    return Level(connections=9, seconds=1.0, turns=9, turns_per_s=9.0, gap_ms=ranks, first_token_ms=ranks)


def test_verdicts_in_words() -> None:
    record = Load(options("http://127.0.0.1:1/v1"), Silent()).record
    assert (bare_verdict(record), flood_verdict(record)) == ([], [])
    record.levels.append(_level(30.0))
    record.bare = _level(20.0)
    tally = FloodTally(connections=7, seconds=5.0, turns=3)
    record.flood = FloodResult(
        tally=tally, is_other_tenant=True, during=_level(2.0), after=_level(3.0), recovery_s=None
    )
    assert "at p99 20.0 ms, the server's 30.0 ms (1.50 ×)" in bare_verdict(record)[0]
    assert "A flood by another tenant, 7 connections" in flood_verdict(record)[0]
    assert flood_verdict(record)[-1] == "After the flood the service level did not recover."
