"""Trimming the heap: after enough bytes were freed, and not too often."""

import asyncio
import io
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from slipring.core.byte_ledger import Ledger
from slipring.server.process.memory_trim import MIN_FREED_BYTES, MemoryTrimmer, find_malloc_trim
from tests.commands.test_cli import FAST, launched

MIB = 2**20


class Trims:
    """Counts the calls of ``malloc_trim``."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def add_and_remove(ledger: Ledger, size_bytes: int) -> None:
    ledger.add("t", size_bytes)
    ledger.remove("t", size_bytes)


async def test_memory_is_trimmed_after_enough_bytes_were_freed() -> None:
    ledger, trims = Ledger(2**40, 2**40), Trims()
    trimmer = MemoryTrimmer([ledger], trims)
    add_and_remove(ledger, MIN_FREED_BYTES - 1)
    await trimmer.trim(100.0)
    assert trims.count == 0
    add_and_remove(ledger, 1)
    await trimmer.trim(101.0)
    assert trims.count == 1
    await trimmer.trim(200.0)
    assert trims.count == 1, "nothing was freed since"


async def test_memory_is_trimmed_at_most_every_ten_seconds() -> None:
    ledger, trims = Ledger(2**40, 2**40), Trims()
    trimmer = MemoryTrimmer([ledger], trims)
    for second in range(20):
        add_and_remove(ledger, MIN_FREED_BYTES)
        await trimmer.trim(100.0 + second)
    assert trims.count == 2


async def test_all_ledgers_count_together() -> None:
    requests, unread, trims = Ledger(2**40, 2**40), Ledger(2**40, 2**40), Trims()
    trimmer = MemoryTrimmer([requests, unread], trims)
    add_and_remove(requests, MIN_FREED_BYTES - 1)
    add_and_remove(unread, 1)
    await trimmer.trim(100.0)
    assert trims.count == 1


async def test_memory_is_trimmed_after_a_garbage_collection() -> None:
    trims = Trims()
    trimmer = MemoryTrimmer([], trims)
    await trimmer.trim(100.0)
    assert trims.count == 0
    trimmer.garbage_collected()
    await trimmer.trim(101.0)
    trimmer.garbage_collected()
    await trimmer.trim(102.0)
    assert trims.count == 1, "at most every ten seconds"
    await trimmer.trim(111.0)
    await trimmer.trim(200.0)
    assert trims.count == 2


async def test_without_malloc_trim_nothing_happens() -> None:
    ledger = Ledger(2**40, 2**40)
    add_and_remove(ledger, MIN_FREED_BYTES)
    await MemoryTrimmer([ledger], None).trim(100.0)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    sys.platform != "linux" or find_malloc_trim() is None, reason="the C library has no malloc_trim"
)
async def test_a_server_returns_the_memory_of_large_requests() -> None:
    body = json.dumps({"input": "x" * (15 * MIB), "model": "unknown", "store": False}).encode()
    async with launched(*FAST) as server, aiohttp.ClientSession() as http:

        async def post() -> None:
            async with http.post(f"{server.url}/responses", data=io.BytesIO(body)) as answer:
                assert answer.status == 404

        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert answer.status == 200
        before = resident_bytes(server.process.pid)
        for _ in range(3):
            await asyncio.gather(*(post() for _ in range(4)))
        async with asyncio.timeout(300):
            while resident_bytes(server.process.pid) > before + 16 * MIB:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
