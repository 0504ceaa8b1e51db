"""Known contexts: found by what they contain, forgotten in time and within a bound."""

from msgspec import Struct

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.resent_history import (
    NOTHING_YET,
    KnownContext,
    KnownContexts,
    boundary_digests,
    extended_digest,
    start_key,
)
from slipring.core.chain.state import Position, echoed_bytes
from slipring.protocol.items.items import Item, opened_with, user_message
from tests.core.connection import node

HEAD = Head("Be brief.")
OWN_BYTES = 2000 + echoed_bytes(node("resp_1").response)
START = b"start"


class Tokens(Struct, frozen=True):
    """A position of this size, which continues another one, or none."""

    size_bytes: int = 0
    before: Position | None = None

    def unshared_bytes(self, earlier: object) -> int:
        shared = self.before.size_bytes if self.before is not None and self.before is earlier else 0
        return self.size_bytes - shared


def context(
    key: str,
    *,
    parent: KnownContext | None = None,
    size_bytes: int = 0,
    answer_items: int = 0,
    head: Head = HEAD,
    response_id: str = "resp_1",
) -> KnownContext:
    return KnownContext(
        START + key.encode(),
        response=node(response_id).response,
        head=head,
        position=Tokens(size_bytes, parent.position if parent is not None else None),
        root_id="resp_1",
        parent=parent,
        answer_items=answer_items,
    )


def keys(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def test_the_longest_known_beginning_is_found():
    known = KnownContexts(10.0, 10**6)
    first, second = (known.remember("t", context(key), 0.0) for key in ("one", "two"))
    assert known.deepest("t", START, (), keys("one", "two", "three"), 1.0) == (2, second)
    assert known.deepest("t", START, (), keys("one", "other"), 1.0) == (1, first)
    assert known.deepest("t", START, (), keys("other"), 1.0) is None
    assert known.deepest("t", START, (), [], 1.0) is None
    assert known.find("t", START + b"one") is first


def test_contexts_of_other_tenants_and_heads_are_not_found():
    known = KnownContexts(10.0, 10**6)
    known.remember("t", context("one"), 0.0)
    assert known.deepest("another", START, (), keys("one"), 1.0) is None
    assert known.find("another", START + b"one") is None
    assert known.deepest("t", b"other", (), keys("one"), 1.0) is None
    assert start_key("m", HEAD.digest) != start_key("m", Head("Be long.").digest)
    assert start_key("m", HEAD.digest) != start_key("n", HEAD.digest)


def test_something_must_follow_an_answer():
    known = KnownContexts(10.0, 10**6)
    asked = known.remember("t", context("asked"), 0.0)
    answered = known.remember("t", context("answered", answer_items=1), 0.0)
    assert known.deepest("t", START, (), keys("asked", "answered"), 1.0) == (1, asked)
    assert known.deepest("t", START, (), keys("asked", "answered", "more"), 1.0) == (2, answered)


def test_a_context_is_forgotten_when_it_was_not_used_for_a_while():
    known = KnownContexts(10.0, 10**6)
    known.remember("t", context("one"), 0.0)
    known.remember("t", context("two"), 0.0)
    assert known.deepest("t", START, (), keys("one"), 9.0) is not None
    assert known.deepest("t", START, (), keys("two"), 10.0) is None
    known.sweep(10.0)
    assert len(known) == 1
    known.sweep(19.0)
    assert (len(known), known.used_bytes) == (0, 0)


def test_a_context_that_is_known_already_is_renewed():
    known = KnownContexts(10.0, 10**6)
    first = known.remember("t", context("one"), 0.0)
    assert known.remember("t", context("one", response_id="resp_2"), 5.0) is first
    known.sweep(10.0)
    assert len(known) == 1


def test_shared_memory_counts_once_and_as_long_as_it_is_reachable():
    known = KnownContexts(10.0, 10**6)
    first = known.remember("t", context("one", size_bytes=500), 0.0)
    assert known.used_bytes == OWN_BYTES + 500 + HEAD.size_bytes
    known.remember("t", context("two", parent=first, size_bytes=700), 5.0)
    assert known.used_bytes == 2 * OWN_BYTES + 700 + HEAD.size_bytes
    known.sweep(10.0)
    assert len(known) == 1
    assert known.used_bytes == 2 * OWN_BYTES + 700 + HEAD.size_bytes
    known.sweep(15.0)
    assert known.used_bytes == 0


def test_memory_that_is_not_shared_with_the_context_before_counts():
    known = KnownContexts(10.0, 10**6)
    asked = known.remember("t", context("asked", size_bytes=500), 0.0)
    asked_at_once = Tokens(500)  # by an equal request: the context with its tokens is not kept
    answered = KnownContext(
        START + b"answered",
        response=asked.response,
        head=HEAD,
        position=Tokens(700, asked_at_once),
        root_id=None,
        parent=asked,
        answer_items=1,
    )
    before = known.used_bytes
    known.remember("t", answered, 0.0)
    assert known.used_bytes - before == 2000 + 700


def test_another_head_counts_again():
    first = context("one")
    other = Head("Be long.")
    assert context("two", parent=first, head=other).size_bytes == OWN_BYTES + other.size_bytes


def test_what_a_response_repeats_of_its_request_counts():
    small, large = (context(key, response_id=key) for key in ("one", "two"))
    large.response.user = "x" * 5000
    again = KnownContext(
        b"two",
        response=large.response,
        head=HEAD,
        position=Tokens(),
        root_id=None,
        parent=None,
        answer_items=0,
    )
    assert again.size_bytes == small.size_bytes + 5000


def test_past_the_limit_the_largest_tenant_loses_what_it_used_longest_ago():
    one = OWN_BYTES + HEAD.size_bytes
    known = KnownContexts(10.0, 3 * one + one // 2)
    for key in ("a", "b"):
        known.remember("large", context(key), 0.0)
    known.remember("small", context("c"), 0.0)
    assert known.deepest("large", START, (), keys("a"), 1.0) is not None
    known.remember("small", context("d"), 1.0)
    assert known.find("large", START + b"b") is None
    assert known.find("large", START + b"a") is not None
    assert known.used_bytes == 3 * one


def test_a_context_larger_than_the_limit_is_not_kept():
    known = KnownContexts(10.0, 100)
    known.remember("t", context("one"), 0.0)
    assert (len(known), known.used_bytes) == (0, 0)


def test_deleting_a_response_forgets_its_contexts():
    known = KnownContexts(10.0, 10**6)
    for key, response_id in (("a", "resp_1"), ("b", "resp_1"), ("c", "resp_2")):
        known.remember("t", context(key, response_id=response_id), 0.0)
    known.forget_response("t", "resp_1")
    known.forget_response("t", "resp_unknown")
    known.forget_response("another", "resp_2")
    assert [known.find("t", START + key) is not None for key in (b"a", b"b", b"c")] == [False, False, True]


def test_all_contexts_of_a_tenant_are_forgotten():
    known = KnownContexts(10.0, 10**6)
    first = known.remember("t", context("a"), 0.0)
    known.remember("t", context("b", parent=first), 0.0)
    known.forget("t")
    known.forget_response("t", "resp_1")
    assert (len(known), known.used_bytes) == (0, 0)
    again = known.remember("t", context("a"), 0.0)
    assert known.used_bytes == again.size_bytes


def test_it_can_be_switched_off():
    assert KnownContexts(10.0, 100).is_on
    assert not KnownContexts(0.0, 100).is_on
    assert not KnownContexts(10.0, 0).is_on


def test_digests_are_the_same_however_items_are_spread_over_turns():
    items = [user_message(text) for text in ("a", "b", "c")]
    sealed = Item(type="compaction", raw=b"{}", opened=(items[1], items[2]))
    whole = extended_digest(NOTHING_YET, items)
    assert boundary_digests(NOTHING_YET, items)[-1] == whole
    assert boundary_digests(extended_digest(NOTHING_YET, items[:1]), items[1:])[-1] == whole
    assert boundary_digests(NOTHING_YET, [items[0], sealed])[-1] == whole
    assert boundary_digests(NOTHING_YET, items)[-1] == whole, "also when they were digested before"
    assert len(set(boundary_digests(NOTHING_YET, items))) == 3


def test_an_item_is_digested_again_in_another_place_and_when_it_stands_for_others():
    first, other, again = (user_message(text) for text in ("a", "b", "c"))
    boundary_digests(NOTHING_YET, [first, again])
    assert boundary_digests(NOTHING_YET, [other, again])[-1] == extended_digest(NOTHING_YET, [other, again])
    opened = opened_with(again, (other,))
    assert boundary_digests(NOTHING_YET, [first, opened]) == boundary_digests(NOTHING_YET, [first, other])
