"""The SQL store as a whole: reopening it, and a schema that is too new."""

import pytest

from slipring.errors import StartupError
from slipring.stores.databases import schema
from slipring.stores.databases.database import Statement
from tests.stores.conftest import StoreLocation
from tests.stores.samples import HEAD, TokenPositions, Tokens, same, state


async def test_a_database_with_a_newer_schema_is_refused(durable: StoreLocation) -> None:
    store = await durable.open()
    await store._database.write(Statement(schema.WRITE_VERSION, (99,)))
    await store.close()
    with pytest.raises(
        StartupError, match=r"newer slipring \(schema version 99, this one supports up to 1\)"
    ):
        await durable.open()


async def test_chains_and_secrets_survive_a_restart(durable: StoreLocation) -> None:
    store = await durable.open(positions=TokenPositions())
    first = state("resp_1", head=HEAD, position=Tokens((1, 2)))
    second = state("resp_2", first, position=Tokens((1, 2, 3)))
    await store.responses.save("t", second)
    await store.cluster.secret("seal", b"x")
    await store.close()
    again = await durable.open(positions=TokenPositions())
    assert same(await again.responses.load("t", "resp_2"), second)
    assert await again.cluster.secret("seal", b"y") == b"x"
