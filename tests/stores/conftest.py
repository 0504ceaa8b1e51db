"""Fixtures that open each kind of store on an empty database."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipring.stores.store import Store, open_database
from tests.stores.postgres_relay import Relay

KINDS = ("memory", "sqlite", "postgresql")
DURABLE = ("sqlite", "postgresql")


class StoreLocation:
    """Opens stores on one database, one after the other or several at once, and closes them at the end."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.now = 1000.0
        self._opened: list[Store] = []

    async def open(self, **options: Any) -> Store:
        """Return a started store with an empty cache. Its clock is ``now``."""
        options = {"recent_bytes": 10**9, "clock": lambda: self.now, **options}
        store = Store(open_database(self.spec), **options)
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
async def location(spec: str) -> AsyncIterator[StoreLocation]:
    location = StoreLocation(spec)
    yield location
    await location.close()


@pytest.fixture
async def durable(durable_spec: str) -> AsyncIterator[StoreLocation]:
    """A location whose data survives closing and reopening."""
    location = StoreLocation(durable_spec)
    yield location
    await location.close()


@pytest.fixture
async def store(location: StoreLocation) -> Store:
    return await location.open()


@pytest.fixture
async def relay(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Relay]:
    """A relay to an empty schema of a PostgreSQL server."""
    relay = Relay(postgres_url, tmp_path_factory.mktemp("pg"))
    await relay.open()
    yield relay
    await relay.cut()
