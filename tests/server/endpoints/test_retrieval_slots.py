"""Answers from the store: few at once for one tenant, and what is read counts until it is told."""

import asyncio
import io
import json
from contextlib import AsyncExitStack

from slipring.core.limits import Limits
from slipring.server.endpoints.retrieval_slots import Retrieving
from tests.harness import serve
from tests.server.connections.test_registry import Clock, request
from tests.server.raw import open_tcp, until

MIB = 2**20


async def test_one_more_than_the_places_of_a_tenant_waits() -> None:
    retrieving = Retrieving(2)
    entered = asyncio.Event()

    async def third() -> None:
        async with retrieving.place("a"):
            entered.set()

    async with AsyncExitStack() as first:
        await first.enter_async_context(retrieving.place("a"))
        async with retrieving.place("a"):
            waiting = asyncio.create_task(third())
            async with retrieving.place("b"):  # another tenant has its own
                await asyncio.sleep(0)
                assert not entered.is_set()
        await waiting
        assert entered.is_set()
    assert not retrieving._tenants


async def test_whoever_leaves_while_waiting_takes_no_place() -> None:
    retrieving = Retrieving(1)
    async with retrieving.place("a"):
        waiting = asyncio.create_task(retrieving.place("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with retrieving.place("a"):
        pass
    assert not retrieving._tenants


async def test_events_that_a_follower_has_not_been_told_count_as_unread() -> None:
    """The first of them fills the connection; the others wait in memory, and are more than may be unread."""
    limits = Limits(tenant_unread_bytes=10 * MIB, run_tail_bytes=1)
    create = {"input": "hello", "instructions": "x" * 4 * MIB, "background": True}
    async with serve(limits=limits) as server:
        body = io.BytesIO(json.dumps(create).encode())
        async with server.http.post(f"{server.url}/responses", data=body) as answer:
            response_id = (await answer.json())["id"]
        url = f"{server.url}/responses/{response_id}"
        while True:
            async with server.http.get(url) as answer:
                if (await answer.json())["status"] == "completed":
                    break
        Clock(server)
        async with open_tcp(server, small_buffers=True) as raw:
            await raw.send(request("GET", f"/v1/responses/{response_id}?stream=true"))
            assert b"[DONE]" not in await raw.ended()
            await until(lambda: not server.service.connections.unread.used_bytes)
