"""What pruning removes when data is unreferenced or takes too much memory."""

from slipring.stores.base import RunEvent
from slipring.stores.sql.store import SqlStore
from tests.stores.conftest import StoreLocation
from tests.stores.samples import HEAD, chain, response, state


async def test_a_full_memory_store_removes_the_oldest_chains() -> None:
    location = StoreLocation("memory")
    store = await location.open()
    empty = await store._database.used_bytes()
    await store.close()
    store = await location.open(max_bytes=empty + 200_000, recent_bytes=0)
    assert await store.prune(0) == 0
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
    while await store.prune(0, limit=7):
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
        tenure = await store.runs.open("t", response(each.id, status="queued"), [], owner="a", lease_until=9)
        events = [RunEvent(number, b"x" * 500) for number in range(300)]
        await store.runs.append(tenure, events, each, lease_until=9)
    while await store.prune(0):
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
    while await store.prune(0):
        pass
    assert await store.responses.load("t", "resp_0") is None
    await location.close()


async def test_unreferenced_heads_are_removed(store: SqlStore) -> None:
    first = state("resp_1", head=HEAD)
    await store.responses.save("t", first)
    await store.responses.save("t", state("resp_2"))
    await store.responses.delete("t", "resp_1")
    assert await store.prune(0) == 1
    assert await store._database.read("SELECT count(*) FROM slipring_heads") == [(1,)]
