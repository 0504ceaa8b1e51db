"""Nodes and shared secrets, on every kind of store."""

import asyncio

from slipring.stores.nodes import Node
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation


async def test_nodes_are_announced_found_and_removed(store: Store) -> None:
    cluster = store.cluster
    assert await cluster.find("n") is None
    await cluster.announce(Node("n", "http://a", 1.5))
    await cluster.announce(Node("n", "http://b", 2.5))
    await cluster.announce(Node("m", "http://m", 100_000.0))
    assert await cluster.find("n") == Node("n", "http://b", 2.5)
    assert await store.pruning.step(100_000.0) == 1, "a node that has not announced itself for a day"
    assert await cluster.find("n") is None
    await cluster.leave("m")
    await cluster.leave("m")
    assert await cluster.find("m") is None


async def test_the_first_proposal_becomes_the_secret_of_all_nodes(location: StoreLocation) -> None:
    first = await location.open()
    second = await location.open() if first.is_shared else first
    found = await asyncio.gather(
        *((first, second)[number % 2].cluster.secret("seal", bytes([number])) for number in range(10))
    )
    assert len(set(found)) == 1
    assert await second.cluster.secret("other", b"\0\xff") == b"\0\xff"
    assert await first.cluster.secret("other", b"mine") == b"\0\xff"
