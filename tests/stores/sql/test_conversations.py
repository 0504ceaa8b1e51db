"""Conversations, on every kind of store."""

import asyncio

import pytest

from slipring.protocol.items import Item
from slipring.stores.base import Appended, Conversation, Page
from slipring.stores.databases.database import UniqueViolated
from slipring.stores.sql.store import SqlStore
from tests.stores.conftest import Place
from tests.stores.material import message, state

CONVERSATION = Conversation(id="conv_1", created_at=7, metadata={"a": "b\0"})


def items(*names: str) -> list[Item]:
    return [message(name, f"text of {name}") for name in names]


def names(found: "list[Item] | tuple[Item, ...]") -> list[str | None]:
    return [item.id for item in found]


async def listed(store: SqlStore, **page: object) -> tuple[list[str | None], bool]:
    found = await store.conversations.items("t", "conv_1", Page(**page))  # type: ignore[arg-type]
    assert found is not None
    return names(found[0]), found[1]


async def test_a_conversation_is_made_read_changed_and_deleted(store: SqlStore) -> None:
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


async def test_tenants_never_see_each_other(store: SqlStore) -> None:
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


async def test_pages(store: SqlStore) -> None:
    await store.conversations.create("t", CONVERSATION, items("a", "b"))
    assert await store.conversations.add("t", "conv_1", items("c", "d", "e")) is True
    assert await listed(store, ascending=True) == (["a", "b", "c", "d", "e"], False)
    assert await listed(store) == (["e", "d", "c", "b", "a"], False)
    assert await listed(store, limit=2) == (["e", "d"], True)
    assert await listed(store, limit=2, after="d") == (["c", "b"], True)
    assert await listed(store, limit=2, after="b") == (["a"], False)
    assert await listed(store, limit=3, ascending=True, after="b") == (["c", "d", "e"], False)
    assert await listed(store, after="a") == ([], False)
    assert await listed(store, after="nobody") == ([], False)
    assert await store.conversations.items("t", "conv_2", Page(after="a")) is None
    assert await store.conversations.item("t", "conv_1", "c") == items("c")[0]
    assert await store.conversations.item("t", "conv_1", "nobody") is None


async def test_a_response_becomes_the_tip_and_what_is_added_comes_after_it(store: SqlStore) -> None:
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


async def test_of_two_responses_from_one_version_neither_is_the_tip(store: SqlStore) -> None:
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


async def test_many_add_at_once_and_nothing_is_lost(place: Place) -> None:
    first = await place.open()
    second = await place.open() if first.is_shared else first
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
    assert all(str(found[place])[:-1] == str(found[place + 1])[:-1] for place in range(0, 60, 2))
    thread = await second.conversations.thread("t", "conv_1")
    assert thread is not None
    assert thread.version == 30


async def test_an_item_that_is_there_already_gets_no_second_place(store: SqlStore) -> None:
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


async def test_deleting_an_item_that_the_tip_knows_clears_the_tip(store: SqlStore) -> None:
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


async def test_an_item_that_is_deleted_meanwhile_leaves_no_tip(store: SqlStore) -> None:
    conversations = store.conversations
    await conversations.create("t", CONVERSATION, items("a", "b"))
    await conversations.delete_item("t", "conv_1", "a")
    await conversations.append("t", "resp_1", Appended("conv_1", 0, tuple(items("c"))))
    thread = await conversations.thread("t", "conv_1")
    assert thread is not None
    assert (thread.tip, names(thread.added)) == (None, ["b", "c"])


async def test_a_stored_response_and_its_conversation_are_one_step(store: SqlStore) -> None:
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


async def test_conversations_are_kept_until_they_are_deleted(durable: Place) -> None:
    store = await durable.open(retention_s=1)
    odd = Item(type="message", raw=b"{}", id="x\0y", opened=(message(None),))
    await store.conversations.create("t", CONVERSATION, [odd])
    while await store.prune(10**9):
        pass
    await store.close()
    store = await durable.open()
    assert await store.conversations.read("t", "conv_1") == CONVERSATION
    assert await store.conversations.item("t", "conv_1", "x\0y") == odd
