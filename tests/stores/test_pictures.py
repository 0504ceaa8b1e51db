"""Pictures are stored once for each tenant, and go with the last row that uses them."""

from typing import Any

from slipring.protocol import wire
from slipring.protocol.items.items import Item, read_item
from slipring.stores.conversations import Appended, Conversation
from slipring.stores.databases.database import Statement
from slipring.stores.pictures import Detached, digests_in, unpack
from slipring.stores.response_codec import pack_chain, unpack_chain
from slipring.stores.runs import Beginning
from slipring.stores.store import Store
from tests.pictures import data_url, png
from tests.stores.conftest import StoreLocation
from tests.stores.samples import HEAD, encoded, response, same, state

SHOT, OTHER = data_url(png(120, 100)), data_url(png(120, 100, seed=1))


def shown(*urls: str, **fields: Any) -> Item:
    parts = [{"type": "input_image", "image_url": url} for url in urls]
    return read_item(wire.encode({"type": "message", "role": "user", "content": parts, **fields}), "")


async def counted(store: Store, table: str = "slipring_pictures") -> int:
    rows = await store._database.read(f"SELECT COUNT(*) FROM {table}")
    return int(rows[0][0])


async def test_a_picture_of_several_responses_is_stored_once_and_read_with_each(location: StoreLocation):
    store = await location.open(recent_bytes=0)
    first = state("resp_1", given=[shown(SHOT)])
    second = state("resp_2", first, given=[shown(SHOT, OTHER)], appended=[shown(OTHER)])
    alone = state("resp_3", given=[shown(SHOT), shown(OTHER)])
    for each in (first, second, alone):
        await store.responses.save("t", each)
    assert await counted(store) == 2
    for each in (first, second, alone):
        assert same(await store.responses.load("t", each.id), each)
    assert encoded(await store.responses.retrieve("t", "resp_2")) == encoded(second.response)
    await store.responses.save("u", state("resp_1", given=[shown(SHOT)]))
    assert await counted(store) == 3, "another tenant has its own"


async def test_a_picture_goes_with_the_last_response_that_uses_it(location: StoreLocation):
    store = await location.open(recent_bytes=0)
    for name in ("resp_1", "resp_2"):
        await store.responses.save("t", state(name, given=[shown(SHOT)]))
    await store.responses.delete("t", "resp_1")
    await store.pruning.step(0)
    assert await counted(store) == 1
    await store.responses.delete("t", "resp_2")
    await store.pruning.step(0)
    assert (await counted(store), await counted(store, "slipring_picture_uses")) == (0, 0)
    # It is known to have been stored, and is stored again.
    again = state("resp_4", given=[shown(SHOT)])
    await store.responses.save("t", again)
    assert same(await store.responses.load("t", "resp_4"), again)


async def test_pictures_of_ancestors_that_were_not_stored_are_stored_with_them(location: StoreLocation):
    store = await location.open(recent_bytes=0)
    first = state("resp_1", given=[shown(SHOT)])
    second = state("resp_2", first, given=[shown(OTHER)])
    third = state("resp_3", second)
    await store.responses.save("t", third)
    assert same(await store.responses.load("t", "resp_3"), third)
    await store.responses.save("t", second)
    assert await counted(store, "slipring_picture_uses") == 2


async def test_items_of_conversations_keep_their_pictures(store: Store):
    await store.conversations.create("t", Conversation("conv_1", 1), [shown(SHOT, id="msg_1")])
    assert await store.conversations.add("t", "conv_1", [shown(SHOT, id="msg_2")])
    given = shown(OTHER, id="msg_2")
    appended = Appended("conv_1", 1, (given,), {0: "msg_3"})
    await store.responses.save("t", state("resp_1", given=[given]), appended=appended)
    assert await counted(store) == 2
    items = await store.conversations.all_items("t", "conv_1")
    assert [item.id for item in items] == ["msg_1", "msg_2", "msg_3"]
    assert [SHOT.encode() in item.raw for item in items] == [True, True, False]
    assert await store.conversations.item("t", "conv_1", "msg_1") == items[0]
    assert await store.item_references.find("t", ["msg_1"]) == {"msg_1": items[0]}
    thread = await store.conversations.thread("t", "conv_1")
    assert thread is not None
    assert await store.conversations.delete_item("t", "conv_1", "msg_1")
    await store.pruning.step(0)
    assert await counted(store) == 2, "another item has the same picture"
    assert await store.conversations.delete("t", "conv_1")
    await store.pruning.step(0)
    assert await counted(store) == 1, "the response has it"
    await store.conversations.create("t", Conversation("conv_2", 1), [shown(SHOT, id="msg_1")])
    assert await counted(store) == 2, "what was pruned is stored again"


async def test_a_background_run_keeps_the_pictures_that_it_began_with(store: Store):
    began = Beginning(None, HEAD, (shown(SHOT),))
    run = response("resp_1", status="queued")
    lease = await store.runs.open("t", run, [], owner="a", lease_until=9, beginning=began)
    assert await store.runs.beginning("t", "resp_1") == began
    assert await counted(store) == 1
    await store.runs.append(lease, [], response("resp_1", status="completed"), lease_until=9)
    await store.pruning.step(0)
    assert await counted(store) == 0


async def test_a_full_memory_store_counts_pictures_and_removes_them() -> None:
    location = StoreLocation("memory")
    store = await location.open(recent_bytes=0, tenant_max_bytes=100_000)
    for number in range(20):
        url = data_url(png(120, 100, seed=number))
        given = [shown(url)]
        await store.responses.save("t", state(f"resp_{number}", given=given, created_at=number))
    while await store.pruning.step(0, limit=5):
        pass
    (_, used), *_ = await store._database.largest_tenants(1)
    assert 50_000 < used <= 100_000
    assert 3 <= await counted(store) <= 6
    assert await store.responses.load("t", "resp_19") is not None
    await location.close()


async def test_a_picture_that_is_known_is_not_sent_to_the_database_again(store: Store):
    await store.responses.save("t", state("resp_1", given=[shown(SHOT)]))
    written: list[Statement] = []
    write = store._database.write

    async def noted(*statements: Statement) -> Any:
        written.extend(statements)
        return await write(*statements)

    store._database.write = noted  # type: ignore[method-assign]
    await store.responses.save("t", state("resp_2", given=[shown(SHOT)]))
    sizes = [len(arg) for each in written for arg in each.args if isinstance(arg, bytes)]
    assert max(sizes) < 1000


def test_an_item_is_the_same_after_its_pictures_were_taken_out():
    escaped = wire.encode(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
    )
    items = (
        shown(SHOT, OTHER, SHOT),
        shown("data:image/png;base64,AAAA"),
        shown(
            SHOT.replace("data:image/png;base64", "DATA:image/PNG;Base64"), OTHER.replace("base64", "BASE64")
        ),
        Item("message", shown(SHOT).raw.replace(b"/", b"\\/")),
        Item("mcp_call", escaped, opened=(shown(SHOT), Item("message", escaped))),
        Item("compaction", shown(OTHER).raw, opened=(Item("message", escaped),)),
        Item("message", b'{"content":";base64,"}'),
        Item("message", b'{"content":";base64,' + b" " * 3000 + b'"}'),
    )
    detached = Detached()
    packed = detached.pack(items)
    assert len(packed) < 7000
    assert len(detached.found) == 3, "the same data is the same picture, whatever capitals its URL has"
    assert digests_in([packed]) == set(detached.found)
    stored = {digest: bytes(data) for digest, data in detached.found.items()}
    assert unpack(packed, stored) == items


def test_a_chain_that_is_sent_to_another_node_has_its_pictures():
    first = state("resp_1", given=[shown(SHOT)])
    second = state("resp_2", first, given=[shown(SHOT, OTHER)])
    assert same(unpack_chain(pack_chain(second, None), None), second)
