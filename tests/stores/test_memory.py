"""The store that lives in memory: what it keeps, for whom, and what it forgets first."""

import pytest

from slipring.core.limits import Limits
from slipring.core.state import ResponseState
from slipring.errors import StartupError
from slipring.protocol import wire
from slipring.protocol.items import Item
from slipring.stores.base import Store
from slipring.stores.catalog import open_store
from slipring.stores.memory import MemoryStore
from tests.core.stage import node
from tests.harness import serve


def item(name: str, text: str = "hello") -> Item:
    raw = wire.encode({"type": "message", "id": name, "role": "assistant", "content": text})
    return Item(type="message", raw=raw, id=name)


def state(
    name: str, parent: ResponseState | None = None, *output: Item, text: str = "hello"
) -> ResponseState:
    return node(name, parent, text=text, output=output)


def roomy() -> MemoryStore:
    return MemoryStore(10**9)


async def known(store: Store, *names: str, tenant: str = "t") -> list[str]:
    return [name for name in names if await store.load(tenant, name) is not None]


async def test_what_was_saved_is_loaded_with_its_chain() -> None:
    store = roomy()
    first = state("resp_1")
    second = state("resp_2", first)
    await store.save("t", first)
    await store.save("t", second)
    loaded = await store.load("t", "resp_2")
    assert loaded is second
    assert [each.id for each in loaded.chain()] == ["resp_2", "resp_1"]
    assert len(store) == 2


async def test_what_was_never_saved_is_not_there() -> None:
    assert await roomy().load("t", "resp_1") is None


async def test_another_tenant_finds_nothing() -> None:
    store = roomy()
    await store.save("a", state("resp_1", None, item("msg_1")))
    assert await store.load("b", "resp_1") is None
    assert await store.load_items("b", ["msg_1"]) == {}
    assert await known(store, "resp_1", tenant="a") == ["resp_1"]


async def test_two_tenants_may_use_the_same_id() -> None:
    store = roomy()
    ours, theirs = state("resp_1", None, item("msg_1", "a")), state("resp_1", None, item("msg_1", "b"))
    await store.save("a", ours)
    await store.save("b", theirs)
    assert await store.load("a", "resp_1") is ours
    assert await store.load("b", "resp_1") is theirs
    assert await store.load_items("b", ["msg_1"]) == {"msg_1": theirs.output[0]}


async def test_an_ancestor_that_was_not_saved_is_part_of_the_chain_and_nothing_of_its_own() -> None:
    store = roomy()
    unsaved = state("resp_1", None, item("msg_1"))
    await store.save("t", state("resp_2", unsaved))
    loaded = await store.load("t", "resp_2")
    assert loaded is not None
    assert loaded.parent is unsaved
    assert await store.load("t", "resp_1") is None
    assert await store.load_items("t", ["msg_1"]) == {}


async def test_items_are_found_by_their_ids_and_the_missing_are_left_out() -> None:
    store = roomy()
    one, two = item("msg_1"), item("msg_2")
    await store.save("t", state("resp_1", None, one, two))
    assert await store.load_items("t", ["msg_1", "msg_2", "msg_3"]) == {"msg_1": one, "msg_2": two}
    assert await store.load_items("t", []) == {}


async def test_the_bound_may_be_reached() -> None:
    states = [state(f"resp_{number}") for number in range(3)]
    store = MemoryStore(sum(each.size_bytes for each in states))
    for each in states:
        await store.save("t", each)
    assert store.used_bytes == sum(each.size_bytes for each in states)
    assert await known(store, "resp_0", "resp_1", "resp_2") == ["resp_0", "resp_1", "resp_2"]


async def test_one_byte_past_the_bound_the_oldest_is_forgotten() -> None:
    states = [state(f"resp_{number}", None, item(f"msg_{number}")) for number in range(3)]
    store = MemoryStore(sum(each.size_bytes for each in states) - 1)
    for each in states:
        await store.save("t", each)
    assert await known(store, "resp_0", "resp_1", "resp_2") == ["resp_1", "resp_2"]
    assert set(await store.load_items("t", ["msg_0", "msg_1", "msg_2"])) == {"msg_1", "msg_2"}
    assert store.used_bytes == states[1].size_bytes + states[2].size_bytes


async def test_what_was_used_last_is_kept_longest() -> None:
    states = [state(f"resp_{number}") for number in range(3)]
    store = MemoryStore(states[0].size_bytes * 3)
    for each in states:
        await store.save("t", each)
    await store.load("t", "resp_0")
    await store.save("t", state("resp_3"))
    assert await known(store, "resp_0", "resp_1", "resp_2", "resp_3") == ["resp_0", "resp_2", "resp_3"]


async def test_the_bound_is_for_all_tenants_together() -> None:
    store = MemoryStore(state("resp_1").size_bytes)
    await store.save("a", state("resp_1"))
    await store.save("b", state("resp_2"))
    assert await known(store, "resp_1", tenant="a") == []
    assert await known(store, "resp_2", tenant="b") == ["resp_2"]


async def test_a_chain_costs_what_its_responses_add() -> None:
    store = roomy()
    latest, total = None, 0
    for number in range(10):
        latest = state(f"resp_{number}", latest, text="x" * 1000)
        total += latest.size_bytes
        await store.save("t", latest)
    assert store.used_bytes == total


async def test_a_forgotten_ancestor_costs_until_its_last_descendant_is_forgotten() -> None:
    first = state("resp_1", text="x" * 10_000)
    second = state("resp_2", first)
    store = MemoryStore(first.size_bytes + second.size_bytes)
    await store.save("t", first)
    await store.save("t", second)
    other = state("resp_3")
    await store.save("t", other)
    # Forgetting the first frees nothing while the second holds it, so the second has to go too.
    assert await known(store, "resp_1", "resp_2", "resp_3") == ["resp_3"]
    assert store.used_bytes == other.size_bytes


async def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = MemoryStore(10)
    await store.save("t", state("resp_1", None, item("msg_1")))
    assert (len(store), store.used_bytes) == (0, 0)
    assert await store.load_items("t", ["msg_1"]) == {}


async def test_everything_is_given_back_in_the_end() -> None:
    store = MemoryStore(20_000)
    latest = None
    for number in range(200):
        parent = latest if number % 7 else None
        latest = state(f"resp_{number}", parent, item(f"msg_{number}"), text="x" * (number % 50))
        await store.save("t", latest)
        assert store.used_bytes <= 20_000
    await store.save("t", state("resp_last", text="x" * 20_000))
    assert (len(store), store.used_bytes) == (0, 0)


async def test_the_store_is_opened_by_its_name() -> None:
    store = open_store("memory", Limits(store_bytes=5))
    assert store.name == "memory"
    await store.start()
    await store.save("t", state("resp_1"))
    assert await store.load("t", "resp_1") is None
    await store.close()
    with pytest.raises(StartupError, match=r"^--store attic: unknown store \(known: memory"):
        open_store("attic", Limits())


async def test_a_response_that_the_store_had_to_forget_is_not_found() -> None:
    async with serve(limits=Limits(store_bytes=3000)) as server:
        _, first = await server.post(input="hello")
        for _ in range(3):
            await server.post(input="hello")
        status, body = await server.post(input="again", previous_response_id=first["id"])
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_an_item_that_two_responses_hold_stays_until_both_are_forgotten() -> None:
    shared = item("msg_shared")
    first, second = state("resp_1", None, shared), state("resp_2", None, shared)
    store = MemoryStore(first.size_bytes + second.size_bytes)
    await store.save("t", first)
    await store.save("t", second)
    await store.save("t", state("resp_3"))
    assert await known(store, "resp_1", "resp_2") == ["resp_2"]
    assert await store.load_items("t", ["msg_shared"]) == {"msg_shared": shared}
    await store.save("t", state("resp_4", text="x" * second.size_bytes))
    assert await known(store, "resp_2") == []
    assert await store.load_items("t", ["msg_shared"]) == {}
