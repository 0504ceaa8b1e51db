"""What pruning removes when data is unreferenced or takes too much memory."""

from slipring.core.chain.instructions_and_tools import Head
from slipring.stores.conversations import Conversation
from slipring.stores.runs import RunEvent
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation
from tests.stores.samples import HEAD, TOOLS, chain, message, response, state


async def test_a_full_memory_store_removes_the_oldest_chains() -> None:
    location = StoreLocation("memory")
    store = await location.open()
    empty = await store._database.used_bytes()
    await store.close()
    store = await location.open(max_bytes=empty + 200_000, recent_bytes=0)
    assert await store.pruning.step(0) == 0
    # Ten chains, turn by turn: all end at about the same time, the first one first.
    chains = [
        [
            state(each.id, each.parent, metadata={"x": "y" * 5000}, created_at=10 * depth + number)
            for depth, each in enumerate(chain(10, f"resp_{number}_"))
        ]
        for number in range(10)
    ]
    for turn in range(10):
        for each in chains:
            await store.responses.save("t", each[turn])
    while await store.pruning.step(0, limit=7):
        pass
    assert await store._database.used_bytes() <= empty + 200_000
    left = [number for number in range(10) if await store.responses.load("t", f"resp_{number}_9") is not None]
    assert left
    assert left == list(range(10 - len(left), 10)), "the chains that ended last are kept"
    await location.close()


async def test_a_full_memory_store_removes_finished_runs_before_responses() -> None:
    location = StoreLocation("memory")
    store = await location.open()
    empty = await store._database.used_bytes()
    await store.close()
    store = await location.open(max_bytes=empty + 200_000, recent_bytes=0)
    await store.responses.save("t", state("resp_kept"))
    done, running = response("resp_done", status="completed"), response("resp_running")
    for each in (done, running):
        lease = await store.runs.open("t", response(each.id, status="queued"), [], owner="a", lease_until=9)
        events = [RunEvent(number, b"x" * 500) for number in range(300)]
        await store.runs.append(lease, events, each, lease_until=9)
    while await store.pruning.step(0):
        pass
    assert await store.runs.read("t", "resp_done") is None
    assert await store.runs.read("t", "resp_running") is not None
    assert await store.responses.load("t", "resp_kept") is not None
    await location.close()


async def test_a_memory_store_smaller_than_its_data_ends_up_empty() -> None:
    location = StoreLocation("memory")
    store = await location.open(max_bytes=1)
    for each in chain(60):
        await store.responses.save("t", each)
    while await store.pruning.step(0):
        pass
    assert await store.responses.load("t", "resp_0") is None
    await location.close()


async def test_a_tenant_beyond_its_share_of_a_memory_store_loses_its_own_oldest_chains() -> None:
    location = StoreLocation("memory")
    store = await location.open(tenant_max_bytes=50_000, recent_bytes=0)
    for tenant, count in (("loud", 30), ("quiet", 3)):
        for number in range(count):
            each = state(f"resp_{number}", metadata={"x": "y" * 5000}, created_at=number)
            await store.responses.save(tenant, each)
    while await store.pruning.step(0, limit=7):
        pass
    ((largest, used_bytes), *_) = await store._database.largest_tenants(2)
    assert largest == "loud"
    assert 25_000 < used_bytes <= 50_000
    assert await store.responses.load("loud", "resp_0") is None
    assert await store.responses.load("loud", "resp_29") is not None
    assert await store.responses.load("quiet", "resp_0") is not None
    await location.close()


async def test_a_full_memory_store_takes_from_the_tenant_that_has_the_most() -> None:
    location = StoreLocation("memory")
    store = await location.open()
    empty = await store._database.used_bytes()
    await store.close()
    store = await location.open(max_bytes=empty + 200_000, recent_bytes=0)
    for number in range(50):
        big = state(f"resp_{number}", metadata={"x": "y" * 5000}, created_at=1000 + number)
        await store.responses.save("loud", big)
    await store.responses.save("quiet", state("resp_0", created_at=1))
    while await store.pruning.step(0):
        pass
    assert await store._database.used_bytes() <= empty + 200_000
    assert await store.responses.load("loud", "resp_49") is not None
    assert await store.responses.load("quiet", "resp_0") is not None, "although it is the oldest"
    await location.close()


async def test_conversations_are_removed_from_a_memory_store_when_nothing_else_is_left() -> None:
    location = StoreLocation("memory")
    store = await location.open(tenant_max_bytes=50_000, recent_bytes=0)
    await store.responses.save("t", state("resp_1"))
    for number in range(20):
        conversation = Conversation(id=f"conv_{number}", created_at=number)
        await store.conversations.create("t", conversation, [message("msg_1", "x" * 5000)])
    while await store.pruning.step(0):
        pass
    assert await store.responses.load("t", "resp_1") is None
    assert await store.conversations.read("t", "conv_0") is None
    assert await store.conversations.read("t", "conv_19") is not None
    await location.close()


async def test_every_byte_of_a_tenant_is_uncounted_when_its_row_is_removed() -> None:
    location = StoreLocation("memory")
    store = await location.open(retention_s=1, recent_bytes=0)
    assert await store._database.largest_tenants(9) == []
    await store.responses.save("t", state("resp_1", head=HEAD, created_at=1000))
    await store.conversations.create("t", Conversation(id="conv_1", created_at=1000), [message("msg_1")])
    await store.conversations.update("t", "conv_1", {"x": "y" * 300})
    lease = await store.runs.open("t", response("resp_2", created_at=1000), [], owner="a", lease_until=9)
    done = response("resp_2", status="completed", metadata={"x": "y" * 300})
    await store.runs.append(lease, [RunEvent(0, b"x" * 500)], done, lease_until=9)
    await store.approvals.claim("t", ["mcpr_1"])
    assert await store.responses.delete("t", "resp_1")
    assert await store.conversations.delete("t", "conv_1")
    ((tenant, used_bytes),) = await store._database.largest_tenants(9)
    assert tenant == "t"
    assert used_bytes > 800
    while await store.pruning.step(10**6):
        pass
    assert await store._database.largest_tenants(9) == []
    await location.close()


async def heads(store: Store) -> int:
    ((count,),) = await store._database.read("SELECT count(*) FROM slipring_heads")
    return int(count)


async def test_heads_are_removed_with_the_last_response_that_has_them(location: StoreLocation) -> None:
    store = await location.open(retention_s=10)
    await store.responses.save("t", state("resp_1", head=HEAD, created_at=1000))
    await store.responses.save("t", state("resp_2", head=HEAD, created_at=1005))
    assert await store.pruning.step(1010) == 1
    assert await heads(store) == 1
    assert await store.pruning.step(1015) == 2
    assert await heads(store) == 0


async def test_unreferenced_heads_are_looked_for_in_slices(store: Store) -> None:
    names = [f"resp_{number}" for number in range(25)]
    for name in names:
        await store.responses.save("t", state(name, head=Head(instructions=name, tools=TOOLS)))
    for name in names[5:]:
        await store.responses.delete("t", name)
    removed = [await store.pruning.step(0, limit=1) for _ in range(4)]
    assert sum(removed) == 20
    assert max(removed) <= 10, "a round looks at ten heads for each row that it may remove"
    assert await heads(store) == 5
    await store.responses.delete("t", names[0])
    assert sum([await store.pruning.step(0, limit=1) for _ in range(2)]) == 1, (
        "the next pass begins at the start"
    )


async def test_unreferenced_heads_are_removed(store: Store) -> None:
    first = state("resp_1", head=HEAD)
    await store.responses.save("t", first)
    await store.responses.save("t", state("resp_2"))
    await store.responses.delete("t", "resp_1")
    assert await store.pruning.step(0) == 1
    assert await store._database.read("SELECT count(*) FROM slipring_heads") == [(1,)]


async def test_a_pruning_that_takes_long_asks_for_the_time_in_each_of_its_steps(
    location: StoreLocation,
) -> None:
    store = await location.open(retention_s=10)
    for created_at in (1000, 1005, 1010):
        await store.responses.save("t", state(f"resp_{created_at}", created_at=created_at))
    times = iter((1010, 1015, 1020, 1020))
    await store.pruning.prune(lambda: next(times))
    left = await store._database.read("SELECT id FROM slipring_responses")
    assert not left, "those are removed too that have expired in the meantime"
    assert not list(times), "the last step finds nothing"
