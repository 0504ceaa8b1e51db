"""The cache of states: shared data is counted once, and the least recently used states are evicted."""

from slipring.stores.responses import RecentStates
from tests.core.connection import line, node


def known(recent: RecentStates, *names: str) -> list[str]:
    return [name for name in names if recent.find("t", name) is not None]


def test_shared_data_is_counted_once() -> None:
    recent = RecentStates(10**9)
    states = line(10)
    for each in states:
        recent.remember("t", each)
        recent.remember("t", each)
    assert recent.used_bytes == sum(each.size_bytes for each in states)
    assert recent.find("t", "n3") is states[3]
    assert recent.find("u", "n3") is None


def test_the_limit_may_be_reached_but_not_exceeded() -> None:
    states = [node(f"n{number}") for number in range(3)]
    room = sum(each.size_bytes for each in states)
    for spare, expected in ((0, ["n0", "n1", "n2"]), (-1, ["n1", "n2"])):
        recent = RecentStates(room + spare)
        for each in states:
            recent.remember("t", each)
        assert known(recent, "n0", "n1", "n2") == expected
        assert recent.used_bytes == sum(each.size_bytes for each in states if each.id in expected)


def test_the_least_recently_used_state_is_evicted_first() -> None:
    states = [node(f"n{number}") for number in range(4)]
    recent = RecentStates(3 * states[0].size_bytes + states[0].size_bytes // 2)
    for each in states[:3]:
        recent.remember("t", each)
    recent.find("t", "n0")
    recent.remember("t", states[3])
    assert known(recent, "n0", "n1", "n2", "n3") == ["n0", "n2", "n3"]


def test_forgetting_all_states_frees_all_bytes() -> None:
    recent = RecentStates(20_000)
    parent = None
    for number in range(200):
        parent = node(f"n{number}", parent if number % 7 else None, text="x" * (number % 50))
        recent.remember("t", parent)
        assert recent.used_bytes <= 20_000
    for number in range(200):
        recent.forget("t", f"n{number}")
    assert (len(recent), recent.used_bytes) == (0, 0)


def test_a_state_larger_than_the_limit_is_not_kept() -> None:
    recent = RecentStates(10)
    recent.remember("t", node("n0"))
    assert (len(recent), recent.used_bytes) == (0, 0)


def test_the_tenant_that_uses_the_most_is_evicted_first() -> None:
    size = node("x").size_bytes
    recent = RecentStates(3 * size)
    recent.remember("quiet", node("q"))
    for number in range(8):
        recent.remember("busy", node(f"b{number}"))
        assert recent.used_bytes <= 3 * size
    assert recent.find("quiet", "q") is not None
    assert [number for number in range(8) if recent.find("busy", f"b{number}") is not None] == [6, 7]
