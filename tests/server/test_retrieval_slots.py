"""Limits on concurrent retrievals, and on events that a follower has not read."""

import asyncio
import io
import json
from contextlib import AsyncExitStack

from slipring.base.tenant_slots import TenantSlots
from slipring.core.limits import Limits
from tests.harness import serve
from tests.server.connections.limited import Clock, request
from tests.server.raw import open_tcp, until

MIB = 2**20


async def test_a_retrieval_waits_when_all_slots_of_its_tenant_are_held() -> None:
    slots = TenantSlots(2)
    entered = asyncio.Event()

    async def third() -> None:
        async with slots.hold("a"):
            entered.set()

    async with AsyncExitStack() as first:
        await first.enter_async_context(slots.hold("a"))
        async with slots.hold("a"):
            waiting = asyncio.create_task(third())
            async with slots.hold("b"):  # another tenant has its own slots
                await asyncio.sleep(0)
                assert not entered.is_set()
        await waiting
        assert entered.is_set()
    assert not slots._tenants


async def test_a_cancelled_waiter_holds_no_slot() -> None:
    slots = TenantSlots(1)
    async with slots.hold("a"):
        waiting = asyncio.create_task(slots.hold("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    del waiting  # its exception refers to the slots
    async with slots.hold("a"):
        pass
    assert not slots._tenants


async def test_unsent_events_of_a_followed_run_count_as_unread() -> None:
    """The first event fills the connection; those in memory exceed the limit of unread bytes."""
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
