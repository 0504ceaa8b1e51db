"""The health of a server whose store cannot be used: it says so, and serves what needs no store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipring.server.observation.health import StoreHealth
from slipring.stores.databases import sqlite
from slipring.stores.store import Store
from tests.crash.unsynced import Recorder
from tests.harness import Running, serve


async def ask(server: Running, path: str) -> tuple[int, dict[str, Any]]:
    async with server.http.get(server.url.removesuffix("/v1") + path) as answer:
        return answer.status, await answer.json()


class Disk(Recorder):
    """A disk that fails when the test says so."""

    fails = False

    def must_fail(self) -> bool:
        return self.fails


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "log")
    yield disk
    disk.close()


async def test_a_disk_that_fails_is_seen_without_any_traffic(disk: Disk, tmp_path: Path) -> None:
    async with serve(store=f"sqlite:{tmp_path}/store.db") as server:
        disk.fails = True
        status, health = await ask(server, "/health")
        assert (status, health["status"]) == (200, "degraded")
        assert "disk" in health["store_trouble"]
        assert await ask(server, "/ready") == (200, {"status": "ready"})
        assert await ask(server, "/ready/store") == (503, {"status": "not_ready"})
        assert (await server.post(input="hello", store=False))[0] == 200
        assert (await server.post(input="hello", store=True))[0] == 503
        disk.fails = False
        assert (await server.post(input="hello", store=True))[0] == 200
        assert (await ask(server, "/health"))[1]["store_trouble"] is None
        assert await ask(server, "/ready/store") == (200, {"status": "ready"})


async def test_a_disk_that_is_nearly_full_is_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serve(store=f"sqlite:{tmp_path}/store.db") as server:
        assert (await ask(server, "/ready/store"))[0] == 200
        monkeypatch.setattr(sqlite, "LEAST_FREE_BYTES", 2**62)
        await server.service.store.try_out()
        health = (await ask(server, "/health"))[1]
        assert (health["status"], health["store_trouble"][:18]) == ("degraded", "the disk has only ")
        assert (await ask(server, "/ready/store"))[0] == 503


class Tried(Store):
    """A store that is tried out when the test lets it be."""

    name = "tried"

    def __init__(self) -> None:
        self.trials = 0
        self.may_end = asyncio.Event()
        self.why: str | None = None

    @property
    def trouble(self) -> str | None:
        return self.why

    async def try_out(self) -> None:
        self.trials += 1
        await self.may_end.wait()


async def test_a_store_is_tried_out_once_for_all_who_ask() -> None:
    now, store = 0.0, Tried()
    store.may_end.set()
    health = StoreHealth(store, lambda: now)
    assert await asyncio.gather(*(health.trouble() for _ in range(5))) == [None] * 5
    assert store.trials == 1
    now = 4.9
    await health.trouble()
    assert store.trials == 1
    now = 5.0
    await health.trouble()
    assert store.trials == 2
    store.why = "the disk is full"
    now = 6.0
    assert await health.trouble() == "the disk is full"
    assert store.trials == 3


async def test_a_store_that_does_not_answer_has_trouble() -> None:
    store = Tried()
    health = StoreHealth(store, lambda: 0.0, patience_s=0.0)
    assert await health.trouble() == "no answer within 0 s"
    store.may_end.set()
    await asyncio.sleep(0)
    await health.close()


async def test_a_trial_ends_with_the_server() -> None:
    store = Tried()
    health = StoreHealth(store, lambda: 0.0, patience_s=0.0)
    await health.trouble()
    await health.close()
    assert store.trials == 1
