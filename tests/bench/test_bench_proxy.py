"""The network that is farther away: every byte arrives, in order, and never before its time."""

import asyncio
import random

from slipring.bench.proxy import Delay, proxied
from slipring.bench.reach import distant
from tests.bench.faulty import Faulty, running
from tests.bench.stage import measured, wrongs


def test_bytes_are_due_half_a_round_trip_after_they_came() -> None:
    delay = Delay(one_way_s=5.0, opened_at=0.0)
    assert [delay.due(at) for at in (1.0, 2.0, 2.0, 3.5)] == [6.0, 7.0, 7.0, 8.5]


def test_a_connection_that_is_being_opened_carries_nothing_yet() -> None:
    delay = Delay(one_way_s=5.0, opened_at=10.0)
    assert [delay.due(at) for at in (0.0, 9.0, 11.0)] == [15.0, 15.0, 16.0]


async def test_bytes_keep_their_order_in_both_directions() -> None:
    sent = random.Random(1).randbytes(1_000_000)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(10_000):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, proxied("127.0.0.1", server.sockets[0].getsockname()[1], rtt_s=0.01) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            for start in range(0, len(sent), 7_000):
                writer.write(sent[start : start + 7_000])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        received = await reader.read(-1)
        await sending
        writer.close()
    assert received == sent


async def test_a_place_where_nobody_is_ends_the_connection() -> None:
    async with proxied("127.0.0.1", 9, rtt_s=0.001) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_no_delay_is_no_proxy() -> None:
    async with distant("http://example.invalid/v1", 0.0) as url:
        assert url == "http://example.invalid/v1"


async def test_a_bench_works_through_it() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, rtt_ms=2.0)
    assert wrongs(record) == []
    assert record.settings.rtt_ms == 2.0
