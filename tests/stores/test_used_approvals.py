"""Claims of approvals, on every kind of store."""

import asyncio

from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation


async def test_an_approval_is_good_once(store: Store) -> None:
    claim = store.approvals.claim
    assert await claim("t", ["mcpr_1"]) is True
    assert await claim("t", ["mcpr_1"]) is False
    assert await claim("u", ["mcpr_1"]) is True  # another tenant's


async def test_a_claim_uses_all_of_its_approvals_or_none(store: Store) -> None:
    claim = store.approvals.claim
    assert await claim("t", ["b"]) is True
    assert await claim("t", ["a", "b", "c"]) is False
    assert await claim("t", ["c", "a"]) is True
    assert await claim("t", ["d", "d"]) is False
    assert await claim("t", ["d"]) is True
    assert await claim("t", []) is True


async def test_of_nodes_that_claim_at_once_one_succeeds(durable: StoreLocation) -> None:
    nodes = [await durable.open() for _ in range(3)]
    ids = ["x", "y", "z"]
    orders = (ids, ids[::-1], ["y", "x", "z"])
    claims = [node.approvals.claim("t", order) for node, order in zip(nodes, orders, strict=True)]
    assert sorted(await asyncio.gather(*claims)) == [False, False, True]


async def test_claims_outlive_their_process(durable: StoreLocation) -> None:
    await (await durable.open()).approvals.claim("t", ["a"])
    assert await (await durable.open()).approvals.claim("t", ["a"]) is False


async def test_claims_expire_like_responses(location: StoreLocation) -> None:
    store = await location.open(retention_s=100)
    await store.approvals.claim("t", ["a", "b"])
    assert await store.prune(1099) == 0
    assert await store.prune(1100, limit=1) == 1
    assert await store.prune(1100) == 1
    assert await store.approvals.claim("t", ["a", "b"]) is True
