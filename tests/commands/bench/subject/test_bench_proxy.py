"""The delaying proxy forwards all bytes in order, and none too early."""

import asyncio
import random

from slipring.commands.bench.subject.endpoint import with_round_trip
from slipring.commands.bench.subject.proxy import Delay, delaying_proxy
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.stage import faults, measured


def test_bytes_are_delayed_by_half_a_round_trip() -> None:
    delay = Delay(one_way_s=5.0, opened_at=0.0)
    assert [delay.due(at) for at in (1.0, 2.0, 2.0, 3.5)] == [6.0, 7.0, 7.0, 8.5]


def test_opening_a_connection_costs_a_round_trip() -> None:
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
    async with server, delaying_proxy("127.0.0.1", server.sockets[0].getsockname()[1], rtt_s=0.01) as port:
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


async def test_the_connection_is_closed_if_the_address_cannot_be_reached() -> None:
    async with delaying_proxy("127.0.0.1", 9, rtt_s=0.001) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_no_proxy_without_delay() -> None:
    async with with_round_trip("http://example.invalid/v1", 0.0) as url:
        assert url == "http://example.invalid/v1"


async def test_a_bench_through_the_proxy() -> None:
    async with running(Faulty()) as url:
        record = await measured(url, rtt_ms=2.0)
    assert faults(record) == []
    assert record.settings.rtt_ms == 2.0
