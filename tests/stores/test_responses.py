"""Responses and chains, on every kind of store."""

import asyncio

import pytest
from msgspec import Raw, structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, OpenCall
from slipring.core.checks.verdicts import Finding, NodeVerdicts
from slipring.protocol.items.items import Item
from slipring.protocol.requests import TextFormat
from slipring.protocol.responses import ConversationEcho, InputTokensDetails, OutputTokensDetails, Usage
from slipring.stores.conversations import Conversation
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation
from tests.stores.samples import (
    HEAD,
    TOOLS,
    TokenPositions,
    Tokens,
    chain,
    encoded,
    ids,
    message,
    same,
    state,
)


async def test_a_saved_state_is_loaded_from_memory(store: Store) -> None:
    first, second = chain(2)
    await store.responses.save("t", first)
    await store.responses.save("t", second)
    assert await store.responses.load("t", "resp_1") is second
    assert await store.responses.load("t", "resp_0") is first


async def test_an_unknown_response_is_not_found(store: Store) -> None:
    assert await store.responses.load("t", "resp_0") is None
    assert await store.responses.retrieve("t", "resp_0") is None
    assert await store.responses.delete("t", "resp_0") is False


async def test_verdicts_are_saved_and_can_be_replaced(durable: StoreLocation) -> None:
    store, other = await durable.open(), await durable.open()
    finding = Finding("input", "message", "guard", "1", ("violence",))
    kept = state("resp_0", verdicts=NodeVerdicts(b"policy", (finding,), is_audited=True))
    await store.responses.save("t", kept)
    found = await other.responses.load("t", "resp_0")
    assert found is not None
    assert found.verdicts == kept.verdicts
    assert found.size_bytes == kept.size_bytes
    assert kept.verdicts is not None
    await store.responses.judge("t", "resp_0", kept.verdicts.audited((), "late"))
    assert await other.responses.load("t", "resp_0") is found
    assert found.refused_by == "late"
    await store.responses.judge("t", "resp_1", kept.verdicts)  # has no effect
    assert await store.responses.load("t", "resp_1") is None


async def test_ids_may_contain_any_characters(store: Store) -> None:
    for odd in ("\0", "resp_\0x", "'; DROP TABLE slipring_responses; --", "ü" * 500, "$1"):
        assert await store.responses.load("t", odd) is None
        await store.responses.save("t", state(odd))
        assert ids(await store.responses.load("t", odd)) == [odd]


async def test_tenants_cannot_see_each_others_data(store: Store) -> None:
    ours, theirs = state("resp_1", model="ours"), state("resp_1", model="theirs")
    await store.responses.save("a", ours)
    item_id = ours.output[0].id or ""
    assert await store.responses.load("b", "resp_1") is None
    assert await store.responses.retrieve("b", "resp_1") is None
    assert await store.responses.load_items("b", [item_id]) == {}
    assert await store.responses.delete("b", "resp_1") is False
    await store.responses.save("b", theirs)
    assert await store.responses.load("a", "resp_1") is ours
    assert await store.responses.load("b", "resp_1") is theirs
    assert await store.responses.delete("b", "resp_1") is True
    assert await store.responses.load("a", "resp_1") is ours


async def test_a_loaded_chain_shares_heads_and_carries(durable: StoreLocation) -> None:
    store = await durable.open()
    root = state("resp_0", head=HEAD)
    calls = Carry(open_calls={"call_2": OpenCall("function_call"), "call_1": OpenCall("shell_call", False)})
    called = state("resp_1", root, carry=calls)
    plain = state("resp_2", called)
    other_head = Head(instructions="Be verbose.", tools=HEAD.tools)
    fmt = TextFormat(kind="json_schema", echo=Raw(b'{"type":"json_schema"}'), schema=b'{"a": 1}')
    changed = Carry(open_calls={}, tools=TOOLS.callables, effort="high", format=fmt)
    last = state("resp_3", plain, head=other_head, carry=changed)
    for each in (root, called, plain, last):
        await store.responses.save("t", each)
    await store.close()

    loaded = await (await durable.open()).responses.load("t", "resp_3")
    assert loaded is not None
    assert same(loaded, last)
    nodes = list(loaded.chain())
    assert nodes[3].head is nodes[2].head is nodes[1].head
    assert nodes[1].head.tools is nodes[0].head.tools
    assert nodes[2].carry is not nodes[3].carry
    assert nodes[2].carry is nodes[1].carry
    assert list(nodes[1].carry.open_calls) == ["call_2", "call_1"]
    assert [each.size_bytes for each in nodes] == [each.size_bytes for each in last.chain()]


async def test_equal_heads_of_a_loaded_chain_are_one_object(durable: StoreLocation) -> None:
    store = await durable.open()
    first = state("resp_0", head=HEAD)
    second = state("resp_1", first, head=Head(instructions="Otherwise."))
    third = state("resp_2", second, head=HEAD)
    await store.responses.save("t", third)
    loaded = await (await durable.open()).responses.load("t", "resp_2")
    assert loaded is not None
    assert same(loaded, third)
    assert len({id(each.head) for each in loaded.chain()}) == 2


async def test_every_field_of_a_response_is_restored(durable: StoreLocation) -> None:
    store = await durable.open()
    sealed = Item(
        type="compaction",
        raw=b'{"type":"compaction","encrypted_content":"x"}',
        opened=(message(None, "the whole story"),),
    )
    saved = state(
        "resp_0",
        head=HEAD,
        given=(sealed, message("msg_from_elsewhere")),
        metadata={"a": "\0", "ü": "日本"},
        usage=Usage(3, InputTokensDetails(1, 0), 4, OutputTokensDetails(2), 7),
        completed_at=5,
        conversation=ConversationEcho("conv_1"),
        user="somebody",
    )
    await store.responses.save("t", saved)
    await store.close()
    store = await durable.open()
    assert encoded(await store.responses.retrieve("t", "resp_0")) == encoded(saved.response)
    assert same(await store.responses.load("t", "resp_0"), saved)


async def test_positions_are_stored_as_differences_along_the_chain(durable: StoreLocation) -> None:
    store = await durable.open(positions=TokenPositions())
    first = state("resp_0", position=Tokens((1, 2, 3)))
    second = state("resp_1", first)
    third = state("resp_2", first, position=Tokens((1, 2, 3, 4, 5)))
    for each in (first, second, third):
        await store.responses.save("t", each)
    await store.close()
    again = await durable.open(positions=TokenPositions())
    loaded = await again.responses.load("t", "resp_2")
    assert loaded is not None
    assert loaded.position == Tokens((1, 2, 3, 4, 5))
    without = await again.responses.load("t", "resp_1")
    assert without is not None
    assert without.position is None
    without_codec = await (await durable.open()).responses.load("t", "resp_2")
    assert without_codec is not None
    assert without_codec.position is None


async def test_forks_share_their_ancestors(durable: StoreLocation) -> None:
    store = await durable.open()
    trunk = chain(3)
    left, right = state("resp_left", trunk[-1]), state("resp_right", trunk[-1])
    for each in (*trunk, left, right):
        await store.responses.save("t", each)
    again = await durable.open()
    assert same(await again.responses.load("t", "resp_left"), left)
    assert same(await again.responses.load("t", "resp_right"), right)
    middle = await again.responses.load("t", "resp_2")
    assert same(middle, trunk[-1])
    await store.responses.save("t", state("resp_late", trunk[-1]))
    late = await again.responses.load("t", "resp_late")
    assert late is not None
    assert late.parent is middle, "a cached ancestor is used"


async def test_a_chain_of_1200_responses_is_saved_and_loaded(durable: StoreLocation) -> None:
    store = await durable.open()
    states = chain(1200)
    await store.responses.save("t", states[-1])
    loaded = await (await durable.open()).responses.load("t", "resp_1199")
    assert same(loaded, states[-1])


async def test_unstored_ancestors_are_kept_but_not_found(durable: StoreLocation) -> None:
    store = await durable.open()
    states = chain(20)
    await store.responses.save("t", states[3])
    await store.responses.save("t", states[19])
    again = await durable.open()
    assert same(await again.responses.load("t", "resp_19"), states[19])
    for name in (f"resp_{number}" for number in range(19) if number != 3):
        assert await again.responses.load("t", name) is None
        assert await again.responses.retrieve("t", name) is None
        assert await again.responses.delete("t", name) is False
    assert same(await again.responses.load("t", "resp_3"), states[3])
    assert await again.responses.load_items("t", [states[5].output[0].id or ""]) == {}
    assert await again.pruning.step(durable.now) == 0


async def test_a_response_that_is_saved_after_its_descendant_is_found(store: Store) -> None:
    first, second = chain(2)
    await store.responses.save("t", second)
    assert await store.responses.load("t", "resp_0") is None
    await store.responses.save("t", first)
    assert await store.responses.load("t", "resp_0") is first


async def test_saving_again_changes_nothing(durable: StoreLocation) -> None:
    store = await durable.open()
    first, second = chain(2)
    for _ in range(2):
        await store.responses.save("t", first)
        await store.responses.save("t", second)
    assert same(await (await durable.open()).responses.load("t", "resp_1"), second)
    await store.responses.delete("t", "resp_0")
    await store.responses.save("t", first)
    assert await store.responses.load("t", "resp_0") is None, "a deleted response is not restored"


async def test_deleting_a_parent_keeps_its_descendants(durable: StoreLocation) -> None:
    store = await durable.open()
    states = chain(4)
    for each in states:
        await store.responses.save("t", each)
    assert await store.responses.delete("t", "resp_1") is True
    assert await store.responses.delete("t", "resp_1") is False
    assert await store.responses.load("t", "resp_1") is None
    assert await store.responses.load_items("t", [states[1].output[0].id or ""]) == {}
    assert await store.pruning.step(durable.now) == 0
    assert same(await (await durable.open()).responses.load("t", "resp_3"), states[3])
    later = state("resp_later", states[1])
    await store.responses.save("t", later)
    assert same(await (await durable.open()).responses.load("t", "resp_later"), later)
    for name in ("resp_3", "resp_2", "resp_later"):
        assert await store.responses.delete("t", name) is True
    while await store.pruning.step(durable.now):
        pass
    assert same(await (await durable.open()).responses.load("t", "resp_0"), states[0])


async def test_saving_a_child_restores_the_row_of_a_removed_parent(durable: StoreLocation) -> None:
    store = await durable.open()
    first, second = chain(2)
    await store.responses.save("t", first)
    await store.responses.delete("t", "resp_0")
    while await store.pruning.step(durable.now):
        pass
    await store.responses.save("t", second)
    assert same(await (await durable.open()).responses.load("t", "resp_1"), second)
    assert await store.responses.load("t", "resp_0") is None


async def test_a_cached_response_that_another_process_deleted_is_not_found(durable: StoreLocation) -> None:
    here, there = await durable.open(), await durable.open()
    saved = state("resp_0")
    await here.responses.save("t", saved)
    assert same(await there.responses.load("t", "resp_0"), saved)
    assert await there.responses.delete("t", "resp_0") is True
    assert await here.responses.load("t", "resp_0") is None
    assert await here.responses.delete("t", "resp_0") is False


async def test_an_expired_response_is_not_found_but_its_descendants_are(location: StoreLocation) -> None:
    store = await location.open(retention_s=100)
    old = state("resp_old", created_at=900)
    young = state("resp_young", old, created_at=950)
    await store.responses.save("t", old)
    await store.responses.save("t", young)
    location.now = 999
    assert await store.responses.load("t", "resp_old") is old
    location.now = 1000
    assert await store.responses.load("t", "resp_old") is None
    assert await store.responses.retrieve("t", "resp_old") is None
    assert await store.responses.load_items("t", [old.output[0].id or ""]) == {}
    assert await store.responses.delete("t", "resp_old") is False
    assert await store.responses.load("t", "resp_young") is young
    assert await store.pruning.step(location.now) == 0
    assert await store.pruning.step(1050) == 3  # both, and their head
    assert await store.pruning.step(1050) == 0


async def test_items_are_found_by_their_ids(store: Store) -> None:
    theirs = message("msg_theirs", role="user")
    unnamed = message(None, "anonymous", role="user")
    saved = state("resp_abc", given=(theirs, unnamed))
    await store.responses.save("t", saved)
    output_id = saved.output[0].id or ""
    others = [
        "msg_abc0001",
        "msg_abci0009",
        "fco_abci0000",
        "fc_abc0000",
        "msg_abci-001",
        "",
        "x_",
        "msg_theirs",
        "msg_\0i0000",
    ]
    named = [output_id, "msg_abci0000", "msg_abci0001"]
    assert await store.responses.load_items("t", [*named, *others]) == {
        output_id: saved.output[0],
        # Found by position: the id under which an item is listed if its own id occurs twice.
        "msg_abci0000": structs.replace(theirs, id="msg_abci0000"),
        "msg_abci0001": structs.replace(unnamed, id="msg_abci0001"),
    }
    assert await store.responses.load_items("t", []) == {}
    assert await store.item_references.find("t", ["msg_theirs", *others[:-2]]) == {"msg_theirs": theirs}


async def test_items_are_found_by_the_ids_that_clients_chose(store: Store) -> None:
    hex_id = "msg_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b"
    again, other = message("again", "one", role="user"), message("other", "two", role="user")
    foreign, odd = message(hex_id, "from elsewhere", role="user"), message("o\0dd", "zero", role="user")
    made = message("made", "appended while it was made")
    first = state("resp_a", given=(again, again, foreign, odd), appended=(made,))
    second = state("resp_b", given=(again, other))
    unstored = state("resp_c", given=(message("hidden", "three", role="user"),))
    child = state("resp_d", unstored)
    for each in (first, second, child):
        await store.responses.save("t", each)
    await store.responses.save("t", child)
    wanted = ["again", "other", hex_id, "o\0dd", "made", "hidden"]
    named = {item.id: item for item in (again, other, foreign, odd, made)}
    assert await store.item_references.find("t", wanted) == named
    assert await store.item_references.find("u", wanted) == {}
    await store.responses.save("t", unstored)
    assert list(await store.item_references.find("t", ["hidden"])) == ["hidden"]
    # Which of two items is meant is not known.
    third = state("resp_e", given=(message("other", "not two", role="user"),))
    await store.responses.save("t", third)
    assert await store.item_references.find("t", ["other"]) == {}
    await store.responses.delete("t", "resp_e")
    assert await store.item_references.find("t", ["other"]) == {"other": other}
    # An item that two responses have stays until both are deleted.
    await store.responses.delete("t", "resp_a")
    assert list(await store.item_references.find("t", wanted[:-1])) == ["again", "other"]
    await store.responses.delete("t", "resp_b")
    assert await store.item_references.find("t", wanted[:-1]) == {}


async def test_an_id_of_different_items_in_a_response_and_a_conversation_means_none(store: Store) -> None:
    mine = message("mine", "one", role="user")
    await store.responses.save("t", state("resp_a", given=(mine,)))
    conversation = Conversation(id="conv_1", created_at=1)
    await store.conversations.create("t", conversation, [mine])
    assert await store.item_references.find("t", ["mine"]) == {"mine": mine}
    other = structs.replace(conversation, id="conv_2")
    theirs = message("mine", "two", role="user")
    await store.conversations.create("t", other, [theirs])
    assert await store.item_references.find("t", ["mine"]) == {}
    assert await store.item_references.find("t", ["mine"], "conv_2") == {"mine": theirs}


async def test_pruning_does_not_disturb_concurrent_saves(durable: StoreLocation) -> None:
    stores = [await durable.open(), await durable.open()]
    chains = [chain(5, f"resp_{number}_") for number in range(30)]

    async def play(number: int) -> None:
        for each in chains[number]:
            await stores[number % 2].responses.save("t", each)

    async def prune() -> None:
        for _ in range(20):
            await stores[1].pruning.step(0)

    await asyncio.gather(*(play(number) for number in range(30)), prune())
    again = await durable.open()
    for number, states in enumerate(chains):
        assert same(await again.responses.load("t", f"resp_{number}_4"), states[-1])


async def test_a_forked_chain_is_pruned_completely(location: StoreLocation) -> None:
    store = await location.open(retention_s=100)
    trunk = chain(5)
    states = [*trunk, *chain(5, "resp_a", trunk[-1]), *chain(5, "resp_b", trunk[-1])]
    for each in states:
        await store.responses.save("t", each)
    removed = 0
    while step := await store.pruning.step(location.now, limit=4):
        assert step <= 5
        removed += step
    assert removed == len(states) + 1


@pytest.mark.parametrize("room", [0, 1])
async def test_states_beyond_the_memory_limit_are_not_cached(durable: StoreLocation, room: int) -> None:
    store = await durable.open(recent_bytes=room)
    saved = state("resp_0")
    await store.responses.save("t", saved)
    loaded = await store.responses.load("t", "resp_0")
    assert loaded is not saved
    assert same(loaded, saved)
