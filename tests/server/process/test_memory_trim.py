"""Memory of large requests: given back when much has been freed, and not all the time."""

import asyncio
import io
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from slipring.core.byte_ledger import Ledger
from slipring.server.process.memory_trim import WORTHWHILE_BYTES, FreedMemory, find_trim
from tests.test_cli import FAST, launched

MIB = 2**20


class Trims:
    """Counts how often memory was given back."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def freed(ledger: Ledger, size_bytes: int) -> None:
    ledger.add("t", size_bytes)
    ledger.remove("t", size_bytes)


async def test_memory_is_given_back_when_it_is_worth_while() -> None:
    ledger, trims = Ledger(2**40, 2**40), Trims()
    memory = FreedMemory([ledger], trims)
    freed(ledger, WORTHWHILE_BYTES - 1)
    await memory.give_back(100.0)
    assert trims.count == 0
    freed(ledger, 1)
    await memory.give_back(101.0)
    assert trims.count == 1
    await memory.give_back(200.0)
    assert trims.count == 1, "nothing was freed since"


async def test_memory_is_not_given_back_all_the_time() -> None:
    ledger, trims = Ledger(2**40, 2**40), Trims()
    memory = FreedMemory([ledger], trims)
    for second in range(20):
        freed(ledger, WORTHWHILE_BYTES)
        await memory.give_back(100.0 + second)
    assert trims.count == 2


async def test_requests_and_unread_answers_count_together() -> None:
    requests, unread, trims = Ledger(2**40, 2**40), Ledger(2**40, 2**40), Trims()
    memory = FreedMemory([requests, unread], trims)
    freed(requests, WORTHWHILE_BYTES - 1)
    freed(unread, 1)
    await memory.give_back(100.0)
    assert trims.count == 1


async def test_where_the_library_cannot_do_it_nothing_is_done() -> None:
    ledger = Ledger(2**40, 2**40)
    freed(ledger, WORTHWHILE_BYTES)
    await FreedMemory([ledger], None).give_back(100.0)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux" or find_trim() is None, reason="the C library has no malloc_trim")
async def test_a_server_gives_the_memory_of_large_requests_back() -> None:
    body = json.dumps({"input": "x" * (15 * MIB), "model": "nobody", "store": False}).encode()
    async with launched(*FAST) as server, aiohttp.ClientSession() as http:

        async def post() -> None:
            async with http.post(f"{server.url}/responses", data=io.BytesIO(body)) as answer:
                assert answer.status == 404

        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert answer.status == 200
        before = resident_bytes(server.process.pid)
        for _ in range(3):
            await asyncio.gather(*(post() for _ in range(4)))
        async with asyncio.timeout(60):
            while resident_bytes(server.process.pid) > before + 16 * MIB:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
