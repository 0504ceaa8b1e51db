"""Stores are opened by the value of `--store`."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.core.limits import Limits
from slipring.stores.store import default_file, open_store
from tests.stores.samples import TokenPositions, Tokens, state


def test_the_spec_selects_the_store(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("spec", ["memory", "postgresql://me:hush@host/db"])
def test_only_sqlite_can_be_unsynced(spec: str) -> None:
    with pytest.raises(StartupError, match=r"^--store-unsynced: it is for SQLite, and the store is \w+$"):
        open_store(spec, Limits(), is_synced=False)


def test_the_default_file_is_in_the_data_directory_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_file() == tmp_path / "slipring" / "slipring.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_file() == Path("/home/me/.local/share/slipring/slipring.db")


def test_a_missing_asyncpg_is_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "slipring.stores.databases.postgres":
            raise ModuleNotFoundError(name="asyncpg")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        StartupError, match=r"asyncpg is not installed \(pip install '\.\[postgres\]' in a checkout"
    ):
        open_store("postgresql://host/db", Limits())


async def test_a_store_opened_by_spec_saves_loads_and_expires(spec: str) -> None:
    store = open_store(spec, Limits(), TokenPositions(), 100.0)
    await store.start()
    saved = state("resp_1", created_at=2**40, position=Tokens((1, 2)))
    await store.responses.save("t", saved)
    assert await store.responses.load("t", "resp_1") is saved
    await store.responses.save("t", state("resp_2", created_at=1))
    assert await store.responses.load("t", "resp_2") is None, "created long before the retention period"
    await store.close()
    await store.close()
