"""Items that tenants sent lately: which are found, for how long, and what they count for."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from msgspec import Raw

from slipring.core.chain import input_items
from slipring.core.chain.resent_history import NOTHING_YET, KnownItems, boundary_digests
from slipring.protocol import wire
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.protocol.items.items import Item, read_items
from slipring.protocol.requests import CreateRequest, read_create

LONG = 10.0


def items(*texts: str) -> tuple[Item, ...]:
    return read_items(
        [Raw(b'{"type":"message","role":"user","content":"%b"}' % text.encode()) for text in texts]
    )


def kept(known: KnownItems, *texts: str, tenant: str = "t", now: float = 0.0) -> tuple[Item, ...]:
    found = items(*texts)
    known.remember(tenant, {item.sent: item for item in found}, now)
    return found


def test_finds_an_item_by_the_bytes_that_were_sent() -> None:
    known = KnownItems(LONG, 10**6)
    (one,) = kept(known, "one")
    sent = b'{"role":"user","content":"two"}'
    (two,) = read_items([Raw(sent)])
    known.remember("t", {two.sent: two}, 0.0)
    assert two.raw != sent
    assert known.of("t").get(one.raw) is one
    assert known.of("t").get(sent) is two
    assert read_items([Raw(one.raw), Raw(sent)], known.of("t")) == (one, two)


def test_knows_an_item_for_its_tenant_only() -> None:
    known = KnownItems(LONG, 10**6)
    (one,) = kept(known, "one")
    assert one.raw not in known.of("another")


def test_keeps_the_item_that_came_first() -> None:
    known = KnownItems(LONG, 10**6)
    (one,) = kept(known, "one")
    used_bytes = known.used_bytes
    kept(known, "one")
    assert known.of("t")[one.raw] is one
    assert known.used_bytes == used_bytes


def test_keeps_nothing_without_a_duration_or_a_limit() -> None:
    for known in (KnownItems(0.0, 10**6), KnownItems(LONG, 0)):
        kept(known, "one")
        assert not known.of("t")
        assert known.used_bytes == 0


def test_forgets_an_item_that_was_not_sent_for_long() -> None:
    known = KnownItems(LONG, 10**6)
    one, two = kept(known, "one", "two")
    known.remember("t", {one.sent: one}, 5.0)
    known.sweep(10.0)
    assert one.raw in known.of("t")
    assert two.raw not in known.of("t")
    known.sweep(15.0)
    assert not known.of("t")
    assert known.used_bytes == 0


def test_forgets_all_items_of_a_tenant() -> None:
    known = KnownItems(LONG, 10**6)
    kept(known, "one", "two")
    (other,) = kept(known, "one", tenant="u")
    known.forget("t")
    known.forget("t")
    assert not known.of("t")
    assert known.of("u")[other.raw] is other


def test_a_turn_without_items_keeps_nothing_and_leaves_nothing_behind() -> None:
    known = KnownItems(LONG, 10**6)
    kept(known)
    known.sweep(0.0)
    assert known.used_bytes == 0
    assert not known._by_tenant


def test_keeps_within_its_bytes_at_the_cost_of_the_largest_tenant() -> None:
    probe = KnownItems(LONG, 10**6)
    kept(probe, "a")
    size_bytes = probe.used_bytes
    known = KnownItems(LONG, 3 * size_bytes + size_bytes // 2)
    (small,) = kept(known, "a", tenant="small")
    first, second = kept(known, "a", "b")
    (third,) = kept(known, "c")
    assert known.used_bytes == 3 * size_bytes
    assert small.raw in known.of("small")
    assert first.raw not in known.of("t")
    assert set(known.of("t")) == {second.raw, third.raw}


EXCHANGES = 1000


def resent_items() -> CreateRequest:
    """A history of calls and outputs."""
    sent: list[dict[str, str]] = []
    for number in range(EXCHANGES):
        call_id = f"call_{number}"
        sent.append({"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"})
        sent.append({"type": "function_call_output", "call_id": call_id, "output": f"found {number}"})
    return read_create(wire.encode({"type": "response.create", "input": sent}))


def resent_messages() -> CreateRequest:
    """The same by Chat Completions."""
    sent: list[dict[str, object]] = []
    for number in range(EXCHANGES):
        call = {"id": f"call_{number}", "function": {"name": "look", "arguments": "{}"}}
        sent.append({"role": "assistant", "tool_calls": [call]})
        sent.append({"role": "tool", "tool_call_id": f"call_{number}", "content": f"found {number}"})
    return ChatTranslation("fp").read(wire.encode({"messages": sent}))


@pytest.mark.parametrize("resent", [resent_items, resent_messages])
def test_small_items_take_little_more_memory_than_they_count_for(
    resent: Callable[[], CreateRequest],
) -> None:
    """With all that a turn works out of them and keeps."""

    def remembered() -> KnownItems:
        known, request = KnownItems(LONG, 2**30), resent()
        request.read_ahead(digests=True, known={})
        input_items.join(input_items.NOTHING, request.items, complete=False)
        boundary_digests(NOTHING_YET, request.items)
        known.remember("t", request.pieces, 0.0)
        return known

    remembered()  # imports, and what decoders keep
    gc.collect()
    tracemalloc.start()
    known = remembered()
    gc.collect()
    used_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(known) == 2 * EXCHANGES
    assert used_bytes < 1.2 * known.used_bytes
