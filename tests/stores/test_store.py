"""The store as a whole: how it is opened, what it refuses, what it lets go."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.errors import StartupError
from slipring.stores.base import RunEvent
from slipring.stores.catalog import default_file, open_store
from slipring.stores.databases.database import Statement
from slipring.stores.sql import schema
from slipring.stores.sql.store import SqlStore
from tests.stores.conftest import Place
from tests.stores.material import HEAD, TokenPositions, Tokens, chain, response, same, state


def test_stores_by_name(tmp_path: Path) -> None:
    named = {
        "memory": ("memory", False),
        "sqlite": ("sqlite", True),
        f"sqlite:{tmp_path}/x.db": ("sqlite", True),
        "postgresql://me:hush@host/db": ("postgresql", True),
        "postgres://host": ("postgresql", True),
    }
    for spec, expected in named.items():
        store = open_store(spec, Limits())
        assert (store.name, store.is_shared) == expected
    for spec in ("attic", "sqlite:", "memory:x", "postgresql", "postgresql:me:hush@host", ""):
        with pytest.raises(
            StartupError, match=r"^--store \w*: unknown store \(known: memory, sqlite, sqlite:PATH"
        ):
            open_store(spec, Limits())


def test_the_file_of_whoever_names_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_file() == tmp_path / "slipring" / "slipring.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_file() == Path("/home/me/.local/share/slipring/slipring.db")


def test_what_postgresql_needs_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "slipring.stores.databases.postgres":
            raise ModuleNotFoundError(name="asyncpg")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        StartupError, match=r"asyncpg is not installed \(pip install 'slipring\[postgres\]'\)"
    ):
        open_store("postgresql://host/db", Limits())


async def test_a_store_that_was_opened_by_name_works(spec: str) -> None:
    store = open_store(spec, Limits(), TokenPositions(), 100.0)
    await store.start()
    saved = state("resp_1", created_at=2**40, position=Tokens((1, 2)))
    await store.responses.save("t", saved)
    assert await store.responses.load("t", "resp_1") is saved
    await store.responses.save("t", state("resp_2", created_at=1))
    assert await store.responses.load("t", "resp_2") is None, "it has expired long ago"
    await store.close()
    await store.close()


async def test_a_newer_schema_is_refused(durable: Place) -> None:
    store = await durable.open()
    await store._database.write(Statement(schema.WRITE_VERSION, (99,)))
    await store.close()
    with pytest.raises(StartupError, match=r"newer slipring \(schema 99, this one knows 1\)"):
        await durable.open()


async def test_everything_is_there_again(durable: Place) -> None:
    store = await durable.open(positions=TokenPositions())
    first = state("resp_1", head=HEAD, position=Tokens((1, 2)))
    second = state("resp_2", first, position=Tokens((1, 2, 3)))
    await store.responses.save("t", second)
    await store.cluster.secret("seal", b"x")
    await store.close()
    again = await durable.open(positions=TokenPositions())
    assert same(await again.responses.load("t", "resp_2"), second)
    assert await again.cluster.secret("seal", b"y") == b"x"


async def test_the_memory_store_lets_the_oldest_chains_go() -> None:
    place = Place("memory")
    store = await place.open()
    empty = await store._database.used_bytes()
    await store.close()
    store = await place.open(most_bytes=empty + 200_000, recent_bytes=0)
    assert await store.prune(0) == 0
    # Ten chains, turn by turn: all of them end at about the same time, the first one first.
    chains = [
        [
            state(each.id, each.parent, metadata={"x": "y" * 5000}, created_at=10 * depth + number)
            for depth, each in enumerate(chain(10, f"resp_{number}_"))
        ]
        for number in range(10)
    ]
    for turn in range(10):
        for each in chains:
            await store.responses.save("t", each[turn])
    while await store.prune(0, limit=7):
        pass
    assert await store._database.used_bytes() <= empty + 200_000
    left = [number for number in range(10) if await store.responses.load("t", f"resp_{number}_9") is not None]
    assert left
    assert left == list(range(10 - len(left), 10)), "those that ended last"
    await place.close()


async def test_what_runs_have_said_goes_before_responses() -> None:
    place = Place("memory")
    store = await place.open()
    empty = await store._database.used_bytes()
    await store.close()
    store = await place.open(most_bytes=empty + 200_000, recent_bytes=0)
    await store.responses.save("t", state("resp_kept"))
    done, running = response("resp_done", status="completed"), response("resp_running")
    for each in (done, running):
        tenure = await store.runs.open("t", response(each.id, status="queued"), [], owner="a", lease_until=9)
        events = [RunEvent(number, b"x" * 500) for number in range(300)]
        await store.runs.append(tenure, events, each, lease_until=9)
    while await store.prune(0):
        pass
    assert await store.runs.read("t", "resp_done") is None
    assert await store.runs.read("t", "resp_running") is not None
    assert await store.responses.load("t", "resp_kept") is not None
    await place.close()


async def test_a_memory_store_without_room_keeps_nothing() -> None:
    place = Place("memory")
    store = await place.open(most_bytes=1)
    for each in chain(60):
        await store.responses.save("t", each)
    while await store.prune(0):
        pass
    assert await store.responses.load("t", "resp_0") is None
    await place.close()


async def test_heads_that_nobody_has_any_more_are_removed(store: SqlStore) -> None:
    first = state("resp_1", head=HEAD)
    await store.responses.save("t", first)
    await store.responses.save("t", state("resp_2"))
    await store.responses.delete("t", "resp_1")
    assert await store.prune(0) == 1
    assert await store._database.read("SELECT count(*) FROM slipring_heads") == [(1,)]
