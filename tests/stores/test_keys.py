"""API keys and usage, on every kind of store."""

import asyncio

import pytest
from msgspec import structs

from slipring.stores.databases.database import UniqueViolated
from slipring.stores.keys import Usage
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation
from tests.stores.samples import key


async def test_keys_are_created_found_listed_and_revoked(store: Store) -> None:
    keys = store.keys
    assert await keys.exist() is False
    assert await keys.find("k1") is None
    late = key(
        "k1", created_at=5, name="späť", models=("a", "b"), requests_per_minute=3, tokens_per_day=10**12
    )
    early = key(
        "k2",
        tenant="u",
        created_at=2,
        images_per_minute=7,
        mcp_servers=("weather",),
        mcp_tools=("weather.now", "time.utc"),
    )
    barred = key("k0", created_at=1, mcp_servers=())
    for each in (late, early, barred):
        await keys.create(each)
    assert await keys.find("k1") == late
    assert await keys.list() == [barred, early, late]
    with pytest.raises(UniqueViolated):
        await keys.create(key("k1"))
    assert await keys.revoke("k1", 9) is True
    assert await keys.revoke("k1", 10) is False
    assert await keys.revoke("k3", 10) is False
    assert await keys.find("k1") == key(
        "k1",
        created_at=5,
        name="späť",
        models=("a", "b"),
        requests_per_minute=3,
        tokens_per_day=10**12,
        revoked_at=9,
    )
    assert await keys.revoke("k2", 10) is True
    assert await keys.exist() is True


async def test_usage_adds_up_within_a_window(store: Store) -> None:
    async def spend(spent: list[Usage], expires_at: float) -> list[Usage]:
        return await store.keys.spend([structs.replace(each, expires_at=expires_at) for each in spent])

    assert await spend([], expires_at=10) == []
    minute, day = Usage("k", "minute:1", 1, 20, 3), Usage("k", "day:1", 2, 30)
    assert await spend([minute, day], expires_at=10) == [minute, day]
    assert await spend([minute, day, Usage("j", "day:1")], expires_at=10.5) == [
        Usage("k", "minute:1", 2, 40, 6),
        Usage("k", "day:1", 4, 60),
        Usage("j", "day:1", 0, 0),
    ]
    assert await spend([Usage("k", "day:1")], expires_at=11) == [Usage("k", "day:1", 4, 60)]
    assert await store.pruning.step(10.5) == 2
    assert await spend([Usage("k", "minute:1")], expires_at=11) == [Usage("k", "minute:1", 0, 0)]
    assert await spend([Usage("k", "day:1")], expires_at=11) == [Usage("k", "day:1", 4, 60)]


async def test_concurrent_usage_is_not_lost(location: StoreLocation) -> None:
    first = await location.open()
    second = await location.open() if first.is_shared else first
    both = [Usage("a", "w", 1, 2), Usage("b", "w", 1, 2)]
    await asyncio.gather(
        *(
            (first if number % 2 else second).keys.spend(both if number % 3 else both[::-1])
            for number in range(60)
        )
    )
    assert await first.keys.spend([Usage("a", "w")]) == [Usage("a", "w", 60, 120)]
