"""The cache of verdicts: least recently used first, per tenant and in total."""

from slipring.core.checks.verdicts import Verdict
from slipring.safety.verdict_cache import Key, VerdictCache

VERDICT = Verdict("c", "1", flagged=False)


def key(name: str) -> Key:
    return "c", "1", name.encode()


def kept(cache: VerdictCache, tenant: str, names: str) -> str:
    return "".join(name for name in names if cache.find(tenant, key(name)) is not None)


def test_a_tenant_drops_its_least_recently_used_verdict() -> None:
    cache = VerdictCache(per_tenant=2, total=10)
    cache.put("t", key("a"), VERDICT)
    cache.put("t", key("b"), VERDICT)
    cache.find("t", key("a"))
    cache.put("t", key("c"), VERDICT)
    assert (kept(cache, "t", "abc"), cache.size) == ("ac", 2)
    cache.put("t", key("c"), VERDICT)
    assert (kept(cache, "u", "abc"), cache.size) == ("", 2)


def test_past_the_total_the_tenant_that_was_idle_longest_loses() -> None:
    cache = VerdictCache(per_tenant=3, total=4)
    for tenant, names in (("one", "ab"), ("two", "cd")):
        for name in names:
            cache.put(tenant, key(name), VERDICT)
    cache.find("one", key("a"))
    cache.put("one", key("e"), VERDICT)
    assert (kept(cache, "one", "abe"), kept(cache, "two", "cd"), cache.size) == ("abe", "d", 4)
    cache.find("one", key("a"))
    for name in "fgh":
        cache.put("three", key(name), VERDICT)
    assert cache.size == 4
    assert kept(cache, "two", "cd") == ""
