"""The PostgreSQL driver: its connections, and how it handles their failures."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from slipring.base.errors import StartupError, Unavailable
from slipring.stores.databases import postgres, schema
from slipring.stores.databases.database import OutcomeUnknown, Statement
from slipring.stores.databases.postgres import PostgresDatabase
from tests.stores.postgres_relay import Relay

ADD = "INSERT INTO slipring_nodes (id, url, seen_at) VALUES ($1, '', 0)"
ALL = "SELECT id FROM slipring_nodes ORDER BY id"
SPEND = """
INSERT INTO slipring_usage (key_id, period, requests, tokens, expires_at) VALUES ($1, '', 1, 0, 0)
ON CONFLICT (key_id, period) DO UPDATE SET requests = slipring_usage.requests + 1
"""


def add(name: str) -> Statement:
    return Statement(ADD, (name,))


async def names(database: PostgresDatabase) -> list[str]:
    return [name for (name,) in await database.read(ALL)]


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    database = PostgresDatabase(postgres_url)
    await database.start()
    yield database
    await database.close()


async def test_the_driver_reconnects_after_an_outage(relay: Relay) -> None:
    database = PostgresDatabase(relay.url)
    await database.start()
    await database.write(add("a"))
    await relay.cut()
    for asked in (database.read(ALL), database.write(add("b")), database.write(add("b"), add("c"))):
        with pytest.raises(Unavailable):
            await asked
    # /health shows this to everybody: what is wrong (the relay's socket is a file), and no address.
    assert database.trouble == "it cannot be reached: No such file or directory"
    await relay.open()
    await database.write(add("d"))
    assert await names(database) == ["a", "d"]
    await database.close()


async def test_a_write_whose_connection_is_lost_is_not_retried(
    relay: Relay, database: PostgresDatabase, postgres_url: str
) -> None:
    far = PostgresDatabase(relay.url)
    await far.start()
    blocker = await asyncpg.connect(postgres_url)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("LOCK TABLE slipring_nodes IN EXCLUSIVE MODE")
    writing = asyncio.create_task(far.write(add("a")))
    while not await database.read("SELECT 1 FROM pg_locks WHERE NOT granted"):
        pass
    await relay.cut()
    with pytest.raises(OutcomeUnknown):
        await writing
    await transaction.rollback()
    await blocker.close()
    await far.close()


async def test_a_read_survives_a_connection_that_the_server_terminated(
    database: PostgresDatabase, postgres_server: str
) -> None:
    await database.write(add("a"))
    ((pid,),) = await database.read("SELECT pg_backend_pid()")
    other = await asyncpg.connect(postgres_server)
    await other.execute("SELECT pg_terminate_backend($1, 5000)", pid)
    assert await names(database) == ["a"]
    await other.close()


async def test_a_read_survives_a_connection_whose_termination_was_read_in_part(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.write(add("a"))
    fetch, failures = asyncpg.Connection.fetch, iter([asyncpg.InternalClientError("another operation")])

    async def fail_once(connection: Any, *arguments: Any, **options: Any) -> Any:
        for failure in failures:
            raise failure
        return await fetch(connection, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", fail_once)
    assert await names(database) == ["a"]
    assert next(failures, None) is None


async def test_reads_and_writes_are_unavailable_while_all_connections_are_busy(
    database: PostgresDatabase, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await asyncpg.connect(postgres_server)
    await other.execute("SELECT pg_advisory_lock(77)")
    # Opening all connections may take long.
    monkeypatch.setattr(postgres, "_CONNECT_S", 60)
    held = [
        asyncio.create_task(database.read("SELECT pg_advisory_xact_lock(77) IS NULL"))
        for _ in range(postgres._POOL)
    ]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await other.fetchval(waiting) < postgres._POOL:
        pass
    monkeypatch.setattr(postgres, "_CONNECT_S", 0.2)
    with pytest.raises(Unavailable):
        await database.read(ALL)
    with pytest.raises(Unavailable):
        await database.write(add("a"))
    monkeypatch.setattr(postgres, "_CONNECT_S", 60)
    await other.execute("SELECT pg_advisory_unlock(77)")
    await asyncio.gather(*held)
    await database.write(add("b"))
    assert await names(database) == ["b"]
    await other.close()


async def test_deadlocked_transactions_are_retried(
    database: PostgresDatabase, postgres_url: str, postgres_server: str
) -> None:
    gate, other = await asyncpg.connect(postgres_server), await asyncpg.connect(postgres_url)
    try:
        # PostgreSQL aborts the transaction that detects the deadlock first: with this timeout, the other one.
        await other.execute("SET deadlock_timeout = '1h'")
        await gate.execute("SELECT pg_advisory_lock(78)")
        back = other.transaction()
        await back.start()
        await other.execute(SPEND, "b")
        stop = Statement("SELECT pg_advisory_xact_lock(78) IS NULL")
        forth = asyncio.create_task(database.write(Statement(SPEND, ("a",)), stop, Statement(SPEND, ("b",))))
        await locks_waited_for(gate, 1)
        crossing = asyncio.create_task(other.execute(SPEND, "a"))
        await locks_waited_for(gate, 2)
        await gate.execute("SELECT pg_advisory_unlock(78)")
        await crossing
        await back.commit()
        await forth
    finally:
        await gate.close()
        await other.close()
    assert await database.read("SELECT key_id, requests FROM slipring_usage ORDER BY key_id") == [
        ("a", 2),
        ("b", 2),
    ]


async def locks_waited_for(connection: "asyncpg.Connection[asyncpg.Record]", count: int) -> None:
    while await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < count:
        pass


@pytest.mark.parametrize("collisions", [0, 1, postgres._MAX_ATTEMPTS - 1, postgres._MAX_ATTEMPTS])
async def test_colliding_transactions_are_retried_up_to_a_limit(
    database: PostgresDatabase, postgres_url: str, collisions: int
) -> None:
    other = await asyncpg.connect(postgres_url)
    await other.execute("CREATE SEQUENCE attempts")  # a sequence is not rolled back
    await other.execute(f"""
        CREATE FUNCTION collide() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('attempts') <= {collisions} THEN RAISE serialization_failure; END IF;
        END $$
    """)
    await other.close()
    write = database.write(add("a"), Statement("SELECT collide() IS NULL"))
    if collisions < postgres._MAX_ATTEMPTS:
        await write
        assert await names(database) == ["a"]
    else:
        with pytest.raises(Unavailable):
            await write
        assert await names(database) == []
    assert await database.read("SELECT last_value FROM attempts") == [
        (min(collisions + 1, postgres._MAX_ATTEMPTS),)
    ]


async def test_a_write_completes_although_its_caller_was_cancelled(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    await database.start()
    task = asyncio.create_task(database.write(add("a"), add("b")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    later = asyncio.create_task(database.write(add("c")))
    closing = asyncio.create_task(database.close())
    await asyncio.gather(later, closing)
    for refused in (database.write(add("late")), database.read(ALL)):
        with pytest.raises(Unavailable):
            await refused
    again = PostgresDatabase(postgres_url)
    await again.start()
    assert await names(again) == ["a", "b", "c"]
    await again.close()


async def test_nodes_can_start_at_the_same_time(postgres_url: str) -> None:
    databases = [PostgresDatabase(postgres_url) for _ in range(6)]
    await asyncio.gather(*(database.start() for database in databases))
    assert await databases[0].read(schema.READ_VERSION) == [(len(schema.MIGRATIONS),)]
    await asyncio.gather(*(database.close() for database in databases))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hush%21@127.0.0.1:1/db",
        "postgres://me@127.0.0.1:1/db?password=hush!",
        "postgresql://me:hush!@127.0.0.1:nowhere/db",
        "postgresql://me:hush!@/db?host=/nowhere",
        "postgresql://me:hush[!@host/db",
    ],
)
async def test_an_unreachable_server_is_reported_in_one_line_without_the_password(url: str) -> None:
    with pytest.raises(StartupError, match=r"^--store postgres(ql)?(://me@.*)?: .+") as refusal:
        await PostgresDatabase(url).start()
    assert "hush" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


async def test_a_missing_database_is_reported(postgres_server: str) -> None:
    with pytest.raises(StartupError, match='database "attic" does not exist'):
        await PostgresDatabase(postgres_server.replace("/postgres?", "/attic?")).start()
