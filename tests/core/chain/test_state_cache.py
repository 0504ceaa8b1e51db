"""The cache of a connection, and the order of eviction under its three limits."""

import pytest

from slipring.core.byte_ledger import ChainLedger
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache, NoCache, Scope, SharedScopes
from tests.core.connection import line, node

SIZE = node("n").size_bytes
PLENTY = 1000 * SIZE


def remembered(cache: ConnectionCache, *states: ResponseState) -> list[str]:
    return [state.id for state in states if state.id in cache]


# Lookup.


def test_a_cached_response_is_found():
    cache = ConnectionCache(PLENTY)
    state = node("a")
    cache.remember(state, None)
    assert cache.find("a") is state
    assert "a" in cache
    assert len(cache) == 1


def test_an_unknown_response_is_not_found():
    cache = ConnectionCache(PLENTY)
    assert cache.find("a") is None
    assert "a" not in cache
    cache.evict("a")


def test_a_response_belongs_to_the_lane_that_produced_it():
    cache = ConnectionCache(PLENTY)
    cache.remember(node("a"), "lane")
    cache.remember(node("b"), None)
    assert cache.lane_of("a") == "lane"
    assert cache.lane_of("b") is None


def test_a_response_that_is_cached_twice_counts_once():
    cache = ConnectionCache(PLENTY)
    state = node("a")
    cache.remember(state, "x")
    cache.remember(state, "y")
    assert (len(cache), cache.used_bytes, cache.lane_of("a")) == (1, SIZE, "y")
    cache.evict("a")
    assert (len(cache), cache.used_bytes) == (0, 0)


# Size.


def test_ancestors_of_a_cached_response_cost_nothing_more():
    cache = ConnectionCache(PLENTY)
    chain = line(5)
    cache.remember(chain[-1], None)
    assert cache.used_bytes == sum(state.size_bytes for state in chain)
    for state in chain[:-1]:
        cache.remember(state, None)
    assert cache.used_bytes == sum(state.size_bytes for state in chain)


def test_a_continuation_costs_its_own_node_only():
    cache = ConnectionCache(PLENTY)
    chain = line(50)
    for state in chain[:-1]:
        cache.remember(state, None)
    before = cache.used_bytes
    cache.remember(chain[-1], None)
    assert cache.used_bytes - before == chain[-1].size_bytes


def test_shared_ancestors_of_forks_count_once():
    cache = ConnectionCache(PLENTY)
    root = node("root", text="x" * 10_000)
    left, right = node("left", root), node("right", root)
    cache.remember(left, "a")
    cache.remember(right, "b")
    assert cache.used_bytes == root.size_bytes + left.size_bytes + right.size_bytes


def test_eviction_frees_unshared_nodes():
    cache = ConnectionCache(PLENTY)
    root = node("root")
    left, right = node("left", root), node("right", root)
    cache.remember(left, "a")
    cache.remember(right, "b")
    cache.evict("left")
    assert cache.used_bytes == root.size_bytes + right.size_bytes
    cache.evict("right")
    assert cache.used_bytes == 0


def test_evicting_an_ancestor_removes_its_id_and_frees_nothing():
    cache = ConnectionCache(PLENTY)
    root = node("root")
    child = node("child", root)
    cache.remember(root, None)
    cache.remember(child, None)
    before = cache.used_bytes
    cache.evict("root")
    assert cache.find("root") is None
    assert cache.used_bytes == before
    assert list(cache.find("child").chain()) == [child, root]


def test_clearing_frees_everything_in_every_scope():
    scope = Scope(PLENTY)
    cache = ConnectionCache(PLENTY, (scope,))
    for state in line(3):
        cache.remember(state, None)
    cache.clear()
    assert (len(cache), cache.used_bytes, scope.used_bytes) == (0, 0, 0)
    assert not scope.latest
    assert not scope.superseded


# Eviction.


def test_the_oldest_is_evicted_first():
    cache = ConnectionCache(3 * SIZE)
    states = [node(name) for name in "abcd"]
    for state in states:
        cache.remember(state, state.id)
    assert remembered(cache, *states) == ["b", "c", "d"]


def test_superseded_responses_are_evicted_before_the_latest_of_any_lane():
    cache = ConnectionCache(3 * SIZE)
    old_latest, passed, newest, one_more = node("a"), node("b"), node("c"), node("d")
    cache.remember(old_latest, "quiet lane")
    cache.remember(passed, "busy lane")
    cache.remember(newest, "busy lane")
    cache.remember(one_more, "third lane")
    assert remembered(cache, old_latest, passed, newest, one_more) == ["a", "c", "d"]


def test_recently_used_responses_are_evicted_later():
    cache = ConnectionCache(3 * SIZE)
    states = [node(name) for name in "abc"]
    for state in states:
        cache.remember(state, state.id)
    cache.find("a")
    cache.remember(node("d"), "d")
    assert remembered(cache, *states) == ["a", "c"]


def test_use_does_not_protect_superseded_responses_from_eviction_before_latest_ones():
    cache = ConnectionCache(2 * SIZE)
    cache.remember(node("a"), None)
    cache.remember(node("b"), None)
    cache.find("a")
    cache.remember(node("c"), "other")
    assert "a" not in cache
    assert "b" in cache


def test_evicting_the_latest_of_a_lane_leaves_the_lane_usable():
    cache = ConnectionCache(PLENTY)
    for name in "abc":
        cache.remember(node(name), "lane")
    cache.evict("c")
    cache.remember(node("d"), "lane")
    cache.evict("a")
    cache.evict("d")
    assert (len(cache), cache.used_bytes) == (1, SIZE)


def test_a_response_larger_than_the_limit_is_not_cached():
    scope = Scope(PLENTY)
    cache = ConnectionCache(SIZE, (scope,))
    cache.remember(node("big", text="x" * SIZE), None)
    assert (len(cache), cache.used_bytes, scope.used_bytes) == (0, 0, 0)
    cache.remember(node("small"), None)
    assert "small" in cache


def test_a_chain_larger_than_the_limit_is_not_cached():
    cache = ConnectionCache(3 * SIZE)
    chain = line(4)
    for state in chain:
        cache.remember(state, None)
    assert len(cache) == 0
    assert cache.used_bytes == 0


def test_every_bound_holds_after_every_step():
    cache = ConnectionCache(5 * SIZE)
    for number in range(50):
        cache.remember(node(f"n{number}", text="x" * (number % 7)), str(number % 3))
        assert cache.used_bytes <= 5 * SIZE


# Shared limits.


def test_connections_of_a_tenant_share_its_bound():
    scopes = SharedScopes(tenant_bytes=2 * SIZE, process_bytes=PLENTY)
    first, second = (ConnectionCache(PLENTY, scopes.of("t")) for _ in range(2))
    states = [node(name) for name in "abc"]
    first.remember(states[0], None)
    second.remember(states[1], None)
    second.remember(states[2], "other")
    assert remembered(first, *states) == []
    assert remembered(second, *states) == ["b", "c"]
    tenant, process = scopes.of("t")
    assert tenant.used_bytes == process.used_bytes == first.used_bytes + second.used_bytes == 2 * SIZE
    assert tenant.evictions == 1
    assert process.evictions == 0


def test_tenants_share_the_process_bound_only():
    scopes = SharedScopes(tenant_bytes=2 * SIZE, process_bytes=3 * SIZE)
    alice, bob = ConnectionCache(PLENTY, scopes.of("alice")), ConnectionCache(PLENTY, scopes.of("bob"))
    for name in "ab":
        alice.remember(node(name), name)
        bob.remember(node(name.upper()), name)
    assert scopes.process.used_bytes == 3 * SIZE
    assert (scopes.process.used_bytes, len(scopes.process.latest)) == (3 * SIZE, 3)
    assert remembered(alice, node("a"), node("b")) == ["b"]
    assert len(bob) == 2


def test_a_shared_limit_also_evicts_superseded_responses_first():
    scopes = SharedScopes(tenant_bytes=3 * SIZE, process_bytes=PLENTY)
    idle, busy = (ConnectionCache(PLENTY, scopes.of("t")) for _ in range(2))
    idle.remember(node("a"), None)
    busy.remember(node("b"), None)
    busy.remember(node("c"), None)
    busy.remember(node("d"), None)
    assert "a" in idle
    assert remembered(busy, node("b"), node("c"), node("d")) == ["c", "d"]


def test_a_state_cached_by_two_connections_counts_for_each():
    scopes = SharedScopes(PLENTY, PLENTY)
    first, second = (ConnectionCache(PLENTY, scopes.of("t")) for _ in range(2))
    state = node("a")
    first.remember(state, None)
    second.remember(state, None)
    assert scopes.process.used_bytes == 2 * SIZE
    first.clear()
    assert scopes.process.used_bytes == SIZE


def test_tenants_have_one_scope_each():
    scopes = SharedScopes(1, 1)
    assert scopes.of("a")[0] is scopes.of("a")[0]
    assert scopes.of("a")[0] is not scopes.of("b")[0]
    assert scopes.of("a")[1] is scopes.of("b")[1] is scopes.process


# Reference counts.


def test_a_state_held_twice_must_be_released_twice():
    retention = ChainLedger()
    state = node("a")
    assert retention.hold(state) == SIZE
    assert retention.hold(state) == 0
    assert retention.release(state) == 0
    assert retention.release(state) == SIZE


def test_weighing_a_state_tells_what_holding_it_would_add():
    retention = ChainLedger()
    root = node("root")
    child = node("child", root)
    assert retention.weigh(child) == child.size_bytes + root.size_bytes
    retention.hold(root)
    assert retention.weigh(child) == child.size_bytes
    assert retention.weigh(root) == 0


def test_a_state_that_is_not_held_cannot_be_released():
    with pytest.raises(KeyError):
        ChainLedger[ResponseState]().release(node("a"))


def test_holding_a_child_of_a_held_node_takes_one_step():
    """Otherwise each turn would walk the whole conversation."""
    retention = ChainLedger()
    root = node("root")
    retention.hold(root)
    child = node("child", root)
    root.parent = child  # a cycle: walking past the held node would never end
    assert retention.hold(child) == child.size_bytes


def test_a_single_exchange_caches_nothing() -> None:
    memory = NoCache()
    memory.remember(node("resp_1"), None)
    assert (len(memory), memory.used_bytes) == (0, 0)
    assert memory.find("resp_1") is None


def test_above_the_process_limit_the_tenant_that_uses_the_most_evicts():
    size = node("r0").size_bytes
    shared = SharedScopes(100 * size, 3 * size)
    quiet = ConnectionCache(100 * size, shared.of("quiet"))
    quiet.remember(node("q"), None)
    busy = [ConnectionCache(100 * size, shared.of("busy")) for _ in range(2)]
    for number in range(8):
        busy[number % 2].remember(node(f"b{number}"), f"lane {number}")
        assert shared.process.used_bytes <= 3 * size
    assert "q" in quiet
    assert [number for number in range(8) if any(f"b{number}" in cache for cache in busy)] == [6, 7]


def test_evictions_report_the_bytes_that_they_free() -> None:
    cache, freed = ConnectionCache(PLENTY), list[int]()
    cache.on_freed = freed.append
    parent, child = line(2)
    cache.remember(parent, "a")
    cache.remember(child, "a")
    cache.evict(parent.id)  # the child still needs it
    assert freed == []
    cache.evict(child.id)
    assert freed == [parent.size_bytes + child.size_bytes]


def test_states_are_listed_oldest_first() -> None:
    cache = ConnectionCache(PLENTY)
    states = line(3)
    for state in states:
        cache.remember(state, None)
    assert cache.states() == states


def test_a_process_without_tenants_has_nothing_to_evict() -> None:
    assert SharedScopes(PLENTY, PLENTY).process.oldest() is None


def test_an_empty_scope_has_nothing_to_evict() -> None:
    assert Scope(PLENTY).oldest() is None
