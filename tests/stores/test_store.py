"""The SQL store as a whole: reopening it, and a schema that is too new."""

import pytest

from slipring.base.errors import StartupError
from slipring.stores import response_codec
from slipring.stores.databases import schema
from slipring.stores.databases.database import Statement
from slipring.stores.pictures import Detached
from tests.stores.conftest import StoreLocation
from tests.stores.samples import HEAD, TokenPositions, Tokens, key, same, state


async def test_a_database_with_a_newer_schema_that_breaks_with_this_one_is_refused(
    durable: StoreLocation,
) -> None:
    store = await durable.open()
    await store._database.write(
        Statement(schema.WRITE_VERSION, (99,)),
        Statement("INSERT INTO slipring_oldest_schema (version) VALUES ($1)", (99,)),
    )
    await store.close()
    with pytest.raises(
        StartupError, match=r"newer slipring \(schema version 99, this one supports up to 8\)"
    ):
        await durable.open()


async def test_a_database_to_which_a_newer_slipring_has_only_added_is_used(durable: StoreLocation) -> None:
    """A node of the version before can be started again while the others are upgraded, or all go back."""
    store = await durable.open()
    await store._database.write(
        Statement("ALTER TABLE slipring_responses ADD COLUMN later BYTEA"),
        Statement(schema.WRITE_VERSION, (99,)),
    )
    await store.responses.save("t", state("resp_1", head=HEAD))
    await store.close()
    again = await durable.open()
    assert await again.responses.load("t", "resp_1") is not None
    await again.responses.save("t", state("resp_2", head=HEAD))
    assert await again._database.read(schema.READ_VERSION) == [(99,)]


async def test_keys_of_the_first_schema_keep_their_permissions(
    durable: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        store = await durable.open()
        columns = "id, tenant, digest, created_at, name, models"
        await store._database.write(
            Statement(
                f"INSERT INTO slipring_keys ({columns}) VALUES ($1, $2, $3, $4, $5, $6)",
                ("k", "t", b"digest", 1, "", b'["m"]'),
            )
        )
        await store.close()
    migrated = await durable.open()
    assert await migrated.keys.list() == [key("k", digest=b"digest", created_at=1, models=("m",))]


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


async def test_a_database_of_the_first_release_gets_what_it_lacks(
    durable: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        store = await durable.open()
        old = state("resp_1", head=HEAD)
        head, row = response_codec.head_columns(HEAD), response_codec.columns(old, None, Detached())[:-1]
        await store._database.write(
            Statement(_INSERT_HEAD, ("t", row[4], *head)), Statement(_INSERT_OLD, ("t", "resp_1", *row))
        )
        await store.close()
    again = await durable.open()
    assert same(await again.responses.load("t", "resp_1"), old)


_INSERT_HEAD = "INSERT INTO slipring_heads (tenant, digest, instructions, tools) VALUES ($1, $2, $3, $4)"
_INSERT_OLD = """
INSERT INTO slipring_responses (tenant, id, hidden, expires_at, parent_id, status, model, created_at,
    head, response, input, output, carry, position)
VALUES ($1, $2, 0, 99999, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
"""
