"""Every kind of store, at a place of its own."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipring.stores.catalog import open_database
from slipring.stores.sql.store import SqlStore

KINDS = ("memory", "sqlite", "postgresql")
DURABLE = ("sqlite", "postgresql")


class Place:
    """Where stores can be opened, one after the other or several at once."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.now = 1000.0
        self._opened: list[SqlStore] = []

    async def open(self, **options: Any) -> SqlStore:
        """A store that has just been started and remembers nothing."""
        options = {"recent_bytes": 10**9, "clock": lambda: self.now, **options}
        store = SqlStore(open_database(self.spec), **options)
        await store.start()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


def _spec(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:{tmp_path}/store.db" if kind == "sqlite" else kind


@pytest.fixture(params=KINDS)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _spec(request.param, request, tmp_path)


@pytest.fixture(params=DURABLE)
def durable_spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _spec(request.param, request, tmp_path)


@pytest.fixture
async def place(spec: str) -> AsyncIterator[Place]:
    place = Place(spec)
    yield place
    await place.close()


@pytest.fixture
async def durable(durable_spec: str) -> AsyncIterator[Place]:
    """Only where closing and opening again finds everything."""
    place = Place(durable_spec)
    yield place
    await place.close()


@pytest.fixture
async def store(place: Place) -> SqlStore:
    return await place.open()
