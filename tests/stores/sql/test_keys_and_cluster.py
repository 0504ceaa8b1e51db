"""Keys, usage, nodes and secrets, on every kind of store."""

import asyncio

import pytest

from slipring.stores.base import Node, Usage
from slipring.stores.databases.database import UniqueViolated
from slipring.stores.sql.store import SqlStore
from tests.stores.conftest import Place
from tests.stores.material import key


async def test_keys_are_made_found_listed_and_revoked(store: SqlStore) -> None:
    keys = store.keys
    assert await keys.exist() is False
    assert await keys.find("k1") is None
    late = key(
        "k1", created_at=5, name="späť", models=("a", "b"), requests_per_minute=3, tokens_per_day=10**12
    )
    early = key("k2", tenant="u", created_at=2)
    for each in (late, early):
        await keys.create(each)
    assert await keys.find("k1") == late
    assert await keys.list() == [early, late]
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


async def test_what_is_spent_adds_up(store: SqlStore) -> None:
    spend = store.keys.spend
    assert await spend([], expires_at=10) == []
    minute, day = Usage("k", "minute:1", 1, 20), Usage("k", "day:1", 2, 30)
    assert await spend([minute, day], expires_at=10) == [minute, day]
    assert await spend([minute, day, Usage("j", "day:1")], expires_at=10.5) == [
        Usage("k", "minute:1", 2, 40),
        Usage("k", "day:1", 4, 60),
        Usage("j", "day:1", 0, 0),
    ]
    assert await spend([Usage("k", "day:1")], expires_at=11) == [Usage("k", "day:1", 4, 60)]
    assert await store.prune(10.5) == 2
    assert await spend([Usage("k", "minute:1")], expires_at=11) == [Usage("k", "minute:1", 0, 0)]
    assert await spend([Usage("k", "day:1")], expires_at=11) == [Usage("k", "day:1", 4, 60)]


async def test_many_spend_at_once(place: Place) -> None:
    first = await place.open()
    second = await place.open() if first.is_shared else first
    both = [Usage("a", "w", 1, 2), Usage("b", "w", 1, 2)]
    await asyncio.gather(
        *(
            (first if number % 2 else second).keys.spend(both if number % 3 else both[::-1], expires_at=1)
            for number in range(60)
        )
    )
    assert await first.keys.spend([Usage("a", "w")], expires_at=1) == [Usage("a", "w", 60, 120)]


async def test_nodes_come_and_go(store: SqlStore) -> None:
    cluster = store.cluster
    assert await cluster.find("n") is None
    await cluster.announce(Node("n", "http://a", 1.5))
    await cluster.announce(Node("n", "http://b", 2.5))
    await cluster.announce(Node("m", "http://m", 100_000.0))
    assert await cluster.find("n") == Node("n", "http://b", 2.5)
    assert await store.prune(100_000.0) == 1, "one that was not heard of for a day"
    assert await cluster.find("n") is None
    await cluster.leave("m")
    await cluster.leave("m")
    assert await cluster.find("m") is None


async def test_all_nodes_share_the_secret_of_the_first(place: Place) -> None:
    first = await place.open()
    second = await place.open() if first.is_shared else first
    found = await asyncio.gather(
        *((first, second)[number % 2].cluster.secret("seal", bytes([number])) for number in range(10))
    )
    assert len(set(found)) == 1
    assert await second.cluster.secret("other", b"\0\xff") == b"\0\xff"
    assert await first.cluster.secret("other", b"mine") == b"\0\xff"
