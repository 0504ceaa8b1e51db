"""The cache of results by tenant."""

from slipring.core.tenant_cache import TenantCache


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
