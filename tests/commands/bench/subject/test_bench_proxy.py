"""The delaying proxy forwards all bytes in order, and none too early."""

import asyncio
import random

from slipring.commands.bench.subject.endpoint import with_round_trip
from slipring.commands.bench.subject.proxy import delaying_proxy
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.stage import faults, measured


async def test_opening_costs_a_round_trip_and_bytes_are_delayed_by_half_of_one() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(100):
            writer.write(chunk)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, delaying_proxy("127.0.0.1", server.sockets[0].getsockname()[1], rtt_s=0.2) as port:
        clock = asyncio.get_running_loop().time
        begun_at = clock()  # the proxy's time begins as soon as it is connected to
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        took_s = []
        for _ in range(2):
            writer.write(b"x")
            await reader.readexactly(1)
            took_s.append(clock() - begun_at)
            begun_at = clock()
        writer.close()
    opened_s, echoed_s = took_s
    assert echoed_s >= 0.19
    assert opened_s >= 0.39


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
