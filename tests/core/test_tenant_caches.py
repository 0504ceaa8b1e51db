"""Entries of tenants: which are kept, whose are dropped, and what is counted, held against a list of uses."""

import hypothesis.strategies as st
from hypothesis import given

from slipring.core.tenant_caches import TenantCache, TimedEntries

LONG, SPARED = 10.0, 4.0
LIMIT = 128
ROOM = 2
"""Made free with the bytes that are too many."""


class Sizes(TimedEntries[str, int]):
    """Entries that are as large as they say."""

    spared_s = SPARED

    def keep(self, tenant: str, sizes: dict[str, int], now: float) -> None:
        self._keep_until(tenant, sizes, now)

    def use(self, tenant: str, key: str, now: float) -> None:
        if self._find(tenant, key) is not None:
            self._renew(tenant, key, now)

    def of(self, tenant: str) -> dict[str, int]:
        return dict(self._by_tenant.get(tenant, {}))

    def _hold(self, tenant: str, value: int) -> int:
        return value

    _release = _hold


class Listed:
    """The same by plain means: all entries in one list, the one used longest ago first."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, int, float]] = []
        self.tenants: list[str] = []
        """The one that has had entries for longest first: of equally large ones, it loses them."""

    def keep(self, tenant: str, sizes: dict[str, int], now: float) -> None:
        for key, size in sizes.items():
            kept = [entry for entry in self.entries if entry[:2] == (tenant, key)]
            self.entries = [entry for entry in self.entries if entry not in kept]
            self.entries.append((tenant, key, kept[0][2] if kept else size, now + LONG))
        if tenant not in self.tenants:
            self.tenants.append(tenant)
        if self.used() > LIMIT:
            self._shrink(now)

    def _shrink(self, now: float) -> None:
        while self.used() > LIMIT - ROOM:
            oldest = min(self.entries, key=lambda entry: (entry[3], entry[0]))
            if oldest[3] > now + LONG - SPARED:
                largest = max(sorted(self.tenants), key=self.used)
                oldest = next(entry for entry in self.entries if entry[0] == largest)
            self._leave([entry for entry in self.entries if entry is not oldest])

    def use(self, tenant: str, key: str, now: float) -> None:
        if key in self.of(tenant):
            self.keep(tenant, {key: 0}, now)

    def sweep(self, now: float) -> None:
        self._leave([entry for entry in self.entries if entry[3] > now])

    def forget(self, tenant: str) -> None:
        self._leave([entry for entry in self.entries if entry[0] != tenant])

    def _leave(self, entries: list[tuple[str, str, int, float]]) -> None:
        self.entries = entries
        self.tenants = [tenant for tenant in self.tenants if self.of(tenant)]

    def of(self, tenant: str) -> dict[str, int]:
        return {key: size for owner, key, size, _ in self.entries if owner == tenant}

    def used(self, tenant: str | None = None) -> int:
        return sum(size for owner, _, size, _ in self.entries if tenant in (owner, None))


TENANT = st.sampled_from("tuv")
KEY = st.sampled_from("abcdef")
KEPT = st.tuples(st.just("keep"), TENANT, st.dictionaries(KEY, st.integers(1, 150), min_size=1, max_size=4))
USED = st.tuples(st.just("use"), TENANT, KEY)
FORGOTTEN = st.tuples(st.just("forget"), TENANT)


@given(st.lists(st.tuples(st.floats(0.0, 6.0), KEPT | USED | FORGOTTEN)))
def test_keeps_and_drops_what_the_list_does(steps: list[tuple[float, tuple[str, ...]]]) -> None:
    entries, listed, now = Sizes(LONG, LIMIT), Listed(), 0.0
    for elapsed, (what, *arguments) in steps:
        now += elapsed
        entries.sweep(now)
        listed.sweep(now)
        times = [] if what == "forget" else [now]
        getattr(entries, what)(*arguments, *times)
        getattr(listed, what)(*arguments, *times)
        assert entries.used_bytes == listed.used() <= LIMIT
        assert len(entries) == len(listed.entries)
        for tenant in "tuv":
            assert list(entries.of(tenant).items()) == list(listed.of(tenant).items())
        assert entries._until.keys() == entries._by_tenant.keys()
    entries.sweep(now + LONG)
    assert not entries._by_tenant
    assert not entries._until
    assert entries.used_bytes == 0


def test_what_no_tenant_has_used_for_a_while_goes_first() -> None:
    entries = Sizes(LONG, LIMIT)
    entries.keep("small", {"a": 20}, 0.0)
    entries.keep("large", {"b": 100}, SPARED)
    entries.keep("large", {"c": 20}, SPARED)
    assert (entries.of("small"), entries.of("large")) == ({}, {"b": 100, "c": 20})
    entries.keep("small", {"a": 20}, 2 * SPARED - 1)
    assert (entries.of("small"), entries.of("large")) == ({"a": 20}, {"c": 20})


def test_the_least_recently_used_entries_are_dropped_at_the_limits_of_tenant_and_total() -> None:
    cache: TenantCache[bytes] = TenantCache(8 * 3000)  # of which a tenant may fill 3000
    keys = [("a", bytes([n])) for n in range(4)]
    for key in keys[:3]:
        cache.put(key, key[1], 400)
    assert cache.find(keys[0]) == b"\x00"
    cache.put(keys[3], b"", 400)
    assert cache.find(keys[1]) is None, "the least recently used is dropped"
    assert cache.find(keys[0]) is not None
    cache.put(("a", b"large"), b"", 2500)
    assert cache.find(("a", b"large")) == b""
    assert cache.find(keys[0]) is None
    cache.put(("a", b"too large"), b"", 2501)
    assert cache.find(("a", b"too large")) is None
    for tenant in "bcdefghi":
        cache.put((tenant, b""), b"", 2500)
    assert cache.find(("a", b"large")) is None
    assert cache.used_bytes <= 8 * 3000
    assert cache.find(("i", b"")) is not None


def test_a_result_that_is_put_again_replaces_the_one_before() -> None:
    cache: TenantCache[str] = TenantCache(8 * 3000)
    cache.put(("a", b"key"), "first", 100)
    used_bytes = cache.used_bytes
    cache.put(("a", b"key"), "second", 300)
    assert (cache.find(("a", b"key")), cache.find(("b", b"key"))) == ("second", None)
    assert cache.used_bytes == used_bytes + 200


def test_all_results_of_a_tenant_can_be_dropped() -> None:
    cache: TenantCache[str] = TenantCache(8 * 3000)
    for key in (("a", b"1"), ("a", b"2"), ("b", b"1")):
        cache.put(key, "result", 100)
    cache.forget("a")
    cache.forget("unknown")
    assert [cache.find(key) for key in (("a", b"1"), ("a", b"2"), ("b", b"1"))] == [None, None, "result"]
    cache.forget("b")
    assert (len(cache), cache.used_bytes) == (0, 0)
