"""Conversations, on every kind of store."""

import asyncio

import pytest
from msgspec import structs

from slipring.protocol.items.items import Item
from slipring.stores.conversations import Appended, Conversation, Page, UnknownItem
from slipring.stores.databases.database import UniqueViolated
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation
from tests.stores.samples import message, state

CONVERSATION = Conversation(id="conv_1", created_at=7, metadata={"a": "b\0"})


def items(*names: str) -> list[Item]:
    return [message(name, f"text of {name}") for name in names]


def names(found: "list[Item] | tuple[Item, ...]") -> list[str | None]:
    return [item.id for item in found]


async def listed(store: Store, **page: object) -> tuple[list[str | None], bool]:
    found = await store.conversations.items("t", "conv_1", Page(**page))  # type: ignore[arg-type]
    assert found is not None
    return names(found[0]), found[1]


async def test_a_conversation_is_created_read_updated_and_deleted(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a"))
    assert await conversations.read("t", "conv_1") == CONVERSATION
    with pytest.raises(UniqueViolated):
        await conversations.create("t", CONVERSATION, ())
    changed = await conversations.update("t", "conv_1", {"c": "d"})
    assert changed == Conversation(id="conv_1", created_at=7, metadata={"c": "d"})
    assert await conversations.read("t", "conv_1") == changed
    assert await conversations.delete("t", "conv_1") is True
    assert await conversations.delete("t", "conv_1") is False
    assert await conversations.read("t", "conv_1") is None
    await conversations.create("t", CONVERSATION, ())
    assert await conversations.all_items("t", "conv_1") == ()


async def test_tenants_cannot_see_each_others_data(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("a", CONVERSATION, items("x"))
    assert await conversations.read("b", "conv_1") is None
    assert await conversations.update("b", "conv_1", {}) is None
    assert await conversations.add("b", "conv_1", items("y")) is False
    assert await conversations.items("b", "conv_1", Page()) is None
    assert await conversations.items("b", "conv_1", Page(after="x")) is None
    assert await conversations.item("b", "conv_1", "x") is None
    assert await conversations.delete_item("b", "conv_1", "x") is False
    assert await conversations.thread("b", "conv_1") is None
    assert await conversations.all_items("b", "conv_1") == ()
    await conversations.append("b", "resp_1", Appended("conv_1", 0, tuple(items("z"))))
    assert await conversations.delete("b", "conv_1") is False
    thread = await conversations.thread("a", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, names(thread.added)) == (0, None, ["x"])


async def test_items_are_listed_in_pages(store: Store) -> None:
    await store.conversations.create("t", CONVERSATION, items("a", "b"))
    assert await store.conversations.add("t", "conv_1", items("c", "d", "e")) is True
    assert await listed(store, ascending=True) == (["a", "b", "c", "d", "e"], False)
    assert await listed(store) == (["e", "d", "c", "b", "a"], False)
    assert await listed(store, limit=2) == (["e", "d"], True)
    assert await listed(store, limit=2, after="d") == (["c", "b"], True)
    assert await listed(store, limit=2, after="b") == (["a"], False)
    assert await listed(store, limit=3, ascending=True, after="b") == (["c", "d", "e"], False)
    assert await listed(store, after="a") == ([], False)
    with pytest.raises(UnknownItem):
        await listed(store, after="missing")
    assert await store.conversations.items("t", "conv_2", Page(after="a")) is None
    assert await store.conversations.item("t", "conv_1", "c") == items("c")[0]
    assert await store.conversations.item("t", "conv_1", "missing") is None


@pytest.mark.parametrize("ascending", [True, False])
async def test_a_page_may_begin_after_a_deleted_item(location: StoreLocation, ascending: bool) -> None:
    store = await location.open()
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items(*"abcdefg"))
    left = True
    seen: list[str] = []
    while left:
        found, left = await listed(store, limit=2, ascending=ascending, after=seen[-1] if seen else None)
        for name in found:
            assert name is not None
            assert await conversations.delete_item("t", "conv_1", name)
            seen.append(name)
    assert seen == sorted("abcdefg", reverse=not ascending)
    assert await conversations.add("t", "conv_1", items("x", "a", "y"))
    assert await listed(store, ascending=True, after="g") == (["x", "a", "y"], False)
    assert await listed(store, ascending=True, after="a") == (["y"], False), "the item, not the deleted one"
    assert await conversations.delete_item("t", "conv_1", "a")
    assert await listed(store, ascending=True, after="a") == (["y"], False)
    with pytest.raises(UnknownItem):
        await conversations.items("t", "conv_1", Page(after="missing"))
    await conversations.create("t", structs.replace(CONVERSATION, id="conv_2"), ())
    with pytest.raises(UnknownItem):
        await conversations.items("t", "conv_2", Page(after="a"))


async def test_the_positions_of_deleted_items_are_removed_after_a_day(location: StoreLocation) -> None:
    store = await location.open()
    await store.conversations.create("t", CONVERSATION, items("a", "b"))
    await store.conversations.delete_item("t", "conv_1", "a")
    assert await store.pruning.step(location.now + 86_399) == 0
    assert await listed(store, ascending=True, after="a") == (["b"], False)
    assert await store.pruning.step(location.now + 86_400) == 1
    with pytest.raises(UnknownItem):
        await listed(store, after="a")
    await store.conversations.delete_item("t", "conv_1", "b")
    assert await store.conversations.delete("t", "conv_1")
    assert await store.pruning.step(location.now + 86_400) == 0


async def test_a_response_becomes_the_tip_and_later_items_follow_it(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a"))
    await conversations.append("t", "resp_1", Appended("conv_1", 0, tuple(items("q", "r"))))
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, thread.added) == (1, "resp_1", ())
    await conversations.add("t", "conv_1", items("b", "c"))
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, names(thread.added)) == (2, "resp_1", ["b", "c"])
    assert thread.conversation == CONVERSATION
    assert names(await conversations.all_items("t", "conv_1")) == ["a", "q", "r", "b", "c"]


async def test_two_responses_from_the_same_version_leave_no_tip(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a"))
    await asyncio.gather(
        *(
            conversations.append(
                "t", f"resp_{each}", Appended("conv_1", 0, tuple(items(f"{each}1", f"{each}2")))
            )
            for each in "xy"
        )
    )
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip) == (2, None)
    found = names(thread.added)
    assert found in (["a", "x1", "x2", "y1", "y2"], ["a", "y1", "y2", "x1", "x2"])
    await conversations.append("t", "resp_z", Appended("conv_1", 2, tuple(items("z"))))
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.tip, thread.added) == ("resp_z", ())


async def test_concurrent_additions_are_all_kept_in_order(location: StoreLocation) -> None:
    first = await location.open()
    second = await location.open() if first.is_shared else first
    await first.conversations.create("t", CONVERSATION, ())
    await asyncio.gather(
        *(
            (first if number % 2 else second).conversations.add(
                "t", "conv_1", items(f"{number}a", f"{number}b")
            )
            for number in range(30)
        )
    )
    found = names(await first.conversations.all_items("t", "conv_1"))
    assert sorted(map(str, found)) == sorted(f"{number}{part}" for number in range(30) for part in "ab")
    assert all(str(found[index])[:-1] == str(found[index + 1])[:-1] for index in range(0, 60, 2))
    thread = await second.conversations.thread("t", "conv_1")
    assert thread is not None
    assert thread.version == 30


async def test_an_item_with_an_existing_id_is_skipped(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a"))
    saved = state("resp_1")
    again = message("a", "another text")
    await store.responses.save("t", saved, appended=Appended("conv_1", 0, (again, *items("b"))))
    assert await conversations.all_items("t", "conv_1") == tuple(items("a", "b"))
    assert await conversations.add("t", "conv_1", items("b", "c")) is True
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.tip, names(thread.added)) == ("resp_1", ["c"])


async def test_an_item_gets_its_spare_id_if_its_own_is_taken(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a"))
    twins = (message("a", "2"), message("b", "3"), message("b", "4"), message("c", "5"))
    spare = {0: "spare_0", 1: "spare_1", 2: "spare_2"}
    await conversations.append("t", "resp_1", Appended("conv_1", 0, twins, spare))
    found = await conversations.all_items("t", "conv_1")
    assert names(found) == ["a", "spare_0", "b", "spare_2", "c"]
    assert [item.raw for item in found[1:]] == [
        message(name or "", text).raw for name, text in zip(names(found[1:]), "2345", strict=True)
    ]
    assert await listed(store, ascending=True) == (["a", "spare_0", "b", "spare_2", "c"], False)
    assert await conversations.item("t", "conv_1", "spare_2") == found[3]


async def test_items_are_found_by_their_ids_alone(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a", "b", "c"))
    second = structs.replace(CONVERSATION, id="conv_2")
    other = message("b", "another text")
    await conversations.create("t", second, [other, *items("c", "d")])
    await conversations.create("u", CONVERSATION, [message("a", "of another tenant"), *items("e")])
    wanted = ["a", "b", "c", "d", "e", "missing", "a\0"]
    assert await store.item_references.find("t", wanted) == {item.id: item for item in items("a", "c", "d")}
    found = await store.item_references.find("t", wanted, "conv_2")
    assert found == {item.id: item for item in [other, *items("a", "c", "d")]}
    assert await store.item_references.find("t", ["b"], "conv_3") == {}


async def test_deleting_an_item_in_the_context_of_the_tip_clears_the_tip(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a"))
    await conversations.append("t", "resp_1", Appended("conv_1", 0, tuple(items("b"))))
    await conversations.add("t", "conv_1", items("c", "d"))
    assert await conversations.delete_item("t", "conv_1", "c") is True
    assert await conversations.delete_item("t", "conv_1", "c") is False
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, names(thread.added)) == (3, "resp_1", ["d"])
    assert await conversations.delete_item("t", "conv_1", "b") is True
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip, names(thread.added)) == (4, None, ["a", "d"])


async def test_deleting_an_item_during_a_turn_leaves_no_tip(store: Store) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a", "b"))
    await conversations.delete_item("t", "conv_1", "a")
    await conversations.append("t", "resp_1", Appended("conv_1", 0, tuple(items("c"))))
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.tip, names(thread.added)) == (None, ["b", "c"])


async def test_saving_a_response_appends_to_its_conversation(store: Store) -> None:
    await store.conversations.create("t", CONVERSATION, ())
    await store.responses.save("t", state("resp_1"), appended=Appended("conv_1", 0, tuple(items("a"))))
    thread = await store.conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.version, thread.tip) == (1, "resp_1")
    await store.conversations.delete("t", "conv_1")
    await store.responses.save("t", state("resp_2"), appended=Appended("conv_1", 1, tuple(items("b"))))
    assert await store.responses.load("t", "resp_2") is not None
    assert await store.conversations.read("t", "conv_1") is None
    assert await store.conversations.all_items("t", "conv_1") == ()


async def test_conversations_are_kept_until_they_are_deleted(durable: StoreLocation) -> None:
    store = await durable.open(retention_s=1)
    odd = Item(type="message", raw=b"{}", id="x\0y", opened=(message(None),))
    await store.conversations.create("t", CONVERSATION, [odd])
    while await store.pruning.step(10**9):
        pass
    await store.close()
    store = await durable.open()
    assert await store.conversations.read("t", "conv_1") == CONVERSATION
    assert await store.conversations.item("t", "conv_1", "x\0y") == odd
