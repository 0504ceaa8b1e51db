"""Claims of approvals, on every kind of store."""

import asyncio

import pytest

from slipring.base.errors import InvalidRequest
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation


async def claims(store: Store, tenant: str, ids: list[str]) -> bool:
    """Whether these approvals could be used."""
    try:
        await store.approvals.claim(tenant, ids)
    except InvalidRequest:
        return False
    return True


async def test_an_approval_is_good_once(store: Store) -> None:
    assert await claims(store, "t", ["mcpr_1"]) is True
    assert await claims(store, "t", ["mcpr_1"]) is False
    assert await claims(store, "u", ["mcpr_1"]) is True  # another tenant's


async def test_a_claim_uses_all_of_its_approvals_or_none(store: Store) -> None:
    assert await claims(store, "t", ["b"]) is True
    assert await claims(store, "t", ["a", "b", "c"]) is False
    assert await claims(store, "t", ["c", "a"]) is True
    assert await claims(store, "t", ["d", "d"]) is False
    assert await claims(store, "t", ["d"]) is True
    assert await claims(store, "t", []) is True


async def test_of_nodes_that_claim_at_once_one_succeeds(durable: StoreLocation) -> None:
    nodes = [await durable.open() for _ in range(3)]
    ids = ["x", "y", "z"]
    orders = (ids, ids[::-1], ["y", "x", "z"])
    claimed = [claims(node, "t", order) for node, order in zip(nodes, orders, strict=True)]
    assert sorted(await asyncio.gather(*claimed)) == [False, False, True]


async def test_claims_outlive_their_process(durable: StoreLocation) -> None:
    assert await claims(await durable.open(), "t", ["a"]) is True
    assert await claims(await durable.open(), "t", ["a"]) is False


async def test_claims_expire_like_responses(location: StoreLocation) -> None:
    store = await location.open(retention_s=100)
    await store.approvals.claim("t", ["a", "b"])
    assert await store.pruning.step(1099) == 0
    assert await store.pruning.step(1100, limit=1) == 1
    assert await store.pruning.step(1100) == 1
    assert await claims(store, "t", ["a", "b"]) is True


async def test_the_error_of_a_used_approval_names_the_field(store: Store) -> None:
    await store.approvals.claim("t", ("mcpr_1", "mcpr_2"))
    with pytest.raises(InvalidRequest, match="already been used") as caught:
        await store.approvals.claim("t", ("mcpr_3", "mcpr_2"))
    assert (caught.value.param, caught.value.code) == ("input", "invalid_value")
